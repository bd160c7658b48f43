"""Preflight of a virtual cluster: its machines, their readings and the environment of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.environment import RankCheck, RankEnvironment, Ranks
from pytest_mnode.criteria.preflight.survey_check import (
    SurveyCheck,
    of_node,
    promise_of,
    promised_checks,
)
from pytest_mnode.evidence.check import Check, catalogue
from pytest_mnode.measurement import Measurement
from pytest_mnode.virtual.cases import NOT_REHEARSED, case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import address, links_of
from pytest_mnode.virtual.readings import judged

_FILE = "acceptance/test_preflight.py"
_BEYOND = ("preflight.payload", "preflight.storage", "preflight.disk")
"""Keys of checks of what no virtual machine has: bytes that arrive, file systems."""


def preflight(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of every promised check on every node."""
    survey, ranks = Survey(tuple(cluster.machines)), ranks_of(cluster)
    for one in catalogue("preflight"):
        if promise_of(one, cluster.spec) is None:
            continue
        for check in promised_checks(cluster.spec, [one]):
            yield from _of_check(cluster, check, survey, ranks)


def _of_check(
    cluster: VirtualCluster, check: Check, survey: Survey, ranks: Ranks
) -> Iterator[CaseResult]:
    test = f"{_FILE}::{check.case()}"
    part = f"{check.part}-" if check.part else ""
    of_nodes: Iterable[tuple[str, Iterable[Measurement]]] | None = None
    if isinstance(check, SurveyCheck | RankCheck) and check.key not in _BEYOND:
        evidence: Any = survey if isinstance(check, SurveyCheck) else ranks
        of_nodes = ((node, check.judge(evidence, node)) for node in survey.names)
    elif check.reads() and check.on == "node":
        odd = [cluster.nodes[node] for node, key in cluster.odd if check.key == f"preflight.{key}"]
        of_nodes = judged(check, survey.names, odd)
    if of_nodes is None:
        why = "its rule asks for more than bounds" if check.reads() else "no bytes and no files"
        yield case(test, question=check.question(), why=f"{NOT_REHEARSED}: {why}")
        return
    for node, every in of_nodes:
        found = [of_node(node, one) for one in every]
        if found:
            yield case(f"{test}[{part}{node}]", found, (node,), question=check.question())


def ranks_of(cluster: VirtualCluster) -> Ranks:
    """As torchrun starts them, with the settings that nodes have."""
    each = cluster.per_node
    common = {
        "WORLD_SIZE": str(cluster.ranks),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": address("management", 0, 0),
        "MASTER_PORT": "29500",
    }
    hcas = tuple(f"{name}:1" for name in links_of(cluster.spec.fabric))
    return Ranks(
        cluster.nodes,
        tuple(
            RankEnvironment(
                rank,
                cluster.nodes[rank // each],
                common | {"RANK": str(rank), "LOCAL_RANK": str(rank % each)},
                {name: (value, "") for name, value in cluster.settings.get(rank // each, ())},
                hcas=hcas,
            )
            for rank in range(cluster.ranks)
        ),
    )
