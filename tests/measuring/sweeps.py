"""Composed sweeps: rows at a share of the line rate, and their measurements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_mnode.criteria.fabric import judge_busbw
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of
from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.sweep import Row, Sweep, Unmeasured
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.rank.world import World
from pytest_mnode.spec import BusbwPromise, profile_spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, bus_factor

SPEC = profile_spec("rack")
CPU = torch.device("cpu")
WORLD = World(0, 2, 0, 1, "node0", ("node0", "node1"))
KIB, MIB = 1 << 10, 1 << 20
PROMISE = BusbwPromise.model_validate(
    {"at_least_fraction": 0.8, "sizes": ["64 KiB", "1 MiB"], "plateau_from": "1 MiB"}
)
GLOO_RING = algorithms_of(Collective.ALL_REDUCE, "gloo", 1)[0]
PINNED, DEFAULT = algorithms_of(Collective.ALL_REDUCE, "nccl", 1)


def row(size_bytes: int, *of_the_line: float, wrong: int = 0) -> Row:
    """A row of four ranks; by communicator, the share of the rack's 0.025 GB/s (one for all)."""
    shares = of_the_line * 3 if len(of_the_line) == 1 else of_the_line
    moved_gb = size_bytes * bus_factor("all_reduce", 4) / 1e9
    times_s = tuple((moved_gb / (share * 0.025),) * 3 for share in shares)
    sizes = (size_bytes, size_bytes, size_bytes // 4)
    return Row("all_reduce", 4, *sizes, 3, times_s, wrong)


def judged(
    rows: Sequence[Row],
    algorithm: Algorithm = GLOO_RING,
    unmeasured: Sequence[Unmeasured] = (),
    culprit: str | None = None,
    *,
    traffic: Sequence[SentByNode] = (),
) -> Busbw:
    backend = "nccl" if algorithm in (PINNED, DEFAULT) else "gloo"
    model = CollectiveModel(Platform.of(SPEC), "all_reduce", 4, 1, backend)
    found = Sweep(COLLECTIVES["all_reduce"], 4, tuple(rows), tuple(unmeasured))
    swept = AlgorithmSweep(algorithm, found, PROMISE, model)
    return Busbw(
        SPEC,
        WORLD,
        "gloo",
        (swept,),
        tuple(traffic),
        None if culprit is None else Culprit.of(culprit),
    )


def recorded(found: Busbw) -> dict[str, Measurement]:
    """Measurements of the sweeps, without those of the traffic."""
    kept = judge_busbw(found)[:-1]
    assert len({m.name for m in kept}) == len(kept)
    return {m.name: m for m in kept}
