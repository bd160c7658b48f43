"""Proof of transport in ranks: an all-reduce, with facts read before and after it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_mnode.criteria.transport.counted import judge
from pytest_mnode.criteria.transport.evidence import PARTS, Evidence, NodeTraffic, rank_now
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.nic_counters import settling_s
from pytest_mnode.measuring.ranks import backend_on, barrier, finish, gathered
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.fabric import TransportPromise


def prove_transport(
    world: World, promise: TransportPromise, spec: Spec, device: torch.device
) -> list[Measurement]:
    """Send the all-reduce that the promise names, and judge its path. All ranks call this.

    Needs the default group and two nodes or more. The measurements are the same on every rank.
    """
    backend = backend_on(device)
    buffer = torch.zeros(max(1, promise.size_bytes // 4), dtype=torch.float32, device=device)
    if backend != "gloo":  # gloo is already connected; others connect at their first call
        dist.all_reduce(buffer)

    def send() -> None:
        for _ in range(promise.calls):
            dist.all_reduce(buffer)
        finish(device)

    return judge(_facts(world, backend, promise, send, device), spec, promise)


def _facts(
    world: World,
    backend: str,
    promise: TransportPromise,
    send: Callable[[], None],
    device: torch.device,
) -> Evidence:
    """Facts of all nodes and ranks before and after `send`; the same on every rank."""
    settle_s = settling_s(world)
    barrier(device)
    time.sleep(settle_s)  # until the counters include what connecting sent
    before = Machine.read(parts=PARTS)
    barrier(device)  # no rank sends before all ranks have read
    send()
    barrier(device)  # all data has arrived, and no rank sends until all have read again
    time.sleep(settle_s)
    after = Machine.read(parts=PARTS)
    # Only the first rank of a node reports its counters.
    node = NodeTraffic.between(world.node, before, after) if world.local_rank == 0 else None
    every = gathered((node, rank_now(world, backend, os.environ, Path("/"))))
    return Evidence(
        backend=backend,
        size_bytes=promise.size_bytes // 4 * 4,
        calls=promise.calls,
        nodes=tuple(node for node, _ in every if node is not None),
        ranks=tuple(rank for _, rank in every),
    )
