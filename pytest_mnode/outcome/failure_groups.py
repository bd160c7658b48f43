"""Ranks to which the same happened, and which of them began it."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import pytest

from pytest_mnode.logs.causes import ENDINGS, Cause, causes, is_peer_lost
from pytest_mnode.outcome.calls import INSIDE, LIMITED, RAISED, Call, difference
from pytest_mnode.outcome.describe import died_of, ranks_text
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stacks import is_hidden, tidy
from pytest_mnode.outcome.stuck import Stuck, stuck_groups
from pytest_mnode.rank.traces import NCCL_SECTION

PHASES = ("setup", "call", "teardown")
_LINE_CHARS = 2000
Reports = dict[int, dict[str, pytest.TestReport]]

_OWN = re.compile(
    r"0x[0-9a-fA-F]+|rank\d+(?=[/.])|\b(?:rank|local_rank)=\d+|\bnode='[^']*'|\bRank \d+"
)
"""What differs between ranks to which the same happened."""


@dataclass(slots=True)
class Group:
    """Ranks to which the same happened. `line` is for the summary, `text` all there is to say."""

    ranks: list[int]
    when: str
    line: str
    report: pytest.TestReport | None = None
    text: str = ""
    time: float = 0.0
    victim: bool = False
    in_phase: bool = False
    """Ranks themselves reported it in this phase; in teardown, after a test that passed."""


def same(text: str) -> str:
    """`text` less what only tells ranks apart: equal for ranks to which the same happened."""
    return _OWN.sub("", text)


def groups_of(outcome: Outcome, reports: Reports) -> list[Group]:
    """All that went wrong, culprits first, each in the order of time. Empty: nothing did."""
    groups = [
        *_raised(outcome, reports),
        *deaths(outcome),
        *lost(outcome),
        *_unequal_skips(outcome, reports),
        *_problems(outcome),
        *_silent(outcome),
    ]
    xfailed = any(is_xfailed(r) for phases in reports.values() for r in phases.values())
    explained = any(not g.victim for g in groups) or (xfailed and not outcome.timed_out)
    differs = [] if xfailed else different_calls(outcome, groups)
    groups += [
        *differs,
        *(from_stuck(s) for s in stuck_groups(outcome, explained or bool(differs))),
    ]
    if xfailed and all(g.victim for g in groups):
        return []  # one rank failed as the mark expects, the others because of it
    return sorted_groups(groups or _leaks(outcome))


def sorted_groups(groups: list[Group]) -> list[Group]:
    """Culprits first, each in the order of time; of victims alone, the first is the culprit."""
    if groups and all(g.victim for g in groups):
        min(groups, key=lambda g: g.time).victim = False
    return sorted(groups, key=lambda g: (g.victim, g.time))


def is_xfailed(report: pytest.TestReport) -> bool:
    return report.skipped and hasattr(report, "wasxfail")


def is_skipped(report: pytest.TestReport) -> bool:
    return report.skipped and not hasattr(report, "wasxfail")


def collected(keys: Iterable[tuple[int, str, float]], make: Callable[[int], Group]) -> list[Group]:
    """One group for each key of (rank, key, time), made from its first rank."""
    groups: dict[str, Group] = {}
    for rank, key, time in keys:
        group = groups.get(key)
        if group is None:
            group = groups[key] = make(rank)
            group.ranks, group.time = [rank], time
        else:
            group.ranks.append(rank)
            group.time = min(group.time, time)
    return list(groups.values())


def _raised(outcome: Outcome, reports: Reports) -> list[Group]:
    xfailed = any(is_xfailed(r) for phases in reports.values() for r in phases.values())
    groups: list[Group] = []
    for when in PHASES:
        failed = {r: p[when] for r, p in sorted(reports.items()) if when in p and p[when].failed}
        if xfailed:  # then another rank did fail, as the mark expects of the test
            failed = {r: f for r, f in failed.items() if "[XPASS(strict)]" not in str(f.longrepr)}
        times = {rank: outcome.states[rank].at.get(when, 0.0) for rank in failed}
        groups += raised_in(when, failed, times)
    return _each_place_once(groups)


def raised_in(
    when: str, failed: Mapping[int, pytest.TestReport], times: Mapping[int, float]
) -> list[Group]:
    """Groups of equal failures in one phase; reports and their times by rank."""
    lines = {rank: _crash_line(report) for rank, report in failed.items()}
    told = {
        rank: (_victim_text(report, lines[rank]) if is_peer_lost(lines[rank]) else None)
        for rank, report in failed.items()
    }
    own = {rank: cause for rank in failed if told[rank] and (cause := _nccl_cause(failed[rank]))}
    first = min((cause.order for cause in own.values()), default=None)

    def make(rank: int) -> Group:
        text, line, cause = told[rank], lines[rank], own.get(rank)
        report = None if text else failed[rank]
        if cause is not None:
            line += f": {cause.short}"
            text = f"{text}: {cause.short}\n{cause.line!r}; {cause.kind.remedy}"
        victim = text is not None and (cause is None or cause.order != first)
        return Group([rank], when, line, report, text or "", 0.0, victim, True)

    keys = (
        (rank, _key(report, told[rank]) + (own[rank].short if rank in own else ""), times[rank])
        for rank, report in failed.items()
    )
    return collected(keys, make)


def _nccl_cause(report: pytest.TestReport) -> Cause | None:
    """The root cause that NCCL's own log of this rank tells."""
    log = "".join(text for name, text in report.sections if name == NCCL_SECTION)
    return next((cause for cause in causes(log) if cause.root), None)


def _each_place_once(groups: list[Group]) -> list[Group]:
    """The traceback of the first in time, and of others at the same place what differs."""
    seen: set[str] = set()
    for group in sorted(groups, key=lambda g: g.time):
        places = _places(group.report) if group.report is not None else []
        if places and (key := "\n".join([group.when, *places])) in seen:
            group.text = f"at the same place, {places[-1]}:\n{_shortened(group.line)}"
            group.report = None
        elif places:
            seen.add(key)
    return groups


def _shortened(text: str) -> str:
    return text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]} …"


def _places(report: pytest.TestReport) -> list[str]:
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", None) or []
    return [str(getattr(entry, "reprfileloc", "")) for entry in entries]


def _key(report: pytest.TestReport, victim_text: str | None) -> str:
    """Equal for equal errors at the same place, whatever the values of their frames."""
    if victim_text is not None:
        return victim_text.partition("\n")[0]
    places = _places(report)
    return same("\n".join([*places, _crash_line(report)]) if places else report.longreprtext)


def _crash_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return str(text).strip()


def _victim_text(report: pytest.TestReport, line: str) -> str:
    """A lost peer is told in two lines: the inside of torch explains nothing."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", None) or []
    for entry in reversed(entries):
        place = getattr(entry, "reprfileloc", None)
        if place is None or "/torch/" in place.path or is_hidden(place.path):
            continue
        code = next((text[1:].strip() for text in entry.lines if text.startswith(">")), "")
        return f"in {PurePath(place.path).name}:{place.lineno}: {code}\n{line}"
    return line


def different_calls(outcome: Outcome, others: list[Group]) -> list[Group]:
    """Whose calls differ, before ranks that raised inside of a call, which are its victims."""
    calls = outcome.calls
    found = difference(calls, outcome.ended, still=outcome.still)
    if found is None or not (others or any(s.stuck_in for s in outcome.states.values())):
        return []
    for group in others:
        group.victim |= all(_ended_by_call(outcome.states[r], calls.get(r)) for r in group.ranks)
    first = min(others, key=lambda g: PHASES.index(g.when), default=None)
    when, in_phase = (first.when, first.in_phase) if first else ("call", False)
    # A rank that died of something else explains what the others called after that.
    gone = any(outcome.states[r].gone for g in others if not g.victim for r in g.ranks)
    time = math.inf if gone else -math.inf
    return [Group(found.ranks, when, found.line, None, found.text, time, False, in_phase)]


def _ended_by_call(state: RankState, calls: list[Call] | None) -> bool:
    """Whether the last call of a rank raised, or aborted the process as gloo does."""
    aborted = state.death is not None and state.death.signal == signal.SIGABRT
    states = (INSIDE, LIMITED) if aborted else (RAISED,)
    return calls is not None and any(call.state in states for call in calls[-1:])


def deaths(outcome: Outcome) -> list[Group]:
    """Ranks that ended as processes."""
    found = {r: s for r, s in outcome.states.items() if s.death is not None}
    return collected(
        ((r, _death_key(s), s.failed_at or 0.0) for r, s in found.items()),
        lambda rank: _death(found[rank]),
    )


def _death_key(state: RankState) -> str:
    group = _death(state)
    return same(group.text + group.when)


def _death(state: RankState) -> Group:
    death = state.death
    assert death is not None
    line = f"{died_of(death)}, in {_phase_words(state)}"
    told = causes("\n".join((death.error, death.output, death.log)))
    cause = next((one for one in told if one.root and one.name not in ENDINGS), None)
    line += f": {cause.short}" if cause else ""
    text = f"{line}\n{cause.line!r}; {cause.kind.remedy}" if cause else line
    if death.fault:
        text += f"\n\n{tidy(death.fault)}"
    for title, content in (("error", death.error), ("output", death.output), ("log", death.log)):
        if content.strip():
            text += f"\n\nend of its {title}:\n{content.rstrip()}"
    # An abort after a peer was lost is what NCCL's watchdog does in the ranks that are left.
    victim = death.signal == signal.SIGABRT and is_peer_lost(death.output + death.log)
    return Group([state.rank], state.phase, line, text=text, victim=victim)


def _phase_words(state: RankState) -> str:
    if "teardown" in state.reports or (state.death is not None and state.death.phase == "after"):
        return "teardown, after its last report"
    return {"setup": "setup", "call": "the test", "teardown": "teardown"}[state.phase]


def lost(outcome: Outcome) -> list[Group]:
    """Ranks whose node or launcher is gone."""
    found = {r: s for r, s in outcome.states.items() if s.lost}
    return collected(
        ((rank, s.lost, s.failed_at or 0.0) for rank, s in found.items()),
        lambda rank: Group([rank], found[rank].phase, found[rank].lost, text=found[rank].lost),
    )


def _problems(outcome: Outcome) -> list[Group]:
    problems = {r: s.torn.problem for r, s in outcome.states.items() if s.torn and s.torn.problem}

    def make(rank: int) -> Group:
        state, text = outcome.states[rank], problems[rank]
        when = "setup" if not state.reports else state.phase
        return Group([rank], when, text.partition("\n")[0], text=text)

    return collected(
        (
            (rank, same(text), outcome.states[rank].failed_at or 0.0)
            for rank, text in problems.items()
        ),
        make,
    )


def _silent(outcome: Outcome) -> list[Group]:
    """No news is no pass: a rank that others went on without must have said why."""
    ran = any("call" in s.reports for s in outcome.states.values())
    groups = []
    for rank, state in outcome.states.items():
        if state.gone or state.stuck_in or state.failed_at is not None:
            continue
        line = ""
        if state.torn is None or not state.pong:
            line = "never said that it ended the test"
        elif ran and "call" not in state.reports and not _has_skipped(state):
            line = "did not run the test, which others did"
        if line:
            groups.append(Group([rank], state.phase, line, text=line, time=outcome.stopped))
    return groups


def _has_skipped(state: RankState) -> bool:
    return any(report.outcome == "skipped" for report in state.reports.values())


def _unequal_skips(outcome: Outcome, reports: Reports) -> list[Group]:
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
        return [Group(skipped, when, line, text=text, time=time)]
    return []


def from_stuck(stuck: Stuck) -> Group:
    return Group(
        stuck.ranks, stuck.when, stuck.line, text=stuck.text, time=1e300, victim=stuck.victim
    )


def _leaks(outcome: Outcome) -> list[Group]:
    groups: dict[str, Group] = {}
    for rank, state in outcome.states.items():
        for leak in state.torn.leaks if state.torn else ():
            key = re.sub(r"\d+", "#", leak)
            line = f"passed but left {leak} behind"
            group = groups.setdefault(key, Group([], "teardown", line, in_phase=True))
            group.ranks.append(rank)
            group.text += f"rank {rank} on {state.node} left {leak} behind\n"
    return list(groups.values())
