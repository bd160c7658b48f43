"""Merging of many ranks' reports of one test into one pytest report, the culprit first."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.errors import RankError
from pytest_mnode.logs.causes import is_peer_lost
from pytest_mnode.measurement import Verdict, listed
from pytest_mnode.outcome.describe import MOST_SHOWN, ranks_by, ranks_text
from pytest_mnode.outcome.failures import (
    Reports,
    deaths,
    different_calls,
    failures_of,
    is_skipped,
    is_xfailed,
    lost,
    of_equal_text,
    raised_in,
    sorted_failures,
)
from pytest_mnode.outcome.outcome import PHASES, Failure, Outcome, Phase, signature
from pytest_mnode.outcome.ranks_repr import Part, RanksRepr
from pytest_mnode.outcome.stuck import owners_of, stuck_failures

ADDED = "mnode_added"
"""Attribute of a merged report: values to add to it once no plugin changes it any more."""
OF_A_PLAIN_PASS = frozenset(vars(pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")))
OF_EVERY_REPORT = OF_A_PLAIN_PASS | {"wasxfail", "mnode_by_bounds"}


def added(reports: Iterable[pytest.TestReport]) -> dict[str, Any]:
    """Merged attributes of all ranks' reports that plain pytest reports do not have."""
    values: dict[str, list[Any]] = {}
    for report in {id(report): report for report in reports}.values():
        for name in vars(report).keys() - OF_EVERY_REPORT:
            values.setdefault(name, []).append(getattr(report, name))
    return {name: joined(of_ranks) for name, of_ranks in sorted(values.items())}


def joined(values: Sequence[Any]) -> Any:
    """Maps merged by key; lists and whole lines concatenated, equal ones once; else the first value
    that is not None."""
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: joined([value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, list) for value in values):
        entries: list[Any] = []
        for entry in (entry for value in values for entry in value):
            if entry not in entries:
                entries.append(entry)
        return entries
    if all(isinstance(value, str) and value.endswith("\n") for value in values):
        return "".join(dict.fromkeys(values))
    return next((value for value in values if value is not None), None)


def give_added(report: pytest.TestReport) -> None:
    """Add the values of ranks' plugins to their merged report, before values added here."""
    for name, value in vars(report).pop(ADDED, {}).items():
        own = getattr(report, name, None)
        setattr(report, name, value if own is None else joined([value, own]))


Recorded = Sequence[tuple[str, Any]]


def recorded_by_all(by_rank: Mapping[int, Recorded], ranks: int) -> list[tuple[str, Any]]:
    """Every value, in the order of the first rank that has it.

    A value that all ranks recorded keeps its name; otherwise the recording ranks are added to the
    name. ranks: number of all ranks, including those that died and so recorded nothing.
    """
    found: dict[tuple[str, str, int], tuple[Any, list[int]]] = {}
    for rank, recorded in by_rank.items():
        met: Counter[tuple[str, str]] = Counter()
        for name, value in recorded:
            met[name, repr(value)] += 1
            key = (name, repr(value), met[name, repr(value)])
            found.setdefault(key, (value, []))[1].append(rank)
    return [
        (name if len(those) == ranks else f"{name} ({ranks_text(those)})", value)
        for (name, _, _), (value, those) in found.items()
    ]


MOST_SECTIONS = 32
"""Maximum number of different captured outputs in one report."""
_LINE_CHARS = 200
_TELEMETRY = "c10d-NullHandler"
_BUILT_AT = re.compile(r"\[(?:enforce fail at )?/\S+:\d+\] ")
"""torch's and gloo's place in the sources that they were built from, which fills a line."""


def merge(
    outcome: Outcome,
    reports: Reports,
    nodeid: str,
    location: tuple[str, int | None, str],
    keywords: Mapping[str, Any],
    *,
    partial: Mapping[int, Sequence[pytest.TestReport]] | None = None,
) -> list[pytest.TestReport]:
    """Pytest reports of the phases, with those of subtests before that of the body.

    reports: the ranks' own, by rank and phase. partial: further reports, by rank.
    """
    apart = outcome.apart
    reports = {rank: r for rank, r in reports.items() if rank not in apart}
    failures = failures_of(outcome, reports)
    # Victims may be in the phase before: a rank may finish creating a group before the others.
    first = [g for g in failures if not g.victim] or failures
    blamed = min((_reported_in(g) for g in first), key=PHASES.index, default=None)
    merged: list[pytest.TestReport] = []
    for when in PHASES:
        have = {rank: r[when] for rank, r in reports.items() if when in r}
        report = pytest.TestReport(
            nodeid=nodeid,
            location=location,
            keywords=keywords,
            outcome="passed",
            longrepr=None,
            when=when,
            user_properties=[
                *outcome.properties,
                *recorded_by_all(
                    {rank: r.user_properties for rank, r in have.items()}, len(outcome.states)
                ),
            ],
            duration=max((r.duration for r in have.values()), default=0.0),
            start=min((r.start for r in have.values()), default=outcome.started),
            stop=max((r.stop for r in have.values()), default=outcome.stopped),
        )
        if when == blamed:
            report.outcome = "failed"
            report.longrepr = _repr(  # type: ignore[assignment]
                outcome, failures, lambda rank: _fine(outcome, rank)
            )
            report.sections = _sections(have, {r for g in failures for r in g.ranks})
            _blame(report, outcome, failures)
            report.mnode_hung = bool(outcome.timed_out)  # type: ignore[attr-defined]
            report.mnode_by_bounds = all(  # type: ignore[attr-defined]
                getattr(one.report, "mnode_by_bounds", False) for one in failures
            )
        elif have and blamed in (None, "teardown"):
            _take_over(report, have)
        elif have:
            report.sections = _sections(have, set())
        elif when == "call" or (when == "setup" and blamed is None):
            continue
        if when == "call" and merged[0].outcome != "passed":
            continue
        failed_first = sorted(have, key=lambda rank: (have[rank].passed, rank))
        setattr(report, ADDED, added(have[rank] for rank in failed_first))
        merged.append(report)
    _time(outcome, merged, blamed)
    further = _partial(outcome, partial or {})
    for report in further:
        report.mnode_further = True  # type: ignore[attr-defined]
    if broken := sum(report.failed for report in further):
        for report in merged:
            if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                report.outcome = "failed"
                report.longrepr = f"contains {broken} failed subtest{'s' if broken > 1 else ''}"
    merged[1:1] = further
    return merged


def _partial(
    outcome: Outcome, partial: Mapping[int, Sequence[pytest.TestReport]]
) -> list[pytest.TestReport]:
    """Reports other than those of the phases; those of one subtest in several ranks are merged.

    A subtest is the same if all attributes that plain reports lack are equal, and as many equal
    reports came before it in its rank.
    """
    found: dict[Any, dict[int, pytest.TestReport]] = {}
    times: dict[int, float] = {}
    for rank, reports in partial.items():
        met: Counter[Any] = Counter()
        for (time, _), report in zip(outcome.states[rank].partial, reports, strict=True):
            own = {k: v for k, v in vars(report).items() if k not in OF_EVERY_REPORT}
            key = type(report), report.when, signature(repr(sorted(own.items())))
            met[key] += 1
            found.setdefault((key, met[key]), {})[rank] = report
            times[id(report)] = time
    return [
        _one_partial(outcome, have, {rank: times[id(r)] for rank, r in have.items()})
        for have in found.values()
    ]


def _one_partial(
    outcome: Outcome, have: dict[int, pytest.TestReport], times: dict[int, float]
) -> pytest.TestReport:
    failed = {rank: report for rank, report in have.items() if report.failed}
    report = copy.copy(next(iter((failed or have).values())))
    report.duration = max(r.duration for r in have.values())
    if not failed:
        _take_over(report, have)
        return report

    def fine(rank: int) -> str:
        return have[rank].outcome if rank in have else "did not report it"

    failures = sorted(raised_in(str(report.when), failed, times), key=lambda g: (g.victim, g.time))
    report.longrepr = _repr(outcome, failures, fine)  # type: ignore[assignment]
    report.sections = _sections(have, set(failed))
    _blame(report, outcome, failures)
    return report


def _reported_in(failure: Failure) -> Phase:
    """The phase whose report shows `failure`.

    A fixture that raises in teardown leaves the test passed and is an error of its own, as always
    in pytest. A rank that died or hung in teardown never reported a pass: the test failed.
    """
    if failure.when == "teardown" and not failure.in_phase:
        return "call"
    return failure.when  # type: ignore[return-value]


def _blame(report: pytest.TestReport, outcome: Outcome, failures: Sequence[Failure]) -> None:
    """Note on a report the culprit of the failures that no measurement explains, if there is one.

    Its words name the ranks of the first, and the peer that they lost. The ranks of later failures
    that are not caused by the first may have causes of their own. If all ranks failed, any may be
    the culprit. A victim's culprit is in the test's own report.
    """
    if (culprit := _culprit(outcome, failures)) is not None:
        report.mnode_culprit = culprit.record  # type: ignore[attr-defined]


def _culprit(outcome: Outcome, failures: Sequence[Failure]) -> Culprit | None:
    own = [one for one in failures if not one.victim and not _measured(outcome, one)]
    if not own or len({rank for one in own for rank in one.ranks}) == len(outcome.states):
        return None
    first, *later = ({outcome.nodes[rank] for rank in one.ranks} for one in own)
    may_be = [[name] for nodes in later for name in nodes]
    words = outcome.places(own[0].ranks)
    parts = Parts(ranks=tuple(rank for one in own for rank in one.ranks))
    if (lost := own[0].lost_peer) is not None:
        at = owners_of(outcome).get(lost, {})
        peer = " on ".join(filter(None, [lost, listed(at)]))
        if at and len(first) > 1:  # of several pairs, the node that all have in common
            return Culprit(f"{peer}, the peer that {words} lost", either=[at], parts=parts)
        words = f"{words} or {f'its peer {peer}' if lost else 'a peer'}"
        return Culprit(words, either=[[*first, *at] if at else ()], parts=parts)
    if own[0].of_a_pair:
        return Culprit(words, either=[first, *may_be], parts=parts)
    return Culprit(words, first, may_be, parts)


def _measured(outcome: Outcome, failure: Failure) -> bool:
    """Whether its ranks broke a bound of a measurement that names a culprit."""
    ended = [outcome.states[rank].torn_down for rank in failure.ranks]
    return all(
        end is not None and any(m.verdict is Verdict.FAIL and m.culprit for m in end.measurements)
        for end in ended
    )


def _time(outcome: Outcome, merged: list[pytest.TestReport], blamed: str | None) -> None:
    """Add the time that no rank's report accounts for to the phase that failed."""
    if blamed is not None:
        spent = outcome.stopped - outcome.started - sum(r.duration for r in merged)
        for report in merged:
            if report.when == blamed and spent > 0:
                report.duration += spent


def _take_over(report: pytest.TestReport, have: dict[int, pytest.TestReport]) -> None:
    """Set the outcome of a phase without failures: skipped, xfailed, xpassed or passed."""
    reports = list(have.values())
    xfailed = [r for r in reports if is_xfailed(r)]
    skipped = [r for r in reports if is_skipped(r)]
    xpassed = [r for r in reports if r.passed and hasattr(r, "wasxfail")]
    # An xfail in one rank counts, although other ranks pass, or fail because the mark is strict.
    chosen = (xfailed or skipped or xpassed or [r for r in reports if r.passed])[:1]
    for one in chosen:
        report.outcome = one.outcome
        report.longrepr = one.longrepr
        if hasattr(one, "wasxfail"):
            report.wasxfail = one.wasxfail
    report.sections = _sections(have, set())


def _sections(have: dict[int, pytest.TestReport], first: set[int]) -> list[tuple[str, str]]:
    """Captured outputs, equal texts merged, those of failed ranks first."""
    by_text: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(have, key=lambda r: (r not in first, r)):
        for name, text in have[rank].sections:
            if kept := _without_telemetry(text):
                by_text.setdefault((name, kept), []).append(rank)
    sections = [(f"{name} ({ranks_text(ranks)})", text) for (name, text), ranks in by_text.items()]
    if len(sections) > MOST_SECTIONS:
        hidden = list(by_text.values())[MOST_SECTIONS:]
        ranks = {rank for ranks in hidden for rank in ranks}
        note = f"{len(hidden)} further sections of {ranks_text(ranks)} are not shown"
        sections[MOST_SECTIONS:] = [("Captured output of other ranks", note)]
    return sections


def _without_telemetry(text: str) -> str:
    """torch logs a failed collective a second time, as one long line for machines."""
    if _TELEMETRY not in text:
        return text
    return "".join(line for line in text.splitlines(True) if _TELEMETRY not in line)


def _repr(outcome: Outcome, failures: Sequence[Failure], fine: Callable[[int], str]) -> RanksRepr:
    """fine: function from a rank that is in no failure to its outcome as text."""
    parts = []
    for number, failure in enumerate(failures[:MOST_SHOWN]):
        title = outcome.places(failure.ranks)
        if number == 0 and len(failures) > 1:
            title += ": first"
        elif failure.victim:
            title += ": caused by the first failure"
        parts.append(Part(title, failure.report, failure.text.rstrip()))
    if hidden := failures[MOST_SHOWN:]:
        ranks = {rank for failure in hidden for rank in failure.ranks}
        lines = (failure.line[:_LINE_CHARS] for failure in hidden)
        title = f"{outcome.places(ranks)}: {len(hidden)} further failures"
        parts.append(Part(title, None, listed(lines, MOST_SHOWN, "\n")))
    named = {rank for g in failures for rank in g.ranks}
    others = ranks_by({rank: fine(rank) for rank in sorted(set(outcome.states) - named)})
    for words, alike in others.items():
        parts.append(Part(f"{outcome.places(alike)}: {words}", None, ""))
    first = failures[0]
    crash = getattr(first.report.longrepr, "reprcrash", None) if first.report else None
    message = f"{outcome.places(first.ranks)}: {_BUILT_AT.sub('', first.line)}"
    path = str(crash.path) if crash is not None else ""
    return RanksRepr(tuple(parts), message, path, int(crash.lineno) if crash is not None else 0)


def _fine(outcome: Outcome, rank: int) -> str:
    """Outcome of a rank without a failure."""
    state = outcome.states[rank]
    if any(report.outcome == "failed" for _, report in state.partial):
        return "failed in a subtest"
    if state.absent:
        return "does not have this test"
    skips = [p for p in state.reports.values() if p.outcome == "skipped"]
    if skips:
        return "failed as expected" if any("wasxfail" in p.data for p in skips) else "skipped"
    if "call" in state.reports and state.torn_down is not None:
        return "passed"
    stopped = state.stuck_in or (outcome.quit and not state.torn_down)
    return "stopped before it ended the test" if stopped else "ended the test"


def function_error(outcome: Outcome) -> RankError:
    """The error of a function that failed in some ranks of a world."""
    raised = {}
    for rank, state in outcome.states.items():
        if (end := state.torn_down) is not None and end.problem:
            line = end.summary.splitlines()[-1] if end.summary else ""
            victim = is_peer_lost(line)
            raised[rank] = Failure([rank], "call", line, text=end.problem, victim=victim)
    failures = [*of_equal_text(outcome, raised), *deaths(outcome), *lost(outcome)]
    failures += different_calls(outcome, failures)
    explained = any(not g.victim for g in failures)
    failures += stuck_failures(outcome, explained)
    failures = sorted_failures(failures)
    blocks = [
        f"[{outcome.places(f.ranks)}] {f.text.rstrip() or f.line}" for f in failures[:MOST_SHOWN]
    ]
    if hidden := failures[MOST_SHOWN:]:
        ranks = {rank for failure in hidden for rank in failure.ranks}
        blocks.append(f"[{outcome.places(ranks)}] {len(hidden)} further failures")
    culprit = _culprit(outcome, failures)
    return RankError("\n\n".join(blocks), culprit.record if culprit is not None else None)
