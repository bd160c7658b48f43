"""Neighbours by LLDP, as lldpcli and lldpctl write them in JSON. Pure.

Source: lldpd, lldpcli(8): `-f json` merges what is there once, `-f json0` lists everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_OWN_KEYS = frozenset(("id", "name", "descr", "mgmt-ip", "mgmt-iface", "capability"))


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What one interface hears. switch: its name, else its chassis' id; port: its id or name, and
    its description where that says more; "" if not told."""

    interface: str
    switch: str
    port: str
    description: str = ""


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
        yield Neighbour(name, _switch(chassis), text or description, description)


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
