"""Each rank by itself on a virtual cluster: products, training steps and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.devices import (
    LARGEST_CHECKED,
    comparisons,
    judge_load,
    judge_memory,
    judge_products,
    judge_rates,
    judge_repeated,
    judge_steps,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.load_readings import Steady
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measuring.devices import ROUNDS
from pytest_mnode.measuring.inside_node import floor_gbytes_s
from pytest_mnode.measuring.memory_test import RankMemory
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, Comparison, RankRate, peer_bound
from pytest_mnode.measuring.repeated_products import RepeatedProducts
from pytest_mnode.measuring.results_of_ranks import RankSteps, SameSteps, models_of_all
from pytest_mnode.measuring.under_load import RankLoad
from pytest_mnode.spec.devices import (
    CopyPromise,
    DevicesCriterion,
    HostMemoryPromise,
    InsideNodePromise,
    LoadPromise,
    MatmulPromise,
    MemoryTestPromise,
    RankPromise,
)
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import Shares, VirtualCluster
from pytest_mnode.virtual.ports import ports

_FILE = "acceptance/test_devices.py"
_REPEATS_DIFFER = 0.002
"""Standard deviation of the repeats of a rank. [choice]"""
_OVER_FLOOR = 1.08
"""Of a healthy device over a promised floor. [choice] A floor is what nodes are put back for: 48 to
52 of the 51 to 54.8 GB/s that H100 copy."""
_ANY_RATE = 100.0
"""Of a device without a promised floor: only shares of it are judged. [choice]"""


def devices(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_devices.py`."""
    promised, nodes = cluster.spec.criteria.devices, cluster.nodes
    assert promised is not None
    if (products := promised.matmul) is not None:
        found = []
        size = min(products.size, LARGEST_CHECKED)
        for dtype in products.dtypes:
            wrong: dict[str, int | None] = {
                rank_name(cluster.world, rank): 1 for rank in sorted(cluster.miscomputes)
            }
            found += judge_products(dtype, size, wrong)
            tflops = products.at_least_tflops.get(dtype)
            floor = None if tflops is None else tflops * 1e3
            found += judge_rates(
                _compared(cluster, f"matmul {dtype}", "GFLOP/s", products, floor, cluster.matmul)
            )
        test = f"{_FILE}::test_every_rank_multiplies_as_fast_as_the_others"
        yield case(test, found, nodes)
    if promised.training_step is not None:
        test = f"{_FILE}::test_every_rank_computes_the_same_training_steps"
        steps = _steps(cluster, promised.training_step.ranks, promised.training_step.steps)
        yield case(test, judge_steps(steps), nodes)
    yield from _in_depth(cluster, promised)
    for kind, shares in (
        ("memory_copy", cluster.host),
        ("device_copy", cluster.hbm),
        ("host_to_device", cluster.to_device),
        ("device_to_host", cluster.from_device),
    ):
        copy: CopyPromise | None = getattr(promised, kind)
        if copy is not None:
            floor, name = copy.at_least_gbytes_s, kind.replace("_", " ")
            test = f"{_FILE}::test_every_rank_copies_as_fast_as_the_others[{kind}]"
            compared = _compared(cluster, name, "GB/s", copy, floor, shares)
            yield case(test, judge_rates(compared), nodes)
    yield ports(cluster, _FILE)


def _in_depth(cluster: VirtualCluster, promised: DevicesCriterion) -> Iterator[CaseResult]:
    """Results over many products, memory, heat, and links inside the nodes."""
    nodes = cluster.nodes
    if (repeated := promised.repeated_products) is not None:
        test = f"{_FILE}::test_every_rank_computes_the_same_products"
        bad = {rank_name(cluster.world, rank): 1 for rank in sorted(cluster.miscomputes)}
        of_dtypes = (
            judge_repeated(RepeatedProducts(kind, repeated.size, repeated.products, 0.0, bad))
            for kind in repeated.dtypes
        )
        yield case(test, list(chain.from_iterable(of_dtypes)), nodes)
    if (memory := promised.memory_test) is not None:
        test = f"{_FILE}::test_all_memory_reads_as_it_was_written"
        yield case(test, judge_memory(_memory(cluster, memory), memory), nodes)
    if (load := promised.under_load) is not None:
        test = f"{_FILE}::test_devices_stay_cool_and_fast_under_load"
        found = judge_load(_loads(cluster, load), load, comparisons(cluster.spec))
        yield case(test, found, nodes)
    if (host := promised.host_memory) is not None:
        test = f"{_FILE}::test_memory_of_every_numa_node_is_as_fast_as_the_others"
        yield case(test, judge_rates(_host_memory(cluster, host)), nodes)
    if (inside := promised.inside_node) is not None and cluster.world.local_size > 1:
        test = f"{_FILE}::test_every_node_is_as_fast_inside_as_the_others"
        pair = _inside_node(cluster, inside)
        yield case(test, [one for found in pair for one in judge_rates(found)], nodes)


def _memory(cluster: VirtualCluster, promise: MemoryTestPromise) -> list[RankMemory]:
    """Sound memory, as large as the spec says."""
    whole = cluster.spec.accelerators.memory_bytes
    size = promise.host_bytes if whole is None else int(promise.fraction * whole)
    names = [rank_name(cluster.world, rank) for rank in range(cluster.ranks)]
    return [RankMemory(name, "", size, 0.0, 0, ()) for name in names]


def _host_memory(cluster: VirtualCluster, promise: HostMemoryPromise) -> Comparison:
    """Two NUMA nodes a node, as slow as the copies of the node's slowest rank."""
    share = cluster.host.reshape(len(cluster.nodes), -1).min(axis=1).repeat(2)
    parts = [(node, f"NUMA node {i}") for node in cluster.nodes for i in (0, 1)]
    names = [Culprit.device(f"{part} of {node}", node, part) for node, part in parts]
    floor = promise.at_least_gbytes_s
    return _drawn(cluster, "host memory", promise, floor, names, share, "NUMA node")


def _inside_node(cluster: VirtualCluster, promise: InsideNodePromise) -> Iterator[Comparison]:
    """Sound links."""
    floor = floor_gbytes_s(promise, cluster.spec, cluster.world.local_size, "nccl")
    ranks = [rank_name(cluster.world, rank) for rank in range(cluster.ranks)]
    nodes = [Culprit(node, node) for node in cluster.nodes]
    for name, names, least, of in (
        ("all-reduce", nodes, floor, "node"),
        ("exchanges", ranks, None, "rank"),
    ):
        what = f"{name} inside the node"
        yield _drawn(cluster, what, promise, least, names, np.ones(len(names)), of)


def _drawn(  # noqa: PLR0917  what a comparison has
    cluster: VirtualCluster,
    name: str,
    promise: HostMemoryPromise | InsideNodePromise,
    floor: float | None,
    names: Sequence[str],
    shares: Shares,
    of: str,
) -> Comparison:
    """Rates in one round, of what the ranks of a node share."""
    drawn = _repeats(cluster, _OVER_FLOOR * (floor or _ANY_RATE) * shares, promise.repeats).tolist()
    rows = tuple(
        RankRate(one, median(repeats), "", repeats=tuple(repeats))
        for one, repeats in zip(names, drawn, strict=True)
    )
    false_alarm = FALSE_ALARM / comparisons(cluster.spec)
    how = f"median of {promise.repeats}"
    return Comparison(name, "GB/s", promise, floor, rows, how, False, false_alarm, of)


def _loads(cluster: VirtualCluster, promise: LoadPromise) -> list[RankLoad]:
    """Cool devices, throttled where products are, and drawing power and clocks as products run."""
    rows, of_rank = [], cluster.matmul.ravel()
    for rank in range(cluster.ranks):
        share = cluster.slowed.get(rank, 0.0)
        seen = Steady(
            by="NVML",
            samples=60,
            seconds=promise.duration_s,
            temperature_c=60.0,
            memory_temperature_c=70.0,
            power_w=_ANY_RATE * float(of_rank[rank]),
            clock_mhz=_ANY_RATE * float(of_rank[rank]),
            throttled_s=share * promise.duration_s,
        )
        place = rank % cluster.world.local_size
        rows.append(RankLoad(rank_name(cluster.world, rank), place, seen))
    return rows


def _compared(  # noqa: PLR0917  what a comparison has
    cluster: VirtualCluster,
    name: str,
    unit: str,
    promise: RankPromise,
    floor: float | None,
    shares: Shares,
) -> Comparison:
    """As `measuring.devices`: up to three rounds while a rank seems slow; the best one counts."""
    alone_floor = getattr(promise, "alone_at_least_gbytes_s", None)
    usual = _OVER_FLOOR * (floor or alone_floor or _ANY_RATE)
    false_alarm = FALSE_ALARM / comparisons(cluster.spec)
    true = usual * shares.ravel()
    best = _repeats(cluster, true, promise.repeats)
    for _ in range(ROUNDS - 1):
        if len(true) < 2:
            break
        rates = np.median(best, axis=1).tolist()
        bound = peer_bound(rates, promise.at_least_fraction, promise.at_most_spreads, false_alarm)
        if not (turns := (*bound.slow, *bound.unsure)):
            break
        for rank in turns:
            [again] = _repeats(cluster, true[rank : rank + 1], promise.repeats)
            if np.median(again) > np.median(best[rank]):
                best[rank] = again
    rows = tuple(
        RankRate(
            rank_name(cluster.world, rank),
            median(of_rank),
            _why(cluster, rank),
            median(of_rank) if alone_floor else None,
            _load(cluster, rank) if isinstance(promise, MatmulPromise) else None,
            tuple(of_rank),
        )
        for rank, of_rank in enumerate(best.tolist())
    )
    how = f"median of {promise.repeats}, all ranks at once"
    return Comparison(name, unit, promise, floor, rows, how, False, false_alarm)


def _repeats(cluster: VirtualCluster, true: Shares, repeats: int) -> Shares:
    noise = cluster.rng.standard_normal((len(true), repeats))
    return np.asarray(true[:, None] * (1 - _REPEATS_DIFFER * np.abs(noise)))


def _load(cluster: VirtualCluster, rank: int) -> Load | None:
    if not cluster.spec.accelerators.per_node:
        return None
    share = cluster.slowed.get(rank, 0.0)
    slowed = (("HwThermalSlowdown", round(100 * share)),) if share else ()
    return Load(100, slowed, None, share)


def _why(cluster: VirtualCluster, rank: int) -> str:
    load = _load(cluster, rank) if rank in cluster.slowed else None
    return f"device {load}" if load else ""


def _steps(cluster: VirtualCluster, ranks: int, steps: int) -> SameSteps:
    """Digests of the models: that of a model is its number, and wrong where a rank miscomputes."""
    world, kinds, rows = cluster.world, ["virtual"] * cluster.ranks, []
    for rank, models in enumerate(models_of_all(world, kinds, ranks)):
        mark = f"-{rank}" if rank in cluster.miscomputes else ""
        digests = tuple(f"{model}{mark}" for model in models)
        rows.append(RankSteps(rank_name(world, rank), "virtual", models, digests))
    return SameSteps(tuple(rows), steps)
