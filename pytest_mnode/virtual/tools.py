"""What nccl-tests and perftest would print and measure on a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any

from pytest_mnode.certificate import CaseResult
from pytest_mnode.detection import wants_more
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.tools import nccl_tests, perftest
from pytest_mnode.measuring.tools.beside_nic import ToolPlacement
from pytest_mnode.measuring.tools.perftest_pairs import PairResult, Promise, is_decided, rails
from pytest_mnode.spec.alpha_beta import Platform
from pytest_mnode.spec.bandwidth import bus_factor
from pytest_mnode.spec.fabric import RdmaBandwidthPromise
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import REPEATS_DIFFER, VirtualCluster

_FILE = "acceptance/test_fabric.py"
OF_PORT = 0.98
"""Share of a port's rate that perftest prints. Source: 392 of 400 Gbit/s."""
_RUNS_DIFFER = 0.004
"""Relative standard deviation of runs of perftest between two ports. [choice]"""
_WRITE_LATENCY_US = 3.5
"""[choice] Writes take at most 4.2 to 5 µs."""
_BLANK = "#\n"


def tools(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of programs in `acceptance/test_fabric.py`, unless the spec waives them."""
    spec, promised = cluster.spec, cluster.spec.criteria.fabric
    waived = {one.question for one in spec.not_promised}
    assert promised is not None
    if spec.accelerators.per_node and "fabric.nccl_tests" not in waived:
        how, platform = promised.nccl_tests or nccl_tests.DEFAULT, Platform.of(spec)
        nodes: Any = _Printing(cluster)  # of a launcher it needs no more
        for name in COLLECTIVES:
            if (promise := promised.busbw(name)) is not None:
                test = f"{_FILE}::test_nccl_tests_reach_the_line_rate[{name}]"
                runs = nccl_tests.run_until_decided(
                    nodes, name, how, promise, cluster.per_node, platform
                )
                found = nccl_tests.judge(runs, platform, promise)
                yield case(test, found, cluster.nodes)
    if spec.fabric.kind not in ("infiniband", "roce") or len(cluster.nodes) < 2:
        return
    for key in ("write_bandwidth", "read_bandwidth", "send_bandwidth", "write_latency"):
        given: Promise | None = getattr(promised, key)
        if f"fabric.{key}" in waived or (given is None and key != "write_bandwidth"):
            continue
        test = f"{_FILE}::test_rdma_by_perftest_is_as_promised[{key}]"
        yield case(test, _perftest(cluster, given or perftest.DEFAULT), cluster.nodes)


class _Printing:
    """A launcher whose srun prints what nccl-tests would: the text goes through its reader."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster, self.nodes = cluster, cluster.nodes

    def run(self, argv: Sequence[str], node: str, **_: Any) -> list[CommandResult]:
        text = "srun\n" if argv[0] == "sh" else self._table(argv)
        return [CommandResult(node, 0, text, "", 0.0)]

    def _table(self, argv: Sequence[str]) -> str:
        cluster, rng = self._cluster, self._cluster.rng
        [program] = (one for one in argv if one.endswith("_perf"))
        given = dict(pairwise(argv))
        collective = next(k for k, v in nccl_tests.PROGRAMS.items() if v == program)
        each = cluster.per_node
        ranks = [
            f"#  Rank {rank} Group 0 Pid {1000 + rank} on {cluster.nodes[rank // each]} device "
            f"{rank % each} [0000:00:00] virtual\n"
            for rank in range(cluster.ranks)
        ]
        rows, kept = "", cluster.communicator_loss()
        size, last = int(given["-b"]), int(given["-e"])
        while size <= last:
            whole_s = cluster.collective_s(collective, size, algorithm="default") / kept
            for _ in range(int(given["-N"])):
                spent_s = whole_s * abs(1 + REPEATS_DIFFER * rng.standard_normal())
                algbw = size / spent_s / 1e9
                rates = f"{spent_s * 1e6:.2f} {algbw:.2f}"
                rates += f" {algbw * bus_factor(collective, cluster.ranks):.2f} 0"
                rows += f"{size} {size // 4} float sum -1 {rates} {rates}\n"
            size *= 2
        columns = "time algbw busbw #wrong"
        return (
            f"# Collective test starting: {program}\n# Using devices\n{''.join(ranks)}{_BLANK}"
            f"# size count type redop root {columns} {columns}\n"
            f"# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)\n{rows}"
            f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n"
        )


def _perftest(cluster: VirtualCluster, how: Promise) -> list[Measurement]:
    """As `perftest_pairs.run_pairs` measures each node to the next, rail by rail."""
    fabric = cluster.spec.fabric
    there = {
        node: survey.machine.rdma or ()
        for node, survey in zip(cluster.nodes, cluster.machines, strict=True)
    }
    devices, bound = perftest.of_fabric(there, fabric), perftest.bound_of(fabric, how)
    near = ToolPlacement(
        place="its NIC",
        near_cpus=frozenset({0}),
        near_memory=frozenset({0}),
        cpus=frozenset({0}),
        memory_bytes={0: 1},
        status=0,
    )
    pairs = []
    for number, ends in enumerate(rails(cluster.nodes, devices)):
        for one, other in zip(ends, [*ends[1:], ends[0]], strict=True):
            names = one.node, other.node, one.device or other.device or f"rail {number}"
            a, b = cluster.nodes.index(one.node), cluster.nodes.index(other.node)
            found: PairResult | None = None
            for repeat in count():
                if one.device is None or other.device is None:
                    found = PairResult(*names, None, "no device for this rail")
                    break
                if found and not wants_more(repeat, how.repeats, decided=is_decided(found, bound)):
                    break
                share = min(
                    float(cluster.tx[a, number]),
                    float(cluster.rx[b, number]),
                    cluster.pairs.get((min(a, b), max(a, b)), 1.0),
                )
                value = _WRITE_LATENCY_US
                if isinstance(how, RdmaBandwidthPromise):
                    value = fabric.line_rate_gbits_s * OF_PORT * share
                value = cluster.around(value, _RUNS_DIFFER)
                found = PairResult(*names, value, client=near, server=near).after(found)
            assert found is not None
            pairs.append(found)
    return [*perftest.judge_devices(there, fabric), *perftest.judge(pairs, fabric, how)]
