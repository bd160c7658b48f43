"""Injects losses around the limit that each healthy run states, on one node of the rack.

benchmarks/losses.py runs it. A trial is a healthy run of the size that the fabric criterion judges,
with its repeats, and for each factor a run with one node's link slower by that factor times the
limit that the healthy run stated. It prints a line of JSON per trial.
"""

from __future__ import annotations

import json
import os
import statistics
from typing import TYPE_CHECKING

from pytest_mnode.detection import smallest_loss
from pytest_mnode.spec.bandwidth import ring_at_line_rate

if TYPE_CHECKING:
    import pytest

    from pytest_mnode import Cluster
    from pytest_mnode.cluster import RankWorld
    from pytest_mnode.spec import BusbwPromise, Spec

FACTORS = (0.0, 0.5, 0.8, 1.0, 1.2)
"""With factor 0 no loss is injected, and any loss found is noise of the machine."""


def test_losses(cluster: Cluster, spec: Spec, capfd: pytest.CaptureFixture[str]) -> None:
    assert spec.criteria.fabric is not None
    promise = spec.criteria.fabric.all_reduce_busbw
    assert promise is not None
    link, line = spec.fabric.interfaces[0], spec.fabric.line_rate_mbits_s
    least = promise.bound_gbytes_s(ring_at_line_rate(spec.fabric)).accepted[0]
    world = cluster.world()
    for trial in range(int(os.environ["TRIALS"])):
        node = cluster.nodes[trial % len(cluster.nodes)]
        healthy = _rates(world, promise)
        limit = smallest_loss(healthy, least, promise.tolerated_fraction)
        if limit is None or limit.too_noisy:
            continue
        found: dict[float, bool] = {}
        for factor in FACTORS:
            cluster.set_rate(node, link, line * (1 - factor * limit.share))
            found[factor] = statistics.median(_rates(world, promise)) < least
        cluster.set_rate(node, link, line)
        with capfd.disabled():
            print(f"\nTRIAL {json.dumps({'limit': limit.share, 'found': found})}", flush=True)


def _rates(world: RankWorld, promise: BusbwPromise) -> list[float]:
    """Busbw of each repeat in GB/s, as the criterion measures it."""

    def measured() -> list[float]:
        import torch

        from pytest_mnode.measuring.collectives import COLLECTIVES
        from pytest_mnode.measuring.sweep import sweep

        size = promise.plateau_sizes_bytes[-1]
        [row] = sweep(
            COLLECTIVES["all_reduce"],
            [size],
            warmup=promise.warmup,
            repeats=promise.repeats,
            device=torch.device("cpu"),
            tolerated={size: promise.tolerated_fraction},
        ).rows
        return list(row.all_busbw_gbytes_s)

    found: list[float] = world.run(measured, group=True)[0]
    return found
