"""Judges how a peer reported one fault, from the reports of its pytest processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import Ran

_FAULTY, _NEXT = "_faulty", "_following"
# The peers name a rank in different ways.
_RANK = re.compile(r"\b(?:rank|ranks|process)[\s:=#]*\[?(\d+)", re.IGNORECASE)
_FRAME = re.compile(r"^(?:\w+ = |\S+\.py:\d+|\s{4,}|>|E?\s*File )")


@dataclass(frozen=True, slots=True)
class Cell:
    """Result of one fault with one peer.

    outcome: of the faulty test: passed, failed, skipped, or "no report".
    seconds: from the fault in rank 1 to that report; None without a report.
    named: the first rank that the report names; None if it names none.
    following: outcome of the next test; "not run" if it has none.
    ending: end of the whole run: its exit code, or that it never ended.
    left: number of processes that outlived it.
    """

    outcome: str
    seconds: float | None
    named: int | None
    following: str
    ending: str
    left: int

    @property
    def text(self) -> str:
        """Text of a cell in the table."""
        when = "" if self.seconds is None else f" in {self.seconds:.1f} s"
        named = "no rank named" if self.named is None else f"names rank {self.named}"
        parts = [f"**{self.outcome}**{when}", named if self.outcome == "failed" else ""]
        parts.append(f"next test {self.following}")
        parts.append(self.ending)
        parts.append(f"{self.left} left running" if self.left else "")
        return "; ".join(part for part in parts if part)


def cell(ran: Ran, limit_s: float) -> Cell:
    """Judge one run."""
    faults = ran.times("fault")
    reports = [r for r in ran.records if _FAULTY in str(r.get("test", ""))]
    outcome, deciding = _outcome(reports)
    text = "\n".join(str(r["text"]) for r in reports if r["outcome"] == "failed")
    seconds = float(deciding["time"]) - faults[0] if deciding is not None and faults else None
    code = ran.finished.code
    ending = f"run never ended (killed after {limit_s:.0f} s)" if code is None else f"exit {code}"
    return Cell(outcome, seconds, _named(text), _following(ran), ending, len(ran.finished.left))


def _outcome(reports: list[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any] | None]:
    """Outcome of all phases in all pytest processes: a failure, else a skip, else the last call."""
    for outcome in ("failed", "skipped"):
        for report in reports:
            if report["outcome"] == outcome:
                return outcome, report
    calls = [r for r in reports if r["when"] == "call"]
    return ("passed", calls[-1]) if calls else ("no report", None)


def _following(ran: Ran) -> str:
    reports = [r for r in ran.records if _NEXT in str(r.get("test", ""))]
    outcome, _ = _outcome(reports)
    return "not run" if outcome == "no report" else outcome


def _named(text: str) -> int | None:
    """The first rank named in prose, which excludes source lines and traceback frames."""
    for line in text.splitlines():
        if not _FRAME.match(line) and (match := _RANK.search(line)):
            return int(match.group(1))
    return None
