"""Where ranks of a virtual cluster run, allocate and send from: beside their accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.placement.answering import answer_of
from pytest_mnode.criteria.placement.copies import CopyRates, judge_copies
from pytest_mnode.criteria.placement.rank_placement import Question, RankPlacement, over_ranks
from pytest_mnode.machine.process import Thread
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import cores_of, links_of
from pytest_mnode.virtual.ports import ports

_FILE = "acceptance/test_numa.py"
_FAR = 0.6
"""Of memory of the other socket, as a share of the near one's rate. [choice]"""
_TESTS = {
    Question.CPUS: "test_ranks_run_beside_their_accelerator",
    Question.MEMORY: "test_memory_is_beside_the_accelerator",
    Question.NIC: "test_ranks_send_over_the_nearest_nic",
    Question.CORES: "test_ranks_have_cores_of_their_own",
}


def numa(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_numa.py`."""
    promised, names = cluster.spec.criteria.numa, cluster.nodes
    assert promised is not None
    placed = [_placed(cluster, node) for node in range(len(names))]
    for question, test in _TESTS.items():
        value = getattr(promised, question.source.split()[0].partition(".")[2])
        if value is None or (question is Question.NIC and len(names) < 2):
            continue
        answers = [
            answer_of(question, value, survey.machine, one, here, cluster.spec, only_ranks=True)
            for survey, here in zip(cluster.machines, placed, strict=True)
            for one in here
        ]
        yield case(f"{_FILE}::{test}", [over_ranks(question, answers)], names)
    if promised.copy_near_over_far is not None:
        rates = [_copies(cluster, rank, promised.copy_repeats) for rank in range(cluster.ranks)]
        test = f"{_FILE}::test_near_memory_is_faster_than_far"
        yield case(test, judge_copies(rates, cluster.spec), names)
    yield ports(cluster, _FILE)


def _placed(cluster: VirtualCluster, node: int) -> list[RankPlacement]:
    """The ranks of a node, each with an equal part of the cores of its accelerator's socket."""
    each, nics, found = cluster.per_node, links_of(cluster.spec.fabric), []
    machine = cluster.machines[node].machine
    for local in range(each):
        own = local * 2 // each
        socket = 1 - own if node in cluster.unbound else own
        beside = [i for i in range(each) if i * 2 // each == own]
        cores = sorted(cores_of(socket))[beside.index(local) :: len(beside)]
        nic = local * len(nics) // each
        if node in cluster.crossed and len(nics) > 1:
            nic = max(1, nic)
        cards = machine.pci.accelerators
        found.append(
            RankPlacement(
                rank=node * each + local,
                node=cluster.nodes[node],
                accelerator=cards[local].address if cards else None,
                numa_node=own,
                cpus=frozenset(cores),
                threads=(Thread(1, "main", frozenset(cores), cores[0]),),
                memory_bytes={socket: 1 << 30},
                nics=(f"{nics[nic]}:1" if cluster.spec.fabric.protocol else nics[nic],),
            )
        )
    return found


def _copies(cluster: VirtualCluster, rank: int, repeats: int) -> CopyRates:
    near = 1 - 0.01 * np.abs(cluster.rng.standard_normal(repeats))
    found = CopyRates(rank_name(cluster.world, rank), 1.0, _FAR)
    return replace(found, ratios=tuple((near / _FAR).tolist()))
