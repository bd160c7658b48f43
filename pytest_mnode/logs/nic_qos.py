"""Output of programs that show a NIC's lossless classes: mlnx_qos, dcb of iproute2, mlxreg. Pure.

Source: mlnx-tools, mlnx_qos; iproute2, dcb/dcb_pfc.c and dcb_app.c; MFT, mlxreg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TRUST = re.compile(r"^\s*Priority trust state:\s*(\w+)", re.IGNORECASE | re.MULTILINE)
_PRIORITIES = re.compile(r"^\s*priority:?((?:\s+\d)+)\s*$", re.MULTILINE)
_ENABLED = re.compile(r"^\s*enabled:?((?:\s+[01])+)\s*$", re.MULTILINE)
_DSCPS = re.compile(r"prio:\s*(\d)\s+dscp:\s*((?:\d+\s*,?\s*)+)")
_PAIR = re.compile(r"\b(\d):(on|off)\b")
_ON = (True, 1, "on", "true")


@dataclass(frozen=True, slots=True)
class Qos:
    """What a NIC does with priorities. pfc: those with priority flow control, None if not shown.
    trust: dscp or pcp, by which a packet gets its priority; None if not shown. priorities: by DSCP,
    as far as it is shown."""

    pfc: tuple[int, ...] | None = None
    trust: str | None = None
    priorities: Mapping[int, int] = field(default_factory=dict)


def mlnx_qos(text: str) -> Qos:
    """What `mlnx_qos -i INTERFACE` shows."""
    trust, enabled = _TRUST.search(text), _ENABLED.search(text)
    head = _PRIORITIES.search(text)
    pfc = None
    if enabled:
        states = enabled[1].split()
        numbers = [int(one) for one in head[1].split()] if head else [*range(len(states))]
        if len(numbers) == len(states):
            pfc = tuple(n for n, state in zip(numbers, states, strict=True) if state == "1")
    priorities = {
        int(dscp): int(priority)
        for priority, listed in _DSCPS.findall(text)
        for dscp in re.findall(r"\d+", listed)
    }
    return Qos(pfc, trust[1].lower() if trust else None, priorities)


def dcb_pfc(found: Any) -> tuple[int, ...] | None:
    """Priorities of `dcb -j pfc show dev INTERFACE`, in JSON, or of its text; None if not shown."""
    if isinstance(found, str):
        pairs = _PAIR.findall(found.partition("prio-pfc")[2].partition("\n")[0])
        return tuple(int(number) for number, state in pairs if state == "on") if pairs else None
    states = _value(found, "prio_pfc")
    if isinstance(states, Mapping):
        states = [[int(number), state] for number, state in states.items()]
    if not isinstance(states, list) or not states:
        return None
    pairs = [one if isinstance(one, list) else [at, one] for at, one in enumerate(states)]
    return tuple(number for number, state in pairs if state in _ON)


def dcb_app(found: Any) -> dict[int, int]:
    """Priorities by DSCP of `dcb -Nj app show dev INTERFACE`; empty if DSCPs are not trusted."""
    pairs = _value(found, "dscp_prio") or []
    return {int(dscp): int(priority) for dscp, priority in pairs if str(dscp).isdecimal()}


def register_field(text: str, name: str) -> int | None:
    """Value of a field in the table of `mlxreg --get`; None if it has none."""
    found = re.search(rf"^\s*{re.escape(name)}\s*\|\s*(0x[0-9a-fA-F]+|\d+)", text, re.MULTILINE)
    return int(found[1], 0) if found else None


def _value(found: Any, key: str) -> Any:
    """A value by its name, with - or _, of an object or of the first one of a list."""
    if isinstance(found, list):
        found = found[0] if found else {}
    if not isinstance(found, Mapping):
        return None
    return found.get(key, found.get(key.replace("_", "-")))
