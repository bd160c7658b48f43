"""The proof, made in ranks: an all-reduce is sent, facts are read around it and exchanged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_mnode.criteria.transport.facts import Facts, NodeFacts, RankFacts
from pytest_mnode.criteria.transport.judging import judge
from pytest_mnode.criteria.transport.moved import Expected, expected
from pytest_mnode.criteria.transport.proof import Proof
from pytest_mnode.criteria.transport.reading import Counters, node_between, rank_now
from pytest_mnode.criteria.transport.recorded import record
from pytest_mnode.machine.netdev import interface_addresses
from pytest_mnode.measuring.agree import by_rank
from pytest_mnode.measuring.timing import finish
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.fabric import TransportPromise

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

_SETTLE_S = 0.05
"""Drivers keep counters for a while (mlx5 10 ms) before they ask the card again."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof with what it was judged on; the same on every rank."""

    spec: Spec
    promise: TransportPromise
    facts: Facts
    proof: Proof

    @property
    def expected(self) -> Expected:
        """What each node had to send."""
        return expected(self.facts, self.spec.fabric, self.promise)

    def record(self, measure: Measure) -> None:
        """One measurement a fact, and the bytes that two of them were judged on."""
        record(self.facts, self.spec, self.promise, self.proof, measure)


def prove(
    world: World,
    promise: TransportPromise,
    spec: Spec,
    device: torch.device,
    *,
    root: Path = Path("/"),
) -> Proven:
    """Send the all-reduce that the promise names, and judge the way it took. All ranks call this.

    With the default group in place, over two nodes or more. root: where sys lies, for tests.
    """
    backend = _backend(device)
    buffer = torch.zeros(max(1, promise.size_bytes // 4), dtype=torch.float32, device=device)
    if backend != "gloo":  # which is connected by now, while others connect at their first call
        dist.all_reduce(buffer)
    facts = gather(
        world, backend, promise, lambda: _send(buffer, promise.calls, device), device, root
    )
    return Proven(spec, promise, facts, judge(facts, spec, promise))


def gather(  # noqa: PLR0917  the world's, then what is sent and where it is read
    world: World,
    backend: str,
    promise: TransportPromise,
    send: Callable[[], None],
    device: torch.device,
    root: Path = Path("/"),
) -> Facts:
    """Facts of all nodes and ranks around `send`. All ranks call this; all have the same."""
    _meet(device)
    before = Counters.read(root)
    _meet(device)  # nobody sends before all have read
    send()
    _meet(device)  # all has arrived, and nothing else is sent until all have read again
    time.sleep(_SETTLE_S)
    after = Counters.read(root)
    mine = (
        node_between(world.node, before, after, interface_addresses()),
        rank_now(world, backend, os.environ, root),
    )
    every: list[Any] = [None] * world.size
    dist.all_gather_object(every, mine)
    return composed(world, backend, promise, every)


def composed(
    world: World,
    backend: str,
    promise: TransportPromise,
    every: Sequence[tuple[NodeFacts, RankFacts]],
) -> Facts:
    """What ranks read, by number, as one: a node's counters by its first rank."""
    return Facts(
        backend=backend,
        size_bytes=promise.size_bytes // 4 * 4,
        calls=promise.calls,
        nodes=tuple(node for node, _ in every[:: world.local_size]),
        ranks=tuple(rank for _, rank in every),
    )


def _send(buffer: torch.Tensor, calls: int, device: torch.device) -> None:
    for _ in range(calls):
        dist.all_reduce(buffer)
    finish(device)


def _meet(device: torch.device) -> None:
    by_rank([0], device)


def _backend(device: torch.device) -> str:
    """Of the default group for tensors on `device`: a group may have one for each kind."""
    group: Any = dist.group.WORLD
    try:
        return str(group._get_backend(device).name()).lower()
    except (RuntimeError, AttributeError):
        return str(dist.get_backend()).lower()
