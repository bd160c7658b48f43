"""Failures that ranks raised, from their own pytest reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import pytest

from pytest_mnode.logs.causes import Cause, causes, is_peer_lost
from pytest_mnode.outcome.outcome import (
    PHASES,
    Failure,
    Outcome,
    collected,
    is_unexpected_pass,
    signature,
)
from pytest_mnode.outcome.stacks import is_hidden, is_torchs
from pytest_mnode.protocol.rank_files import NCCL_SECTION

_LINE_CHARS = 2000
Reports = dict[int, dict[str, pytest.TestReport]]
"""The ranks' own reports, by rank and phase."""


def is_xfailed(report: pytest.TestReport) -> bool:
    return report.skipped and hasattr(report, "wasxfail")


def is_skipped(report: pytest.TestReport) -> bool:
    return report.skipped and not hasattr(report, "wasxfail")


def raised(outcome: Outcome, reports: Reports) -> list[Failure]:
    failures: list[Failure] = []
    for when in PHASES:
        failures += _raised_in(when, outcome, reports, unexpected=False)
    return _each_place_once(failures)


def unexpected_passes(outcome: Outcome, reports: Reports) -> list[Failure]:
    """Failures of ranks whose body passed, although its mark, a strict one, expects no pass."""
    return _raised_in("call", outcome, reports, unexpected=True)


def _raised_in(when: str, outcome: Outcome, reports: Reports, *, unexpected: bool) -> list[Failure]:
    failed = {
        rank: report
        for rank, phases in sorted(reports.items())
        if (report := phases.get(when)) is not None
        and report.failed
        and is_unexpected_pass(report) == unexpected
    }
    times = {rank: outcome.states[rank].at.get(when, 0.0) for rank in failed}
    return raised_in(when, failed, times)


def raised_in(
    when: str, failed: Mapping[int, pytest.TestReport], times: Mapping[int, float]
) -> list[Failure]:
    """One Failure for all equal errors in one phase. failed, times: by rank."""
    lines = {rank: _crash_line(report) for rank, report in failed.items()}
    texts = {
        rank: (_victim_text(report, lines[rank]) if is_peer_lost(lines[rank]) else None)
        for rank, report in failed.items()
    }
    own = {rank: cause for rank in failed if texts[rank] and (cause := _nccl_cause(failed[rank]))}
    first = min((cause.order for cause in own.values()), default=None)

    def make(rank: int) -> Failure:
        text, line, cause = texts[rank], lines[rank], own.get(rank)
        report = None if text else failed[rank]
        if cause is not None:
            line += f": {cause.short}"
            text = f"{text}: {cause.short}\n{cause.line!r}; {cause.kind.remedy}"
        victim = text is not None and (cause is None or cause.order != first)
        return Failure([rank], when, line, report, text or "", 0.0, victim, True)

    keys = (
        (
            rank,
            _key(report, texts[rank]) + (own[rank].short if rank in own else ""),
            times[rank],
        )
        for rank, report in failed.items()
    )
    return collected(keys, make)


def _nccl_cause(report: pytest.TestReport) -> Cause | None:
    """The root cause in NCCL's own log of this rank."""
    log = "".join(text for name, text in report.sections if name == NCCL_SECTION)
    return next((cause for cause in causes(log) if cause.root), None)


def _each_place_once(failures: list[Failure]) -> list[Failure]:
    """Keep the traceback of the first failure at each place; of the others, keep only the error."""
    seen: set[str] = set()
    for failure in sorted(failures, key=lambda g: g.time):
        places = _places(failure.report) if failure.report is not None else []
        if places and (key := "\n".join([failure.when, *places])) in seen:
            failure.text = f"at the same place, {places[-1]}:\n{_shortened(failure.line)}"
            failure.report = None
        elif places:
            seen.add(key)
    return failures


def _shortened(text: str) -> str:
    return text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]} …"


def _places(report: pytest.TestReport) -> list[str]:
    """Where the error passed; empty if the report does not show it, as with --tb=native."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", None) or []
    return [str(place) for entry in entries if (place := getattr(entry, "reprfileloc", None))]


def _key(report: pytest.TestReport, victim_text: str | None) -> str:
    """Key that is equal for equal errors at the same place, whatever the values in their frames."""
    if victim_text is not None:
        return victim_text.partition("\n")[0]
    places = _places(report)
    return signature("\n".join([*places, _crash_line(report)]) if places else report.longreprtext)


def _crash_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return str(text).strip()


def _victim_text(report: pytest.TestReport, line: str) -> str:
    """Two lines for a lost peer, because the stack inside torch does not explain it."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", None) or []
    for entry in reversed(entries):
        place = getattr(entry, "reprfileloc", None)
        if place is None or is_torchs(place.path) or is_hidden(place.path):
            continue
        own = [text for text in entry.lines if not text.startswith("E")]
        marked = [text for text in own if text.startswith(">")]  # --tb=short marks no line
        code = next(iter(marked or own), "").removeprefix(">").strip()
        return f"in {PurePath(place.path).name}:{place.lineno}: {code}\n{line}"
    return line
