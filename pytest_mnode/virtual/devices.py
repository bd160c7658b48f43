"""Each rank by itself on a virtual cluster: products, training steps and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.checks.devices.matmul import LARGEST_CHECKED
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.devices import comparisons
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
    HostMemoryPromise,
    InsideNodePromise,
    LoadPromise,
    MatmulPromise,
    MemoryTestPromise,
    RankPromise,
    RepeatedProductsPromise,
    TrainingStepPromise,
)
from pytest_mnode.virtual.cases import NOT_REHEARSED, case
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
    promised = cluster.spec.criteria.devices
    assert promised is not None
    for check in promised.asked(cluster.spec):
        found = [one for made in measured(cluster, check) for one in check.rule(made)]
        part = f"[{check.part}]" if check.part else ""
        beyond = "" if found else f"{NOT_REHEARSED}: no virtual device does this work"
        yield case(
            f"{_FILE}::{check.case()}{part}",
            found,
            cluster.nodes,
            question=check.question(),
            why=beyond,
        )
    yield ports(cluster, _FILE)


def measured(cluster: VirtualCluster, check: WorldCheck) -> Iterator[Any]:
    """What a check would have measured; nothing of one whose work no virtual device does."""
    match check.promise:
        case MatmulPromise() as products:
            bad = [rank_name(cluster.world, rank) for rank in sorted(cluster.miscomputes)]
            for dtype in products.dtypes:
                yield dtype, min(products.size, LARGEST_CHECKED), dict.fromkeys(bad, 1)
                tflops = products.at_least_tflops.get(dtype)
                floor = None if tflops is None else tflops * 1e3
                rates = cluster.matmul
                yield _compared(cluster, f"matmul {dtype}", products, floor, rates)
        case TrainingStepPromise() as promise:
            yield (_steps(cluster, promise.ranks, promise.steps),)
        case RepeatedProductsPromise() as promise:
            wrong = {rank_name(cluster.world, rank): 1 for rank in sorted(cluster.miscomputes)}
            for kind in promise.dtypes:
                yield RepeatedProducts(kind, promise.size, promise.products, 0.0, wrong)
        case MemoryTestPromise() as promise:
            yield _memory(cluster, promise)
        case LoadPromise() as promise:
            yield _loads(cluster, promise)
        case HostMemoryPromise() as promise:
            yield _host_memory(cluster, promise)
        case InsideNodePromise() as promise if cluster.world.local_size > 1:
            yield from _inside_node(cluster, promise)
        case CopyPromise() as promise:
            shares = {
                "memory_copy": cluster.host,
                "device_copy": cluster.hbm,
                "host_to_device": cluster.to_device,
                "device_to_host": cluster.from_device,
            }[check.part]
            name, floor = check.part.replace("_", " "), promise.at_least_gbytes_s
            yield _compared(cluster, name, promise, floor, shares)


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
    return _compared(cluster, "host memory", promise, floor, share, of=names, what="NUMA node")


def _inside_node(cluster: VirtualCluster, promise: InsideNodePromise) -> Iterator[Comparison]:
    """Links as slow as each node's."""
    floor = floor_gbytes_s(promise, cluster.spec, cluster.world.local_size, "nccl")
    ranks = [rank_name(cluster.world, rank) for rank in range(cluster.ranks)]
    nodes = [Culprit(node, node) for node in cluster.nodes]
    for name, names, least, what in (
        ("all-reduce inside the node", nodes, floor, "node"),
        ("exchanges inside the node", ranks, None, "rank"),
    ):
        shares = cluster.inside.repeat(len(names) // len(nodes))
        yield _compared(cluster, name, promise, least, shares, of=names, what=what)


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
    promise: RankPromise | HostMemoryPromise | InsideNodePromise,
    floor: float | None,
    shares: Shares,
    of: Sequence[str] = (),
    what: str = "rank",
) -> Comparison:
    """Rates of all ranks as `measuring.devices` has them: up to three rounds while one seems slow,
    of which the best counts; or in one round, of what the ranks of a node share. of: its names."""
    alone_floor = getattr(promise, "alone_at_least_gbytes_s", None)
    usual = _OVER_FLOOR * (floor or alone_floor or _ANY_RATE)
    false_alarm = FALSE_ALARM / comparisons(cluster.spec)
    true, matmul = usual * shares.ravel(), isinstance(promise, MatmulPromise)
    best = _repeats(cluster, true, promise.repeats)
    for _ in range(0 if of or len(true) < 2 else ROUNDS - 1):
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
            of[at] if of else rank_name(cluster.world, at),
            median(repeats),
            "" if of else _why(cluster, at),
            median(repeats) if alone_floor else None,
            _load(cluster, at) if matmul else None,
            tuple(repeats),
        )
        for at, repeats in enumerate(best.tolist())
    )
    how = f"median of {promise.repeats}{', all ranks at once' * (not of)}"
    unit = "GFLOP/s" if matmul else "GB/s"
    return Comparison(name, unit, promise, floor, rows, how, False, false_alarm, what)


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
