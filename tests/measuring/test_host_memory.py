"""NUMA nodes are shared out among ranks, and copied in by threads of their own."""

from __future__ import annotations

import os
from statistics import median

import numpy as np
import pytest

from pytest_mnode.criteria.devices import judge_rates
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.numa import NumaNode
from pytest_mnode.measuring.host_memory import copying, numa_of_rank
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.spec.devices import HostMemoryPromise

CPUS = frozenset([0])


@pytest.mark.parametrize(
    ("local_size", "shares"),
    [(1, [[0, 1, 3]]), (2, [[0, 3], [1]]), (4, [[0], [1], [3], []])],
)
def test_ranks_share_the_numa_nodes_that_have_cores_and_memory(
    local_size: int, shares: list[list[int]]
) -> None:
    sizes = {0: (CPUS, 1), 1: (CPUS, 1), 2: (frozenset[int](), 1), 3: (CPUS, 1), 4: (CPUS, 0)}
    nodes = [NumaNode(number=n, cpus=c, memory_bytes=m) for n, (c, m) in sizes.items()]
    found = [numa_of_rank(nodes, rank, local_size) for rank in range(local_size)]
    assert [[node.number for node in share] for share in found] == shares


@pytest.mark.parametrize("threads", [1, 2])
def test_each_thread_copies_its_part(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(np, "copyto", lambda into, source: copied.append(source.nbytes))
    before = os.sched_getaffinity(0)
    cpus = sorted(before)[:1] * threads
    with copying(0, cpus, 1 << 20) as work:
        work.call()
        assert sum(copied) == 8 * (1 << 20) == pytest.approx(work.amount * 1e9)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("channels", "verdict"), [(8, "pass"), (7, "fail")])
def test_a_missing_channel_is_one_numa_node_of_one_node(channels: int, verdict: str) -> None:
    rates = [100 + i % 3 for i in range(16)]
    rates[5] = rates[5] * channels // 8
    names = [
        Culprit.device(f"NUMA node {i % 2} of node{i // 2}", f"node{i // 2}", f"NUMA node {i % 2}")
        for i in range(16)
    ]
    rows = tuple(
        RankRate(name, median([rate] * 3), "") for name, rate in zip(names, rates, strict=True)
    )
    promise = HostMemoryPromise.model_validate({"at_least_fraction": 0.93})
    compared = Comparison("host memory", "GB/s", promise, None, rows, "", of="NUMA node")
    slowest, middle = judge_rates(compared)
    assert (slowest.name, str(slowest.verdict)) == ("host memory, slowest NUMA node", verdict)
    assert middle.name == "host memory, median of NUMA nodes"
    if verdict == "fail":
        assert slowest.culprit is not None
        assert slowest.culprit.parts.devices == (("node2", "NUMA node 1"),)
