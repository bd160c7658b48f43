"""Many ranks' accounts of one test to one pytest report that names the culprit first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pytest_mnode.world.conduct import Outcome, RankState
from pytest_mnode.world.describe import death_line, places, ranks_text
from pytest_mnode.world.ranksrepr import Part, RanksRepr
from pytest_mnode.world.stacks import Where, main_thread, parse, tidy, where

_PHASES = ("setup", "call", "teardown")
_PEER_LOST = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|recvd 0 bytes|"
    r"Socket closed|remote (?:process )?(?:exited|closed)|NCCL (?:communicator was aborted|watchdog)|"
    r"ncclRemoteError|ncclSystemError|Timed out waiting|failed to recv, got 0 bytes|"
    r"connection was (?:closed|reset)|DistNetworkError|Connection was likely closed",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|rank\d+(?=[/.])")


@dataclass(slots=True)
class Group:
    """Ranks to which the same happened."""

    ranks: list[int]
    when: str
    line: str
    """One line, for the summary."""
    report: pytest.TestReport | None = None
    text: str = ""
    time: float = 0.0
    victim: bool = False


def merge(
    outcome: Outcome,
    reports: dict[int, dict[str, pytest.TestReport]],
    nodeid: str,
    location: tuple[str, int | None, str],
    keywords: dict[str, object],
) -> list[pytest.TestReport]:
    """Pytest reports by phase. `reports` are the ranks' own, by rank and phase."""
    groups = _failures(outcome, reports)
    blamed = min((g.when for g in groups), key=_PHASES.index, default=None)
    merged: list[pytest.TestReport] = []
    for when in _PHASES:
        have = {rank: r[when] for rank, r in reports.items() if when in r}
        template = have[min(have)] if have else None
        report = _blank(outcome, nodeid, location, keywords, when, list(have.values()))
        if when == blamed:
            report.outcome = "failed"
            report.longrepr = _repr(outcome, groups)  # type: ignore[assignment]
            report.sections = _sections(have, {r for g in groups for r in g.ranks})
            report.mnode_culprit = _culprit(outcome, groups[0])  # type: ignore[attr-defined]
        elif template is not None and blamed is None:
            _take_over(report, have)
        elif template is not None:
            report.sections = _sections(have, set())
        if when == "call" and (not have and blamed != "call"):
            continue
        if when == "call" and merged[0].outcome != "passed":
            continue
        merged.append(report)
    return merged


def _culprit(outcome: Outcome, first: Group) -> str | None:
    """Where it began; nothing that happened to all ranks points at one."""
    nodes = {rank: s.node for rank, s in outcome.states.items()}
    return None if len(first.ranks) == len(nodes) else places(first.ranks, nodes, len(nodes))


def _blank(
    outcome: Outcome,
    nodeid: str,
    location: tuple[str, int | None, str],
    keywords: dict[str, object],
    when: str,
    have: Sequence[pytest.TestReport],
) -> pytest.TestReport:
    world = outcome.world
    return pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords=keywords,
        outcome="passed",
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        sections=[],
        duration=max((r.duration for r in have), default=0.0),
        start=min((r.start for r in have), default=outcome.started),
        stop=max((r.stop for r in have), default=outcome.stopped),
        user_properties=[
            ("mnode.nodes", ",".join(world.nodes)),
            ("mnode.ranks", str(world.shape.size)),
            *(p for r in have[:1] for p in r.user_properties),
        ],
    )


def _take_over(report: pytest.TestReport, have: dict[int, pytest.TestReport]) -> None:
    """Outcome of a phase in which nothing failed: skipped, xfailed, xpassed or passed."""
    xfailed = [r for r in have.values() if r.skipped and hasattr(r, "wasxfail")]
    skipped = [r for r in have.values() if r.skipped and not hasattr(r, "wasxfail")]
    xpassed = [r for r in have.values() if r.passed and hasattr(r, "wasxfail")]
    chosen = (xfailed or skipped or xpassed or list(have.values()))[0]
    report.outcome = chosen.outcome
    report.longrepr = chosen.longrepr
    if hasattr(chosen, "wasxfail"):
        report.wasxfail = chosen.wasxfail  # type: ignore[attr-defined]
    report.sections = _sections(have, set())


def _sections(have: dict[int, pytest.TestReport], first: set[int]) -> list[tuple[str, str]]:
    """Captured output, equal texts once, those of failed ranks first."""
    by_text: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(have, key=lambda r: (r not in first, r)):
        for name, text in have[rank].sections:
            by_text.setdefault((name, text), []).append(rank)
    return [(f"{name} ({ranks_text(ranks)})", text) for (name, text), ranks in by_text.items()]


def _failures(outcome: Outcome, reports: dict[int, dict[str, pytest.TestReport]]) -> list[Group]:
    """All that went wrong, culprits first, each in the order of time."""
    groups = _raised(outcome, reports)
    groups += [_death(state) for state in outcome.states.values() if state.death]
    groups += _lost(outcome)
    groups += _unequal_skips(outcome, reports)
    groups += _problems(outcome)
    groups += _stuck(outcome, bool([g for g in groups if not g.victim]))
    if not groups:
        groups = _leaks(outcome)
    if groups and all(g.victim for g in groups):
        min(groups, key=lambda g: g.time).victim = False
    return sorted(groups, key=lambda g: (g.victim, g.time))


def _raised(outcome: Outcome, reports: dict[int, dict[str, pytest.TestReport]]) -> list[Group]:
    xfailed = any(
        r.skipped and hasattr(r, "wasxfail") for phases in reports.values() for r in phases.values()
    )
    by_text: dict[str, Group] = {}
    for rank, phases in reports.items():
        for when, report in phases.items():
            if not report.failed:
                continue
            if xfailed and "[XPASS(strict)]" in str(report.longrepr):
                continue  # another rank did fail, as the mark expects of the test
            key = when + _ADDRESS.sub("0x", report.longreprtext)
            time = outcome.states[rank].failed_at or 0.0
            group = by_text.get(key)
            if group is None:
                line = _crash_line(report)
                by_text[key] = Group([rank], when, line, report, time=time)
            else:
                group.ranks.append(rank)
                group.time = min(group.time, time)
    groups = list(by_text.values())
    for group in groups:
        group.victim = bool(_PEER_LOST.search(group.line))
    return groups


def _crash_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return str(text).strip()


def _death(state: RankState) -> Group:
    death = state.death
    assert death is not None
    text = death_line(death) + f", in {_phase_words(state)}"
    if death.fault:
        text += f"\n\n{tidy(death.fault)}"
    for title, content in (("error", death.error), ("output", death.output), ("log", death.log)):
        if content.strip():
            text += f"\n\nend of its {title}:\n{content.rstrip()}"
    when = _phase_of(state)
    line = death_line(death).split(" on ", 1)[1].split(" ", 1)[1]
    return Group([state.rank], when, line, text=text, time=state.failed_at or 0.0)


def _phase_of(state: RankState) -> str:
    """Where a death is reported: a rank that ended its body and died is a failed teardown."""
    return state.phase


def _phase_words(state: RankState) -> str:
    if "teardown" in state.reports:
        return "teardown, after its last report"
    return {"setup": "setup", "call": "the test", "teardown": "teardown"}[state.phase]


def _lost(outcome: Outcome) -> list[Group]:
    by_text: dict[str, Group] = {}
    for state in outcome.states.values():
        if state.lost:
            group = by_text.setdefault(
                state.lost,
                Group([], _phase_of(state), state.lost, text=state.lost, time=state.failed_at or 0),
            )
            group.ranks.append(state.rank)
    return list(by_text.values())


def _problems(outcome: Outcome) -> list[Group]:
    by_text: dict[str, Group] = {}
    for state in outcome.states.values():
        if state.torn is not None and state.torn.problem:
            text = state.torn.problem
            line = text.splitlines()[0]
            group = by_text.setdefault(
                text, Group([], "setup" if not state.reports else state.phase, line, text=text)
            )
            group.ranks.append(state.rank)
            group.time = state.failed_at or 0.0
    return list(by_text.values())


def _unequal_skips(
    outcome: Outcome, reports: dict[int, dict[str, pytest.TestReport]]
) -> list[Group]:
    for when in ("setup", "call"):
        have = {rank: r[when] for rank, r in reports.items() if when in r}
        skipped = [r for r in have if have[r].skipped and not hasattr(have[r], "wasxfail")]
        if not skipped or len(skipped) == len(outcome.states):
            continue
        others = sorted(set(outcome.states) - set(skipped))
        reason = have[skipped[0]].longrepr
        why = str(reason[2]) if isinstance(reason, tuple) else str(reason)
        why = why.removeprefix("Skipped: ")
        line = f"skipped ({why}), but {ranks_text(others)} did not"
        text = f"{line}; a test is skipped by all ranks or by none"
        return [Group(skipped, when, line, text=text)]
    return []


def _stuck(outcome: Outcome, explained: bool) -> list[Group]:
    """Ranks that did not come to an end: who waited, and who did not come."""
    stuck = {r: s for r, s in outcome.states.items() if s.stuck_in}
    if not stuck:
        return []
    at = {rank: where(main_thread(parse(s.stack or ""), None)) for rank, s in stuck.items()}
    waiting = [r for r in stuck if at[r].collective]
    absent = [r for r in stuck if not at[r].collective]
    groups: list[Group] = []
    for ranks, waits in ((absent, False), (waiting, True)):
        by_place: dict[str, list[int]] = {}
        for rank in ranks:
            by_place.setdefault(str(at[rank]), []).append(rank)
        for same in by_place.values():
            victim = explained or (waits and bool(absent or _left(outcome)))
            groups.append(_stuck_group(outcome, same, at, waiting, victim))
    if not explained and waiting:
        groups += _left_group(outcome, at, waiting)
    return groups


def _left(outcome: Outcome) -> list[int]:
    """Ranks that ended the body of a test that others still wait in."""
    if not outcome.timed_out:
        return []
    return [r for r, s in outcome.states.items() if s.body_done and not s.stuck_in and not s.gone]


def _left_group(outcome: Outcome, at: dict[int, Where], waiting: list[int]) -> list[Group]:
    left = _left(outcome)
    if not left:
        return []
    line = f"left the test without {_wait_text(at, waiting)}"
    return [Group(left, "call", line, text=line)]


def _wait_text(at: dict[int, Where], waiting: Sequence[int]) -> str:
    first = at[waiting[0]]
    place = first.frame.place if first.frame else "?"
    return f"entering the {first.collective} ({place}) that {ranks_text(waiting)} wait in"


def _stuck_group(
    outcome: Outcome,
    ranks: list[int],
    at: dict[int, Where],
    waiting: list[int],
    victim: bool,
) -> Group:
    state = outcome.states[ranks[0]]
    here = at[ranks[0]]
    phase = state.stuck_in
    when = "call" if phase == "call" else phase
    limit = f"no end within {outcome.timeout_s:g} s" if outcome.timed_out else "stopped by us"
    if not state.stack:
        line = f"{limit}, and it gave no stack"
    elif here.collective:
        line = f"{limit}: waits in {here.collective} at {here}"
    elif waiting:
        line = f"{limit}: absent, never {_wait_text(at, waiting)}; it is at {here}"
    else:
        line = f"{limit}: it is at {here}"
    stacks = "\n\n".join(
        f"stack of rank {r} on {outcome.states[r].node}:\n{tidy(outcome.states[r].stack or 'none')}"
        for r in ranks
    )
    return Group(ranks, when, line, text=f"{line}\n\n{stacks}", victim=victim, time=1e300)


def _leaks(outcome: Outcome) -> list[Group]:
    by_text: dict[str, Group] = {}
    for rank, state in outcome.states.items():
        for leak in state.torn.leaks if state.torn else ():
            key = re.sub(r"\d+", "#", leak)
            line = f"passed but left {leak} behind"
            group = by_text.setdefault(key, Group([], "teardown", line))
            group.ranks.append(rank)
            group.text += f"rank {rank} on {state.node} left {leak} behind\n"
    return list(by_text.values())


def _repr(outcome: Outcome, groups: Sequence[Group]) -> RanksRepr:
    nodes = {rank: s.node for rank, s in outcome.states.items()}
    size = outcome.world.shape.size
    parts = []
    for number, group in enumerate(groups):
        title = places(group.ranks, nodes, size)
        if number == 0 and len(groups) > 1:
            title += ": first"
        elif group.victim:
            title += ": because of it"
        parts.append(Part(title, group.report, group.text.rstrip()))
    named = {rank for g in groups for rank in g.ranks}
    fine = sorted(set(nodes) - named)
    if fine:
        parts.append(Part(f"{places(fine, nodes, size)}: {_fine(outcome, fine)}", None, ""))
    first = groups[0]
    crash = getattr(first.report.longrepr, "reprcrash", None) if first.report else None
    message = f"{places(first.ranks, nodes, size)}: {first.line}"
    path = str(crash.path) if crash is not None else ""
    return RanksRepr(tuple(parts), message, path, int(crash.lineno) if crash is not None else 0)


def _fine(outcome: Outcome, ranks: Sequence[int]) -> str:
    states = [outcome.states[r] for r in ranks]
    skipped = [s for s in states if any(p.outcome == "skipped" for p in s.reports.values())]
    if skipped:
        return "skipped"
    if all(s.torn is not None for s in states):
        return "passed"
    return "ended the test"


def function_error(outcome: Outcome) -> str:
    """What to say where a function failed in some ranks of a world."""
    nodes = {rank: s.node for rank, s in outcome.states.items()}
    size = outcome.world.shape.size
    by_text: dict[str, Group] = {}
    for rank, state in outcome.states.items():
        if state.returned is not None and state.returned.value is None:
            key = _ADDRESS.sub("0x", state.returned.error)
            line = state.returned.summary.splitlines()[-1] if state.returned.summary else ""
            group = by_text.setdefault(
                key, Group([], "call", line, text=state.returned.error, time=state.failed_at or 0)
            )
            group.ranks.append(rank)
            group.victim = bool(_PEER_LOST.search(line))
    groups = [*by_text.values(), *(_death(s) for s in outcome.states.values() if s.death)]
    groups += _lost(outcome)
    groups += _stuck(outcome, bool([g for g in groups if not g.victim]))
    groups.sort(key=lambda g: (g.victim, g.time))
    return "\n\n".join(
        f"[{places(g.ranks, nodes, size)}] {g.text.rstrip() or g.line}" for g in groups
    )
