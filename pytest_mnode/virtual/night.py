"""A whole night of a virtual cluster: every criterion that it can have, and the certificate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    RunFacts,
    build_certificate,
    installed_versions,
)
from pytest_mnode.certificate.results import CriterionVerdict, criterion_name
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.evidence.check import CHECKS
from pytest_mnode.launchers.node import count
from pytest_mnode.spec import Spec, doubts
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.devices import devices
from pytest_mnode.virtual.fabric import fabric
from pytest_mnode.virtual.faults import inject
from pytest_mnode.virtual.messages import mesh
from pytest_mnode.virtual.numa import numa
from pytest_mnode.virtual.preflight import preflight
from pytest_mnode.virtual.scaling import scaling
from pytest_mnode.virtual.storage import storage

_CRITERIA: dict[str, Callable[[VirtualCluster], Iterator[CaseResult]]] = {
    "preflight": preflight,
    "mesh": mesh,
    "devices": devices,
    "numa": numa,
    "fabric": fabric,
    "storage": storage,
    "scaling": scaling,
}
"""In the order of a run."""
_BEYOND = {
    "groups": "no virtual rank meets in a group",
    "data": "no virtual rank reads a sample",
    "launch": "no job is started",
    "restart": "no job is killed",
    "gang": "there is no scheduler",
    "soak": "no hours pass",
    "workload": "no job is started",
    "tuning": "no setting is tried",
    "traffic": "no group sends beside another",
}
"""Why a criterion has no values."""


def rehearse(
    spec: Spec,
    path: Path,
    nodes: int,
    *,
    faults: Sequence[str] = (),
    seed: int = 0,
    only: Collection[str] | None = None,
) -> Certificate:
    """The certificate of a night on a virtual cluster, which never certifies.

    path: of the spec's page. faults: see `faults.inject`. The same seed gives the same night. only:
    the criteria to rehearse; left out, all.
    """
    started = datetime.now(UTC)
    cluster = VirtualCluster.healthy(spec, nodes, seed)
    for fault in faults:
        inject(cluster, fault)
    promised = spec.promised_criteria
    cases: list[CaseResult] = []
    for name, measure in _CRITERIA.items():
        if name not in promised or (only is not None and name not in only):
            continue
        if nodes > 1 or (name != "scaling" and (cluster.ranks > 1 or name != "fabric")):
            stopped = _stopped_by(cases, name)
            cases += [stopped] if stopped else measure(cluster)
    run = RunFacts(
        launcher="rehearsal",
        launcher_reason="a virtual cluster",
        nodes=cluster.nodes,
        ranks=cluster.ranks,
        backend=cluster.backend,
        spec=facts_of(spec, path),
        versions=installed_versions(),
        start=started,
        end=datetime.now(UTC),
        emulated="; ".join(spec.emulated) or None,
        doubts=tuple(doubts(spec)),
        validity_s=spec.certificate.valid_for_s,
        cluster_nodes=nodes,
        rehearsal=f"a virtual cluster of {count(nodes)} (seed {seed}; "
        f"{', '.join(faults) or 'no fault'})",
    )
    ran = {criterion_name(one.test) for one in cases}
    return build_certificate(
        run=run,
        cases=cases,
        promised=promised,
        not_promised={one.question: one.reason for one in spec.not_promised},
        not_rehearsed={
            name: _BEYOND.get(name, "one node has no other") for name in promised if name not in ran
        },
    )


def _stopped_by(cases: Sequence[CaseResult], name: str) -> CaseResult | None:
    """The case of a criterion that a failed check stops, as in the suite; None if none does."""
    for one in cases:
        check = CHECKS.get(one.test.partition("::")[2].partition("[")[0])
        if check is None or name not in check.stops or one.verdict is not CriterionVerdict.FAIL:
            continue
        return case(
            f"acceptance/test_{name}.py::{check.case()}",
            question=f"Is {name} of any use?",
            stopped=f"skipped because {check.key} failed",
        )
    return None
