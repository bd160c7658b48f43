"""Judges of a started job: its ranks, their environment, its placement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_mnode.criteria.launching.contract import (
    leaked,
    missing_ranks,
    more_visible,
    not_met,
    not_reported,
)
from pytest_mnode.criteria.launching.starting import Started
from pytest_mnode.criteria.launching.variables import FACTS, wrong_variables
from pytest_mnode.culprit import Culprit
from pytest_mnode.launchers.remote.check_distinct import is_loopback
from pytest_mnode.measurement import HeadlineMark, Measurement, all_of, at_most, equals, listed
from pytest_mnode.spec.launch import StartPromise

_SHOWN = 6


def judged_start(
    started: Started | Measurement, promise: StartPromise, key: str
) -> list[Measurement]:
    """Measurements of every started job, or the one that says why none was started.

    key: spec key of the promise.
    """
    if isinstance(started, Measurement):
        return [started]
    what, expected, reports = started.what, started.expected, started.outcome.reports
    more = more_visible(expected, reports)
    judged = [
        *_judged_ranks(started, key),
        _counted(
            f"{what}: variables wrong",
            wrong_variables(expected, reports),
            f"contract of {expected.style}",
            unread=not_reported(reports, FACTS),
            notes=more,
        ),
        _counted(
            f"{what}: variables leaked",
            leaked(expected, reports),
            "only HOME, USER, PATH, LANG and the job's own",
            unread=not_reported(reports, ["names"]),
        ),
        Measurement(
            f"{what}: submission to end",
            None if started.overdue else started.outcome.seconds,
            "s",
            at_most(promise.within_s).of(f"{key}.within", promise.within_s),
            f"{key}.within {promise.within_s:g} s",
            started.late,
            "; ".join((*started.notes, *started.logins())),
        ),
    ]
    right = int(all(one.passed for one in judged))
    mark = HeadlineMark(after="jobs started right", of=1, right=right)
    return [replace(judged[0], headline=mark), *judged[1:]]


def _judged_ranks(started: Started, key: str) -> list[Measurement]:
    """Whether all ranks reported, met each other, and ended well."""
    what, expected, outcome = started.what, started.expected, started.outcome
    all_ranks, reports, waits = equals(expected.size), outcome.reports, outcome.waits

    def ranks(did: str, value: int | None, source: str, others: Sequence[Culprit]) -> Measurement:
        name, note = f"{what}: ranks that {did}", _several(others)
        return Measurement(name, value, "", all_ranks, source, _first(others), note)

    missing, alone = missing_ranks(expected, reports), not_met(expected, reports)
    all_or_known = len(reports) if not missing or not started.overdue else None
    source = f"{len(expected.nodes)} nodes × {expected.per_node}"
    met = len(reports) - len(alone) if reports else None
    judged = [
        ranks("reported", all_or_known, source, [Culprit(waits)] if waits else missing),
        ranks("met all others", met, "a sum over all ranks", alone),
    ]
    sizes = [report.met.size for report in reports if report.met]
    if sizes:
        single = max(sizes) == 1 < expected.size
        judged.append(
            Measurement(
                f"{what}: ranks in the smallest group that met",
                min(sizes),
                "",
                all_ranks,
                "a sum of ones over all ranks",
                _first(alone),
                f"{expected.size} jobs of one rank" if single else "",
            )
        )
    # If one node fails, others often wait for it until the limit.
    codes = {node: code for node, code in outcome.codes.items() if code}
    failed = [Culprit(f"{node} (exit {code})", node) for node, code in codes.items()]
    if len(codes) == len(outcome.codes):  # the failure of one may end the others
        failed = [one.suspected for one in failed]
    overdue = "" if waits else ", ".join(started.overdue)
    judged.append(
        Measurement(
            f"{what}: nodes on which the job failed",
            None if started.overdue and not failed else len(failed),
            "",
            equals(0),
            key,
            all_of(failed, _SHOWN, ", ") or started.late,
            f"not finished at the time limit on {overdue}" if overdue else "",
        )
    )
    return judged


def _counted(
    name: str, found: Sequence[Culprit], source: str, *, unread: str, notes: Sequence[str] = ()
) -> Measurement:
    """Number of faults. unread: facts that ranks did not report; faults found all the same count.

    notes: facts that are no fault.
    """
    note = "; ".join(line for line in (_several(found), unread, *notes) if line)
    value = None if unread and not found else len(found)
    return Measurement(name, value, "", equals(0), source, _first(found), note)


def _first(found: Sequence[Culprit]) -> Culprit | None:
    """The words of the first, with the nodes of all."""
    return Culprit.merged(found[0], found) if found else None


def _several(found: Sequence[str]) -> str:
    return listed(found, _SHOWN) if len(found) > 1 else ""


def elsewhere(nodes: Sequence[str], count: int | None = None) -> tuple[str, ...]:
    """The last `count` nodes (None: half of them, at least 2), the last one first."""
    count = count or max(2, len(nodes) // 2)
    return tuple(reversed(nodes[-count:]))


def judged_place(
    started: Started | Measurement,
    requested_nodes: Sequence[str],
    addresses: Mapping[str, str],
) -> list[Measurement]:
    """Whether a job ran on the nodes it was placed on, and its MASTER_ADDR is the first of them;
    nothing of a job that was not started.

    requested_nodes: in the order of ranks unless the path has its own order. addresses: of all
    nodes, by node name, as other nodes reach them.
    """
    if isinstance(started, Measurement):
        return []
    reports = started.outcome.reports
    ran_on = {report.node for report in reports}
    strange = sorted(ran_on - set(requested_nodes))
    missing = [node for node in requested_nodes if node not in ran_on]
    nodes = Measurement(
        f"{started.what}: requested nodes that it ran on",
        max(0, len(requested_nodes) - len(missing) - len(strange)) if reports else None,
        "",
        equals(len(requested_nodes)),
        f"placed on {', '.join(requested_nodes)}",
        all_of((Culprit(node, node) for node in strange or missing), _SHOWN, ", "),
    )
    placed = started.submitted.nodes
    first = placed[0] if set(placed) == set(requested_nodes) else requested_nodes[0]
    others = _addresses_of_others(first, addresses, started.outcome.hosts)
    right = _addresses_of_first(started, first, addresses) - set(others)
    met = [report.contract.get("MASTER_ADDR", "none") for report in reports]
    wrong = sorted(set(met) - right)
    master = Measurement(
        f"{started.what}: ranks whose MASTER_ADDR is the first node's",
        sum(address in right for address in met) if reports else None,
        "",
        equals(started.expected.size),
        f"{first} is at {addresses[first]}",
        all_of(
            (Culprit(f"MASTER_ADDR={a} ({others.get(a, 'no node')})") for a in wrong), _SHOWN, ", "
        ),
    )
    return [nodes, master]


def _addresses_of_first(started: Started, first: str, addresses: Mapping[str, str]) -> set[str]:
    """Valid values of MASTER_ADDR: the first node's address, its name, or an address that its ranks
    found to be the node's own. Every node has a loopback address: it is valid on one machine only.
    """
    found = {
        address
        for report in started.outcome.reports
        if report.node == first and report.master_is_here
        if (address := report.contract.get("MASTER_ADDR")) and not is_loopback(address)
    }
    return found | {addresses[first], first, started.outcome.hosts.get(first, first)}


def _addresses_of_others(
    first: str, addresses: Mapping[str, str], hosts: Mapping[str, str]
) -> dict[str, str]:
    """Nodes other than the first, by each of their addresses and names."""
    own = {addresses[first], first, hosts.get(first, first)}
    named = [(name, node) for node in addresses for name in (node, hosts.get(node, node))]
    known = [(address, node) for node, address in addresses.items()]
    return {name: node for name, node in (*known, *named) if name not in own}
