"""Values that Slurm prints: `Key=value` lines of scontrol, reservations and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.hosts import expand

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:_]*)=")
_FREE = {
    ("NodeName", "Reason"): {
        *("Comment", "Extra", "InstanceId", "InstanceType", "ResumeAfterTime", "ReservationName"),
    },
    ("JobId", "JobName"): {"HetJobIdSet", "UserId", "GroupId", "JobState"},
}
"""Keys of free text, which may contain `=`, with the first key of their record; and the keys that
may come next."""
_SIGNED = re.compile(r"\[[^][\s]+@[^][\s]+\]\s*\Z")
"""The end of a node's reason: who gave it, and when."""
_NOTHING = {"", "(null)", "none", "n/a", "unknown", "none assigned", "nan", "infinite"}


def records(text: str, first_key: str) -> Iterator[dict[str, str]]:
    """Records of scontrol's output, with or without --oneliner; other lines are skipped.

    If a key occurs twice, as inside a command line, the first one counts.
    """
    lines: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith(f"{first_key}="):
            lines.append(line)
        elif lines and line[:1].isspace():
            lines[-1] += f" {line.strip()}"
    for line in lines:
        found: dict[str, str] = {}
        keys = _keys(first_key, line)
        for at, match in enumerate(keys):
            end = keys[at + 1].start() if at + 1 < len(keys) else len(line)
            found.setdefault(match[1], line[match.end() : end].strip())
        yield found


def _keys(first_key: str, line: str) -> list[re.Match[str]]:
    """The keys of a record; text inside free text that looks like a key is skipped."""
    found: list[re.Match[str]] = []
    after: set[str] | None = None
    for match in _KEY.finditer(line):
        if after is None or match[1] in after or _SIGNED.search(line, 0, match.start()):
            found.append(match)
            after = _FREE.get((first_key, match[1]))
    return found


def text_of(value: str | None) -> str | None:
    """The text; None for any of Slurm's words for nothing."""
    text = (value or "").strip()
    return None if text.lower() in _NOTHING else text


def number(text: str | None) -> int | None:
    """The integer at the beginning of a text (`4-4` is 4), else None."""
    match = re.match(r"-?\d+", (text or "").strip())
    return int(match[0]) if match else None


def reserved_nodes(text: str, name: str) -> tuple[str, ...]:
    """Nodes of an active reservation, from `scontrol --oneliner show reservation`.

    Raises ClusterError, one line, if it does not exist, is not active, or has no nodes.
    """
    found = {record["ReservationName"]: record for record in records(text, "ReservationName")}
    if name not in found:
        there = ", ".join(found) or "none"
        raise ClusterError(f"Slurm has no reservation {name}; there are: {there}")
    state = found[name].get("State", "")
    if state != "ACTIVE":
        raise ClusterError(f"reservation {name} is {state or 'in no state'}: no job starts in it")
    nodes = expand(text_of(found[name].get("Nodes")) or "")
    if not nodes:
        raise ClusterError(f"reservation {name} has no nodes")
    return nodes
