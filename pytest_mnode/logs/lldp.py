"""Neighbours by LLDP, as lldpcli and lldpctl write them in JSON. Pure.

Source: lldpd, lldpcli(8): `-f json` merges what is there once, `-f json0` lists everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_VERSION = re.compile(
    r"(?:\bversion:?\s+(?:SONiC\.)?|\bSONiC\.|\bSWv|\bsoftware,?\s+|\bJUNOS\s+)v?(\d[\w.()-]*)",
    re.IGNORECASE,
)
_OWN_KEYS = frozenset(("id", "name", "descr", "mgmt-ip", "mgmt-iface", "capability"))


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What one interface hears. switch: its name, else its chassis' id; port: its id or name, and
    its description where that says more; system: what the switch says of itself; "" if not told."""

    interface: str
    switch: str
    port: str
    description: str = ""
    system: str = ""


def neighbours(found: Any) -> Iterator[Neighbour]:
    """All neighbours in the JSON of lldpcli, lldpctl: none if nothing is heard.

    Raises ValueError for JSON without a part "lldp".
    """
    whole = _first(found)
    if not isinstance(whole, Mapping) or "lldp" not in whole:
        raise ValueError("no lldp in its JSON")
    for part in _each(whole["lldp"]):
        for listed in _each(part.get("interface")):
            if "chassis" in listed or "port" in listed:
                yield from _of_interface(str(listed.get("name", "")), listed)  # json0
            else:
                for name, heard in listed.items():
                    for one in _each(heard):
                        yield from _of_interface(name, one)


def _of_interface(name: str, heard: Mapping[str, Any]) -> Iterator[Neighbour]:
    port = _first(heard.get("port"))
    port = port if isinstance(port, Mapping) else {}
    text, description = _text(port.get("id")), _text(port.get("descr"))
    for chassis in _each(heard.get("chassis")):
        switch = _switch(chassis)
        told = _first(chassis.get(switch)) or chassis  # by its name, or without one
        system = _text(told.get("descr")) if isinstance(told, Mapping) else ""
        yield Neighbour(name, switch, text or description, description, system)


def version_in(system: str) -> str | None:
    """The version of a switch's software in its system description; None if it names none.

    As Cumulus Linux, SONiC, Onyx, EOS, NX-OS, IOS, Junos and OS10 describe themselves.
    """
    found = _VERSION.search(system)
    return found[1] if found else None


def _switch(chassis: Mapping[str, Any]) -> str:
    """{"leaf1": {"id": …}}; {"id": …} of a switch that tells no name; or with the key name."""
    if name := _text(chassis.get("name")):
        return name
    names = [
        key for key, value in chassis.items() if key not in _OWN_KEYS and isinstance(value, dict)
    ]
    return names[0] if names else _text(chassis.get("id"))


def _text(found: Any) -> str:
    found = _first(found)
    return _text(found.get("value")) if isinstance(found, Mapping) else str(found or "")


def _first(found: Any) -> Any:
    while isinstance(found, list):
        found = found[0] if found else None
    return found


def _each(found: Any) -> Iterator[Mapping[str, Any]]:
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Mapping):
            yield one
