"""States of nodes, rails and paths after one run, from the culprits of its failures. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from pytest_mnode.certificate.coverage import Coverage, NodeCoverage, PathCoverage, RailCoverage
from pytest_mnode.certificate.results import CaseResult, CriterionResult, CriterionVerdict
from pytest_mnode.certificate.run_facts import RunFacts
from pytest_mnode.certificate.text import first_line
from pytest_mnode.culprit import Culprit
from pytest_mnode.launchers.hosts import named_nodes
from pytest_mnode.measurement import Verdict
from pytest_mnode.path_rates import BY_LETTER, NOT_MEASURED, PathRates, State

_NEVER = "no run has tested it"
_WORSE = (State.PASSED, State.NOT_TESTED, State.SUSPECT, State.FAILED)


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
