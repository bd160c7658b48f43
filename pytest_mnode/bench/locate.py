"""Finds who makes the fabric slow; called only when it is, and within a budget."""

from __future__ import annotations

import time

import torch

from pytest_mnode.bench import blame
from pytest_mnode.bench.agree import by_rank
from pytest_mnode.bench.pairs import PairRate, message_bytes, pair_rate
from pytest_mnode.bench.traffic import NodeTraffic, astray
from pytest_mnode.spec import Spec
from pytest_mnode.world.contract import World

BUDGET_S = 20.0
_CONFIRMED_BY = 2


def locate(
    world: World,
    spec: Spec,
    traffic: tuple[NodeTraffic, ...],
    slow_below_mbits_s: float,
    device: torch.device,
) -> str:
    """Who to blame, in words. All ranks call this, with the same traffic.

    Neighbours in a ring send to each other both ways; further pairs are tried only while every one
    is slow; a suspect counts when it is slow with two healthy partners, where there are two.
    """
    fabric, management = spec.fabric, spec.management
    interface = "+".join(fabric.interfaces)
    pairs = _Pairs(world, message_bytes(fabric.line_rate_mbits_s), device)
    if all(node.astray(fabric) for node in traffic):  # nothing more to learn from more pairs
        pairs.measure(world.nodes[0], world.nodes[1 % len(world.nodes)])
    else:
        _search(pairs, slow_below_mbits_s)
    found = blame.culprit(
        world.nodes,
        pairs.rates,
        slow_below_mbits_s,
        interface,
        management.line_rate_mbits_s if management else None,
    )
    late = f"not all pairs were tried within {BUDGET_S:.0f} s" if pairs.out_of_time else None
    return "; ".join(filter(None, (astray(traffic, fabric), found or _nobody(pairs), late)))


def _nobody(pairs: _Pairs) -> str:
    if not pairs.rates:
        return "no pair of nodes could be tried"
    slowest = min(pairs.rates, key=lambda rate: rate.mbits_s)
    return (
        f"no node alone: pairs keep the rate by themselves (slowest {slowest.sender}→"
        f"{slowest.receiver} {slowest.mbits_s:.0f} Mbit/s)"
    )


def _search(pairs: _Pairs, slow_below_mbits_s: float) -> None:
    nodes = pairs.world.nodes
    for distance in range(1, len(nodes) // 2 + 1):
        for i, node in enumerate(nodes):
            pairs.measure(node, nodes[(i + distance) % len(nodes)])
        if blame.fastest_mbits_s(pairs.rates) >= slow_below_mbits_s:
            break
    doubted = {s.node for s in blame.suspects(nodes, pairs.rates, slow_below_mbits_s)}
    healthy = [node for node in nodes if node not in doubted]
    for node in nodes:
        if node in doubted:
            known = [other for other in healthy if pairs.measured(node, other)]
            others = [other for other in healthy if other not in known]
            for other in others[: max(0, _CONFIRMED_BY - len(known))]:
                pairs.measure(node, other)


class _Pairs:
    """Pairs measured so far, both ways; nothing is measured once the budget is spent."""

    def __init__(self, world: World, size_bytes: int, device: torch.device) -> None:
        self.world = world
        self.rates: list[PairRate] = []
        self.out_of_time = False
        self._size_bytes = size_bytes
        self._device = device
        self._started_s = time.monotonic()

    def measured(self, one: str, other: str) -> bool:
        return any((r.sender, r.receiver) == (one, other) for r in self.rates)

    def measure(self, one: str, other: str) -> None:
        if one == other or self.measured(one, other) or self.out_of_time:
            return
        for sender, receiver in ((one, other), (other, one)):
            self.rates.append(
                pair_rate(self.world, sender, receiver, self._size_bytes, self._device)
            )
        spent_s = by_rank([time.monotonic() - self._started_s], self._device)[0][0]
        self.out_of_time = spent_s > BUDGET_S  # by the clock of rank 0, so all agree
