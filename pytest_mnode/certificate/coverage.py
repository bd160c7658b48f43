"""Coverage of a certificate: the state of each node, rail and path, with date and evidence.

`coverage_of` finds the states after one run, from the culprits of its failures; `merged` adds those
that earlier runs of the same cluster found. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.results import CaseResult, CriterionResult, CriterionVerdict
from pytest_mnode.certificate.run_facts import RunFacts, UtcTime
from pytest_mnode.certificate.text import first_line
from pytest_mnode.culprit import Culprit
from pytest_mnode.launchers.hosts import compress, named_nodes
from pytest_mnode.measurement import Verdict
from pytest_mnode.path_rates import BY_LETTER, NOT_MEASURED, PathRates, State, parts

_NEVER = "no run has tested it"
_WORSE = (State.PASSED, State.NOT_TESTED, State.SUSPECT, State.FAILED)


@dataclass(frozen=True)
class RailCoverage:
    """A NIC of a node, or a group of NICs that one rank uses.

    mbits_s: rate of the slower direction, with the best partner; None if not measured.
    """

    name: str
    state: State
    mbits_s: float | None
    date: UtcTime | None = None


@dataclass(frozen=True)
class NodeCoverage:
    """The state of a node.

    date: end of the run that found the state; None if no run tested the node. until: when a pass
    expires; None if the state is not a pass. evidence: the reason for the state, in words.
    devices: its devices that are to blame, as far as known, all of them.
    """

    name: str
    state: State
    date: UtcTime | None
    until: UtcTime | None
    evidence: str
    rails: tuple[RailCoverage, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathCoverage:
    """The paths that one run measured; a later measurement of the same path replaces them.

    date: end of the run. evidence: how they were measured. See `PathRates` for the tables.
    """

    date: UtcTime
    evidence: str
    rates: PathRates


@dataclass(frozen=True)
class StateCounts:
    """Number of nodes, or of ordered paths, in each state."""

    passed: NonNegativeInt
    failed: NonNegativeInt
    suspect: NonNegativeInt
    not_tested: NonNegativeInt

    @classmethod
    def of(cls, states: Iterable[State], total: int) -> StateCounts:
        """Counts of `states`; the rest of `total` were not tested."""
        found = Counter(states)
        passed, failed, suspect = (
            found[state] for state in (State.PASSED, State.FAILED, State.SUSPECT)
        )
        return cls(passed, failed, suspect, total - passed - failed - suspect)


@dataclass(frozen=True)
class Coverage:
    """The states of the cluster's nodes and paths, from this run and earlier ones.

    nodes: every node with a name. unnamed: number of further nodes of the spec that no run has
    seen: not tested. paths: the latest run first; an ordered pair in none of them was not tested.
    """

    nodes: tuple[NodeCoverage, ...]
    unnamed: NonNegativeInt = 0
    paths: tuple[PathCoverage, ...] = ()

    def __post_init__(self) -> None:
        ends = {name for block in self.paths for name in block.rates.nodes}
        if unknown := ends - {node.name for node in self.nodes}:
            raise ValueError(f"paths of {compress(unknown)}, which are not among the nodes")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_nodes(self) -> int:
        """Number of nodes of the cluster."""
        return len(self.nodes) + self.unnamed

    @computed_field  # type: ignore[prop-decorator]
    @property
    def nodes_by_state(self) -> StateCounts:
        """Counts of all nodes, including those without a name."""
        return StateCounts.of((node.state for node in self.nodes), self.total_nodes)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_paths(self) -> int:
        """Number of ordered pairs of nodes."""
        return self.total_nodes * (self.total_nodes - 1)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def paths_by_state(self) -> StateCounts:
        """Counts of all ordered pairs of nodes."""
        return StateCounts.of((state for _, _, state, _ in self.each_path()), self.total_paths)

    @property
    def all_passed(self) -> bool:
        """Whether every node has an unexpired pass; False if the cluster has no known node."""
        return 0 < self.total_nodes == self.nodes_by_state.passed

    @property
    def failed_paths(self) -> bool:
        """Whether a path failed when it was last measured."""
        letter = State.FAILED.letter
        if not any(letter in row for block in self.paths for row in block.rates.states):
            return False  # a fast check, for a large cluster too
        return any(path[2] is State.FAILED for path in self.each_path())

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Groups of passed nodes with no measured path between them; () if no path was measured."""
        tables = [block.rates for block in self.paths]
        return parts(self.names(State.PASSED), tables) if tables else ()

    @property
    def until(self) -> datetime | None:
        """When the first pass expires; None if there is none."""
        return min((node.until for node in self.nodes if node.until), default=None)

    def names(self, state: State) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.state is state)

    def each_path(self) -> Iterator[tuple[str, str, State, float | None]]:
        """Sender, receiver, state and Mbit/s of every tried path, from its latest run."""
        seen: set[tuple[str, str]] = set()
        last = len(self.paths) - 1
        for number, block in enumerate(self.paths):
            for path in block.rates.paths():
                if path[2] is not State.NOT_TESTED and path[:2] not in seen:
                    if number < last:
                        seen.add(path[:2])
                    yield path

    def nodes_in_words(self) -> str:
        """Nodes by state: "passed: node[0-1]; failed: node2; not tested: node3 and 12 others"."""
        found: dict[str, list[str]] = {state.value: [] for state in State}
        for node in self.nodes:
            # Tested in part, or with a pass that has expired.
            took_part = node.state is State.NOT_TESTED and node.date is not None
            found.setdefault("no pass" if took_part else node.state.value, []).append(node.name)
        words = {state: [compress(names)] for state, names in found.items() if names}
        if self.unnamed:
            others = f"{self.unnamed} other{'s' * (self.unnamed > 1)}"
            words.setdefault(State.NOT_TESTED.value, []).append(others)
        return "; ".join(f"{state}: {' and '.join(names)}" for state, names in words.items())

    @property
    def measured_paths(self) -> int:
        """Number of ordered pairs whose path a run has measured."""
        return self.total_paths - self.paths_by_state.not_tested

    def share_of_paths(self) -> str:
        """Measured share, such as "46.6 % of paths"; "" if all are measured, or none."""
        measured, total = self.measured_paths, self.total_paths
        return f"{_percent(measured / total)} of paths" if self.paths and measured < total else ""

    def paths_in_words(self) -> str:
        """Paths: "12 of 12 measured (100 %); failed: node1→node3 (95 Mbit/s)"; "" without any."""
        if not self.paths:
            return ""
        measured = self.measured_paths
        share = measured / self.total_paths
        words = [f"{measured} of {self.total_paths} measured ({_percent(share)})"]
        for state in (State.FAILED, State.SUSPECT):
            bad = [path for path in self.each_path() if path[2] is state]
            if bad:
                shown = ", ".join(f"{a}→{b}{_rate(rate)}" for a, b, _, rate in bad[:_MOST_NAMED])
                more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
                words.append(f"{state.value}: {shown}{more}")
        return "; ".join(words)


_MOST_NAMED = 4


def last_passes(kept: Iterable[Coverage]) -> dict[str, datetime]:
    """When the latest of these runs ended in which a node passed, by its name."""
    passes = [
        (node.date, node.name)
        for coverage in kept
        for node in coverage.nodes
        if node.state is State.PASSED and node.date is not None
    ]
    return {name: date for date, name in sorted(passes)}


def _percent(share: float) -> str:
    """Rounded down, so that 99.96 % does not read as all."""
    return f"{int(share * 1000) / 10:g} %"


def _rate(mbits_s: float | None) -> str:
    return " (no reading)" if mbits_s is None else f" ({rate_text(mbits_s)})"


def rate_text(mbits_s: float) -> str:
    """A rate in a suitable unit, such as "95 Mbit/s" or "171 Gbit/s"."""
    return f"{mbits_s / 1000:.4g} Gbit/s" if mbits_s >= 10_000 else f"{mbits_s:.4g} Mbit/s"


def oldest_first(nodes: Iterable[NodeCoverage]) -> list[NodeCoverage]:
    """Nodes that are not tested first, then those that were tested longest ago."""

    def key(node: NodeCoverage) -> tuple[bool, float]:
        return node.state is not State.NOT_TESTED, node.date.timestamp() if node.date else 0.0

    return sorted(nodes, key=key)


def merged(
    now: Coverage,
    earlier: Sequence[Coverage],
    moment: datetime,
    oldest: datetime | None = None,
) -> Coverage:
    """The latest state of each node and path; an expired pass does not count.

    earlier: coverage of the same cluster and spec, in any order. moment: the end of the latest run.
    oldest: path passes of this date or before have expired; None if none has.
    """
    known: dict[str, NodeCoverage] = {}
    rails: dict[str, dict[str, RailCoverage]] = {}
    before = [_by_this_clock(node, moment) for coverage in earlier for node in coverage.nodes]
    every = [*before, *now.nodes]
    for node in sorted(every, key=lambda node: node.date.timestamp() if node.date else -math.inf):
        tested = node.state is not State.NOT_TESTED or node.name not in known
        if tested or known[node.name].state is State.NOT_TESTED:
            known[node.name] = _unexpired(node, moment)
        rails.setdefault(node.name, {}).update({rail.name: rail for rail in node.rails})
    old = [b for coverage in earlier for b in coverage.paths if b.date <= moment]
    if oldest is not None:
        old = [b if b.date > oldest else without_passes(b) for b in old]
    blocks = {b.date: b for b in (*old, *now.paths)}
    latest = [blocks[date] for date in sorted(blocks, reverse=True)]
    named = [node.name for node in now.nodes]
    order = [*named, *sorted(known.keys() - set(named))]
    return Coverage(
        tuple(replace(known[name], rails=tuple(rails[name].values())) for name in order),
        max(0, now.total_nodes - len(known)),
        tuple(_that_still_count(latest)),
    )


def _that_still_count(latest: Sequence[PathCoverage]) -> Iterator[PathCoverage]:
    """Blocks with a path that no later block has."""
    seen: set[tuple[str, str]] = set()
    for block in latest:
        tried = {p[:2] for p in block.rates.paths() if p[2] is not State.NOT_TESTED}
        if tried - seen:
            yield block
        seen |= tried


def without_passes(block: PathCoverage) -> PathCoverage:
    """The block, with its passed paths as not tested."""
    states = tuple(
        row.replace(State.PASSED.letter, State.NOT_TESTED.letter) for row in block.rates.states
    )
    return replace(block, rates=replace(block.rates, states=states))


def _by_this_clock(node: NodeCoverage, moment: datetime) -> NodeCoverage:
    """Drop a state dated after this run: after a wrong clock it would count for ever."""
    if node.date is None or node.date <= moment:
        return node
    end = f"{node.date:%Y-%m-%d %H:%M UTC}"
    why = f"an earlier run that tested it ended after this run, {end}: a wrong clock"
    return replace(node, state=State.NOT_TESTED, date=None, until=None, evidence=why)


def _unexpired(node: NodeCoverage, moment: datetime) -> NodeCoverage:
    if node.until is None or node.until > moment:
        return node
    why = f"its pass expired on {node.until:%Y-%m-%d %H:%M UTC}"
    return replace(node, state=State.NOT_TESTED, until=None, evidence=why)


_NODES: TypeAdapter[list[NodeCoverage]] = TypeAdapter(list[NodeCoverage])


def coverage_json(nodes: Sequence[NodeCoverage]) -> list[dict[str, Any]]:
    """States of nodes as plain values."""
    data: list[dict[str, Any]] = _NODES.dump_python(list(nodes), mode="json")
    return data


def coverage_of(run: RunFacts, criteria: Sequence[CriterionResult]) -> Coverage:
    """The coverage of one run.

    A node has passed if every criterion passed, or failed only because of other nodes, all named.
    It is suspect if a criterion failed or was inconclusive and named no culprit.

    The other end of a path to a failed node is neither failed nor suspect: the failed node explains
    the path, and a healthy node sent to repair is one less to hand over. It has not passed either,
    because its own test did not pass: it is not tested until the failed node is repaired. So it is
    with a case that names nobody, where another case of the criterion names a node
    or a path.
    """
    bad, blamed = _blamed_in(run, criteria), _devices_in(run, criteria)
    missing, met_by = _missing(run, criteria), _met_by(criteria)
    rates = [rates for c in criteria for case in c.cases for rates in case.paths]
    until = run.from_end(1)
    passed = [c.name for c in criteria if c.verdict is CriterionVerdict.PASS]
    nodes = []
    for name in run.nodes:
        state, evidence = bad.get(name, (State.PASSED, ""))
        if state is State.PASSED and (why := missing or _not_met(name, met_by)):
            state, evidence = State.NOT_TESTED, why
        good = state is State.PASSED
        evidence = f"passed: {', '.join(passed)}" if good else evidence
        rails = tuple(rail for one in rates for rail in _rails(one, name, run.end))
        expiry, devices = until if good else None, tuple(sorted(blamed.get(name, ())))
        nodes.append(NodeCoverage(name, state, run.end, expiry, evidence, rails, devices))
    others = tuple(dict.fromkeys(set(run.not_covered) - set(run.nodes)))
    nodes += [NodeCoverage(n, State.NOT_TESTED, None, None, _NEVER) for n in sorted(others)]
    return Coverage(
        tuple(nodes),
        max(0, (run.cluster_nodes or 0) - len(nodes)),
        tuple(PathCoverage(run.end, f"pairs of {len(one.nodes)} nodes", one) for one in rates),
    )


def _missing(run: RunFacts, criteria: Sequence[CriterionResult]) -> str:
    """Why no node can have passed; empty if every promised criterion judged something."""
    why = [*run.incomplete]
    silent = (c for c in criteria if c.verdict is CriterionVerdict.DID_NOT_RUN or c.silence)
    why += [c.reason for c in silent if c.reason]
    if not any(c.promised for c in criteria):
        why.append("the spec promises nothing")
    return first_line("; ".join(why))


def _met_by(criteria: Sequence[CriterionResult]) -> dict[str, frozenset[str] | None]:
    """Nodes with a test of each promised criterion; None for all, if a test names no node."""
    return {
        c.name: None
        if any(not case.nodes for case in c.judged)
        else frozenset(name for case in c.judged for name in case.nodes)
        for c in criteria
        if c.promised and c.excuse is None
    }


def _not_met(name: str, met_by: Mapping[str, frozenset[str] | None]) -> str:
    """A reason that names the promised criteria without a test on this node; empty if none."""
    left_out = [n for n, nodes in met_by.items() if nodes is not None and name not in nodes]
    return f"no test of {', '.join(left_out)} ran on it" if left_out else ""


def _blamed_in(run: RunFacts, criteria: Sequence[CriterionResult]) -> dict[str, tuple[State, str]]:
    """Nodes that failed, are suspect or were not tested, with the reason.

    The worst state counts, and of equal states the first.
    """
    unmet = [
        (criterion, case)
        for criterion in criteria
        if criterion.verdict in (CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE)
        for case in criterion.judged
        if case.verdict is not CriterionVerdict.PASS
    ]
    here, failed = frozenset(run.nodes), set[str]()
    naming: dict[str, set[int]] = {}  # cases that name nodes or paths, by criterion
    for criterion, case in unmet:
        for culprit in _culprits(case, run.nodes) if case.verdict is CriterionVerdict.FAIL else ():
            failed |= culprit.nodes & here
            if here & culprit.nodes.union(*culprit.either):
                naming.setdefault(criterion.name, set()).add(id(case))
    found: dict[str, tuple[State, str]] = {}
    for criterion, case in unmet:
        evidence = first_line(f"{criterion.name}: {case.summary}")
        beside = bool(naming.get(criterion.name, set()) - {id(case)})
        for name, state in _states_by(case, run.nodes, failed, beside).items():
            known = found.get(name, (State.PASSED, ""))[0]
            if _WORSE.index(state) > _WORSE.index(known):
                found[name] = (state, evidence)
    return found


def _devices_in(run: RunFacts, criteria: Sequence[CriterionResult]) -> dict[str, set[str]]:
    """Devices of each node that culprits of failed and inconclusive cases name."""
    found: dict[str, set[str]] = {}
    for criterion in criteria:
        for case in criterion.judged:
            if case.verdict in (CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE):
                for culprit in _culprits(case, run.nodes):
                    for node, device in culprit.parts.devices:
                        found.setdefault(node, set()).add(device)
    return found


def _states_by(
    case: CaseResult, names: Sequence[str], failed: set[str], beside: bool
) -> dict[str, State]:
    """States of nodes by one case that did not pass.

    failed: nodes that failed in any case. beside: whether another case of its criterion names a
    node or a path, which explains a case that names nobody, such as that of a program over all
    nodes.
    """
    took_part = set(case.nodes or names) & set(names)
    if case.stopped:
        return dict.fromkeys(took_part, State.NOT_TESTED)
    named = State.FAILED if case.verdict is CriterionVerdict.FAIL else State.SUSPECT
    found: list[tuple[State, Collection[str]]] = []

    def blame(culprit: Culprit, state: State) -> None:
        sure = culprit.nodes & set(names)
        found.append((state, sure))
        if culprit.nodes and not sure:  # of no name that a node has here, such as an alias
            found.append((State.SUSPECT, took_part))
        for group in culprit.either:
            ends = (group & set(names)) or took_part
            explained = bool(group & failed) if group else beside
            found.append((State.NOT_TESTED if explained else State.SUSPECT, ends - culprit.nodes))

    for culprit in _culprits(case, names):
        blame(culprit, named)
    for one in case.measurements if case.verdict is CriterionVerdict.FAIL else ():
        if one.verdict is Verdict.INCONCLUSIVE:  # not measured is not passed either
            blame(named_nodes(one.culprit or Culprit(""), names).suspected, State.SUSPECT)
    found.sort(key=lambda one: _WORSE.index(one[0]))
    return {name: state for state, nodes in found for name in nodes}


def _culprits(case: CaseResult, names: Collection[str]) -> list[Culprit]:
    """Culprits of the measurements that decided a case; the case's own if none decided."""
    bad = [m.culprit for m in case.measurements if m.verdict == case.verdict.value]
    return [named_nodes(one or case.own_culprit or Culprit(""), names) for one in bad or [None]]


def _rails(rates: PathRates, node: str, date: datetime) -> Iterator[RailCoverage]:
    if node not in rates.nodes:
        return
    row = rates.nodes.index(node)
    letters, mbits = rates.rail_states[row], rates.rail_mbits_s[row].split()
    for name, letter, rate in zip(rates.rails, letters, mbits, strict=True):
        known = None if rate == NOT_MEASURED else float(rate)
        yield RailCoverage(name, BY_LETTER[letter], known, date)
