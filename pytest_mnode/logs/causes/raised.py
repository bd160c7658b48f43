"""Exceptions that Python printed, without what a logger or a launcher put before a line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEADER = re.compile(
    r"(?P<prefix>.{0,200}?)(?P<group> *\+ Exception Group )?Traceback \(most recent call last\):"
    r"(?: \(RANK (?P<failing>\d+)\)$)?"
)
_TIME = re.compile(r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?")
"""Of a prefix only the time differs from line to line; ranks and processes stay apart."""
_RANK = re.compile(
    r"(?:\brank(?: id)?[ :=_-]{0,3}|-- Process (?=\d+ terminated))(\d{1,7})\b", re.IGNORECASE
)
"""Processes are those of torch.multiprocessing.spawn."""
_REPORTS = re.compile(r"error|exception|fail|caught", re.IGNORECASE)
EXCEPTION = re.compile(
    r"(?P<detail>(?!SystemExit|KeyboardInterrupt)"
    r"(?:(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z][a-z\d]+[A-Z]\w*|[A-Z]\w*Error))(?:\(\w+\))?(?::|$)"
)
"""Classes are dotted or of several words: other output may stand below a traceback."""
_IGNORED = "Exception ignored in"
_MOST_LINES = 300
_MOST_OPEN = 64


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as Python prints it, and the rank that its prefix, or the report of its
    traceback, names. failing: of torch's checkpoints, whose exceptions all ranks print. ignored:
    Python went on, as after one in `__del__`."""

    body: str
    rank: str | None
    failing: str | None = None
    ignored: bool = False


@dataclass(slots=True)
class _Traceback:
    prefix: re.Pattern[str]
    rank: str | None
    failing: str | None
    is_group: bool
    ignored: bool
    at: int


def raised(lines: Sequence[str]) -> dict[int, Raised]:
    """By the number of the line that ends a traceback."""
    found: dict[int, Raised] = {}
    running: list[_Traceback] = []
    for at, line in enumerate(lines):
        if "Traceback (most" in line and (header := _HEADER.match(line)) is not None:
            prefix = header["prefix"]
            of_report = lines[at - 1] if at and _REPORTS.search(lines[at - 1]) else ""
            rank = _RANK.search(prefix) or _RANK.search(of_report)
            pattern = re.compile(f"(?:{_TIME.pattern})".join(map(re.escape, _TIME.split(prefix))))
            is_group = header["group"] is not None
            report = pattern.match(of_report)  # ranks may share a log
            ignored = report is not None and of_report.startswith(_IGNORED, report.end())
            now = _Traceback(pattern, rank and rank[1], header["failing"], is_group, ignored, at)
            running = [one for one in running if one.prefix.pattern != pattern.pattern][
                -_MOST_OPEN:
            ]
            running.append(now)
            continue
        for one in running:
            if (start := one.prefix.match(line)) is None:
                continue
            body = line[start.end() :]
            of_group = body.lstrip(" |+-") if one.is_group else body
            if EXCEPTION.match(of_group) and not of_group.startswith("ExceptionGroup"):
                found[at] = Raised(of_group, one.rank, one.failing, one.ignored)
            elif not body or body.startswith((" ", "\t", ">", "|", "[")):
                continue
            one.at = -_MOST_LINES
            break
        running = [one for one in running if at - one.at < _MOST_LINES]
    return found
