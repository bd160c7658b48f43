"""Who came to a meeting of ranks and who did not, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mnode.outcome.describe import ranks_text

_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")


@dataclass(frozen=True, slots=True)
class Comer:
    """A rank that came: its node's name and how many ranks its node has (None: not told)."""

    node: str
    local_size: int | None


def never_came(
    size: int, came: Mapping[int, Comer], within_s: float, twice: Mapping[int, str] | None = None
) -> str:
    """One line that names those of `size` ranks that are not in `came`.

    twice: ranks that came from two places, with the places in words.
    """
    missing = [rank for rank in range(size) if rank not in came]
    nodes = _nodes_of(missing, came)
    where = f" ({', '.join(nodes)})" if nodes else ""
    names = list(dict.fromkeys(came[rank].node for rank in sorted(came)))
    did = f"{ranks_text(sorted(came))} on {','.join(names)} did" if came else "nobody did"
    line = f"{ranks_text(missing)} of {size}{where} never came within {within_s:g} s ({did})"
    if not missing:
        line = f"all {size} ranks came, but not all of them within {within_s:g} s"
    for rank, places in sorted((twice or {}).items()):
        line += f"; rank {rank} came twice, from {places}: RANK must be different in every process"
    return line


def came_late(size: int, came: Mapping[int, Comer], before: str) -> str:
    """The same of ranks that came when the others had failed; before: the line that these got."""
    nodes = list(dict.fromkeys(came[rank].node for rank in sorted(came)))
    who = f"{ranks_text(sorted(came))} of {size} on {','.join(nodes)}"
    return f"{who} came after the others had given up: {before}"


def gist(text: str) -> str:
    """The line in an account of failed ranks that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = (line for line in lines if _ERROR.match(line))
    return next(errors, lines[0] if lines else "no message")


def _nodes_of(missing: list[int], came: Mapping[int, Comer]) -> list[str]:
    """Nodes of missing ranks, where a neighbour of the same node came and tells."""
    found: dict[str, None] = {}
    for rank, comer in sorted(came.items()):
        if comer.local_size:
            first = rank - rank % comer.local_size
            if any(first <= other < first + comer.local_size for other in missing):
                found[comer.node] = None
    return list(found)
