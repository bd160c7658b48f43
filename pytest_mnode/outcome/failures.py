"""All failures in a test, and the ranks that caused them.

Besides exceptions: ranks that died, were lost, stopped reporting, hang, skipped alone, called
another collective than the others, or left resources behind.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

import pytest

from pytest_mnode.logs.causes import ENDINGS, Cause, causes, is_peer_lost
from pytest_mnode.measurement import listed
from pytest_mnode.outcome.call_record import INSIDE, LIMITED, RAISED, Call
from pytest_mnode.outcome.calls import difference
from pytest_mnode.outcome.describe import (
    MOST_SHOWN,
    died_of,
    on_nodes,
    ranks_by,
    ranks_text,
)
from pytest_mnode.outcome.outcome import (
    PHASES,
    Failure,
    Outcome,
    RankState,
    collected,
    is_unexpected_pass,
    signature,
)
from pytest_mnode.outcome.stacks import is_hidden, is_torchs, tidy, without_native_frames
from pytest_mnode.outcome.stuck import stuck_failures
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


def _raised_in(when: str, outcome: Outcome, reports: Reports, *, unexpected: bool) -> list[Failure]:
    """unexpected: of bodies that passed, although their mark, a strict one, expects no pass."""
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


def failures_of(outcome: Outcome, reports: Reports) -> list[Failure]:
    """All failures, culprits first, then victims, each by time; empty if nothing failed."""
    if outcome.plainly_passed:
        return []
    failures = [
        *raised(outcome, reports),
        *deaths(outcome),
        *lost(outcome),
        *_unequal_skips(outcome, reports),
        *_problems(outcome),
        *_silent(outcome),
    ]
    xfailed = {when for phases in reports.values() for when, r in phases.items() if is_xfailed(r)}
    explained = any(not g.victim for g in failures) or (bool(xfailed) and not outcome.timed_out)
    differs = [] if xfailed else different_calls(outcome, failures)
    failures += [
        *differs,
        *stuck_failures(outcome, explained or bool(differs)),
    ]
    of_test = xfailed - {"teardown"}  # as in pytest, teardown alone does not fulfil the mark
    if xfailed and all(g.victim and (of_test or g.when == "teardown") for g in failures):
        failures = []  # one rank failed as the mark expects, the others because of it
    if not of_test and all(g.when == "teardown" for g in failures):
        failures += _raised_in("call", outcome, reports, unexpected=True)
    return sorted_failures(
        failures or ([] if xfailed else [*_leaks(outcome), *_unequal_calls(outcome)])
    )


def sorted_failures(failures: list[Failure]) -> list[Failure]:
    """Culprits first, then victims, each by time; if all are victims, the first is the culprit."""
    if failures and all(g.victim for g in failures):
        first = min(failures, key=lambda g: g.time)
        named = next((cause.peer for cause in causes(first.text) if cause.peer), None)
        first.victim, first.lost_peer = False, named or ""
    return sorted(failures, key=lambda g: (g.victim, g.time))


def different_calls(outcome: Outcome, others: list[Failure]) -> list[Failure]:
    """Failure of the ranks whose calls differ; ranks that raised in a call become its victims."""
    calls = outcome.calls
    for rank in {rank for g in others if g.victim for rank in g.ranks} & calls.keys():
        if calls[rank] and calls[rank][-1].state == RAISED:  # it waited until it lost its peers
            calls[rank] = [*calls[rank][:-1], replace(calls[rank][-1], state=LIMITED)]
    found = difference(calls, outcome.ended, still=outcome.still)
    if found is None or not (others or any(s.stuck_in for s in outcome.states.values())):
        return []
    for failure in others:
        failure.victim |= all(
            _ended_by_call(outcome.states[r], calls.get(r)) for r in failure.ranks
        )
    first = min(others, key=lambda g: PHASES.index(g.when), default=None)
    when, in_phase = (first.when, first.in_phase) if first else ("call", False)
    # A rank that died of another cause explains the later calls of the others.
    gone = any(outcome.states[r].gone for g in others if not g.victim for r in g.ranks)
    time = math.inf if gone else -math.inf
    return [Failure(found.ranks, when, found.line, None, found.text, time, False, in_phase)]


def _unequal_calls(outcome: Outcome) -> list[Failure]:
    """Calls that differ in a test that passed, because nothing made a rank wait for the others."""
    found = outcome.unequal
    if found is None or outcome.allows_unequal:
        return []
    text = (
        f"{found.text}\n\nall ranks passed, because no call waited; if the test means it: "
        "@pytest.mark.mnode(unequal_calls='allow') or the ini key mnode_unequal_calls"
    )
    return [Failure(found.ranks, "call", found.line, text=text)]


def _ended_by_call(state: RankState, calls: list[Call] | None) -> bool:
    """Whether the last call of a rank raised, or aborted the process as gloo does."""
    aborted = state.death is not None and state.death.signal == signal.SIGABRT
    states = (INSIDE, LIMITED) if aborted else (RAISED,)
    return calls is not None and any(call.state in states for call in calls[-1:])


def deaths(outcome: Outcome) -> list[Failure]:
    """Failures of ranks whose process died."""
    dead = {r: s for r, s in outcome.states.items() if s.death is not None}
    return of_equal_text(outcome, {rank: _death(state) for rank, state in dead.items()})


def of_equal_text(outcome: Outcome, by_rank: Mapping[int, Failure]) -> list[Failure]:
    """Failures of single ranks; those with equal texts become one."""
    keys = (
        (rank, signature(failure.text), outcome.states[rank].failed_at or 0.0)
        for rank, failure in by_rank.items()
    )
    return collected(keys, by_rank.__getitem__)


def _death(state: RankState) -> Failure:
    death = state.death
    assert death is not None
    line = f"{died_of(death)}, in {_phase_words(state)}"
    found = causes("\n".join((death.error, death.output, death.log)))
    cause = next((one for one in found if one.root and one.name not in ENDINGS), None)
    line += f": {cause.short}" if cause else ""
    text = f"{line}\n{cause.line!r}; {cause.kind.remedy}" if cause else line
    if death.fault:
        text += f"\n\n{tidy(death.fault)}"
    for title, content in (("error", death.error), ("output", death.output), ("log", death.log)):
        if shown := without_native_frames(content).strip("\n").rstrip():
            text += f"\n\nend of its {title}:\n{shown}"
    # After a peer was lost, NCCL's watchdog aborts the remaining ranks.
    victim = death.signal == signal.SIGABRT and is_peer_lost(death.output + death.log)
    return Failure([state.rank], state.phase, line, text=text, victim=victim)


def _phase_words(state: RankState) -> str:
    if "teardown" in state.reports or (state.death is not None and state.death.phase == "after"):
        return "teardown, after its last report"
    return {"setup": "setup", "call": "the test", "teardown": "teardown"}[state.phase]


def lost(outcome: Outcome) -> list[Failure]:
    """Failures of ranks whose node or launcher is gone."""
    gone = {r: s for r, s in outcome.states.items() if s.lost}
    return of_equal_text(
        outcome, {r: Failure([r], s.phase, s.lost, text=s.lost) for r, s in gone.items()}
    )


def _problems(outcome: Outcome) -> list[Failure]:
    found, apart = {}, outcome.apart
    for rank, state in outcome.states.items():
        if state.torn_down and (text := state.torn_down.problem) and rank not in apart:
            when = "setup" if not state.reports else state.phase
            found[rank] = Failure([rank], when, text.partition("\n")[0], text=text)
    return of_equal_text(outcome, found)


def _silent(outcome: Outcome) -> list[Failure]:
    """Ranks without a report of their end: a missing report is not a pass."""
    if outcome.quit:
        return []
    ran = any("call" in s.reports for s in outcome.states.values())
    failures = []
    for rank, state in outcome.states.items():
        if state.absent or state.gone or state.stuck_in or state.failed_at is not None:
            continue
        line = ""
        if state.torn_down is None:
            line = "did not report the end of the test"
        elif (
            ran
            and "call" not in state.reports
            and not any(report.outcome == "skipped" for report in state.reports.values())
        ):
            line = "did not run the test, but other ranks did"
        if line:
            failures.append(Failure([rank], state.phase, line, text=line, time=outcome.stopped))
    return failures


def _unequal_skips(outcome: Outcome, reports: Reports) -> list[Failure]:
    for when in ("setup", "call"):
        have = {rank: r[when] for rank, r in reports.items() if when in r}
        skipped = [r for r in have if is_skipped(have[r])]
        # A rank that died or hangs before its report might have skipped.
        others = [r for r, s in outcome.states.items() if r not in skipped and when in s.reports]
        others += [r for r, s in outcome.states.items() if s.stuck_in and when not in s.reports]
        if not skipped or not others:
            continue
        reason = have[skipped[0]].longrepr
        why = str(reason[2]) if isinstance(reason, tuple) else str(reason)
        line = f"skipped ({why.removeprefix('Skipped: ')}), but {ranks_text(others)} did not"
        text = f"{line}; a test is skipped by all ranks or by none"
        time = min(outcome.states[r].at.get(when, 0.0) for r in skipped)
        return [Failure(skipped, when, line, text=text, time=time)]
    return []


def left_out(outcome: Outcome) -> list[str]:
    """Which ranks left a test to others by a mark or definition of their own, in one line each."""
    apart = outcome.apart
    by_text = ranks_by({rank: _how_apart(outcome.states[rank]) for rank in apart})
    ran = ranks_text([rank for rank in outcome.states if rank not in apart])
    return [f"{outcome.places(ranks)} {text}; it ran in {ran}" for text, ranks in by_text.items()]


def _how_apart(state: RankState) -> str:
    if state.absent:
        return "does not have it"
    reasons = (r.data.get("longrepr") for r in state.reports.values() if r.apart)
    reason = next((str(r[2]) for r in reasons if isinstance(r, tuple | list)), "")
    return f"skipped it ({reason.removeprefix('Skipped: ')})"


_REMEDIES = {
    "child process": ("end it and wait for it", "its command"),
    "thread": ("join it", "its name"),
    "an alarm": ("cancel it", "'alarm'"),
}


def _remedy(leak: str) -> str:
    kinds = (both for kind, both in _REMEDIES.items() if leak.startswith(kind))
    do, pattern = next(kinds, ("release what holds it", "'memory'"))
    return (
        f"{do} before the test ends, or allow it: @pytest.mark.mnode(may_leave=PATTERN) or the ini "
        f"key mnode_may_leave, with a pattern of {pattern}"
    )


def _leaks(outcome: Outcome) -> list[Failure]:
    by_leak: dict[str, dict[str, list[int]]] = {}
    for rank, state in outcome.states.items():
        for leak in state.torn_down.leaks if state.torn_down else ():
            alike = by_leak.setdefault(re.sub(r"\d+", "#", leak), {})
            alike.setdefault(leak, []).append(rank)
    nodes = outcome.nodes
    return [
        Failure(
            sorted({rank for ranks in alike.values() for rank in ranks}),
            "teardown",
            f"passed but left {next(iter(alike))} behind",
            text=listed(
                (f"{on_nodes(ranks, nodes)} left {leak} behind" for leak, ranks in alike.items()),
                most=MOST_SHOWN,
                separator="\n",
            )
            + f"\n{_remedy(next(iter(alike)))}",
            in_phase=True,
        )
        for alike in by_leak.values()
    ]
