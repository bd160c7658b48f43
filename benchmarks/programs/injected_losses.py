"""Injects losses around the limit that each healthy run states, on one node of the rack.

benchmarks/losses.py runs it. A trial is a healthy run of the size that the fabric criterion judges,
on its communicators, and for each factor a run with one node's link slower by that factor times
the limit that the healthy run stated. A loss is found if the run does not pass. It prints a line of
JSON per trial.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform

if TYPE_CHECKING:
    import pytest

    from pytest_mnode import Cluster
    from pytest_mnode.cluster import RankWorld
    from pytest_mnode.detection import Estimate
    from pytest_mnode.measurement import Bound
    from pytest_mnode.spec import BusbwPromise, Spec

FACTORS = (0.0, 0.5, 0.8, 1.0, 1.2)
"""With factor 0 no loss is injected, and any loss found is noise of the machine."""


def test_losses(cluster: Cluster, spec: Spec, capfd: pytest.CaptureFixture[str]) -> None:
    assert spec.criteria.fabric is not None
    promise = spec.criteria.fabric.all_reduce_busbw
    assert promise is not None
    link, line = spec.fabric.interfaces[0], spec.fabric.line_rate_mbits_s
    model = CollectiveModel(Platform.of(spec), "all_reduce", len(cluster.nodes), 1, "gloo")
    bound = promise.bound_gbytes_s(model, (Algorithm.RING,), promise.sizes_bytes[-1])
    world = cluster.world()
    for trial in range(int(os.environ["TRIALS"])):
        node = cluster.nodes[trial % len(cluster.nodes)]
        healthy = _busbw(world, promise, bound)
        limit = healthy.detection(bound.accepted)
        if limit is None or not bound.decides(*healthy.interval):
            continue
        found: dict[float, bool] = {}
        for factor in FACTORS:
            cluster.set_rate(node, link, line * (1 - factor * limit.share))
            found[factor] = not bound.decides(*_busbw(world, promise, bound).interval)
        cluster.set_rate(node, link, line)
        with capfd.disabled():
            print(
                f"\nTRIAL {json.dumps({'limit': limit.share, 'found': found})}\n",
                end="",
                flush=True,
            )


def _busbw(world: RankWorld, promise: BusbwPromise, bound: Bound) -> Estimate:
    """The busbw of the largest size, as the criterion measures it."""

    def measured() -> Estimate | None:
        import functools

        import torch

        from pytest_mnode.measuring.algorithms import algorithms_of, fresh_group
        from pytest_mnode.measuring.collectives import ALL_REDUCE
        from pytest_mnode.measuring.sweep import sweep

        size, device = promise.sizes_bytes[-1], torch.device("cpu")
        [algorithm] = algorithms_of(ALL_REDUCE.collective, "gloo", 1)
        [row] = sweep(
            ALL_REDUCE,
            [size],
            warmup=promise.warmup,
            repeats=promise.repeats,
            device=device,
            communicator=functools.partial(fresh_group, algorithm, device),
            judged={size: bound},
            communicators=promise.communicators,
        ).rows
        return row.estimate

    found: Estimate = world.run(measured, group=True)[0]
    return found
