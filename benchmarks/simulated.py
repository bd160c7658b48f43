"""A simulated fabric: readings of pairs on a cluster of any size, with faults and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.measuring.limits import EVERY_PAIR_UP_TO
from pytest_mnode.measuring.locating.diagnosis import Diagnosis, diagnose
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Flow, Reading, Round
from pytest_mnode.measuring.locating.search import search

BOUND_MBITS_S = 850.0
HEALTHY_MBITS_S = 956.0
"""Rate of TCP on the line at an MTU of 1500."""
KINDS = ("node", "tx", "rx", "rail", "rail tx", "rail rx", "path", "one-way path")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. mbits_s: rate instead of the healthy one. other: second end of a path, else None."""

    kind: str
    node: int
    other: int | None
    rail: int | None
    mbits_s: float

    def slows(self, sender: int, receiver: int, rail: int) -> bool:
        """Whether the fault affects this link."""
        if self.rail not in (None, rail):
            return False
        if self.other is not None:
            ends = [(self.node, self.other), (self.other, self.node)]
            return (sender, receiver) in (ends if self.kind == "path" else ends[:1])
        sends, receives = self.node == sender, self.node == receiver
        if self.kind.endswith("tx"):
            return sends
        return receives if self.kind.endswith("rx") else sends or receives


@dataclass(frozen=True, slots=True)
class Noise:
    """Errors of readings.

    spread: standard deviation, as a share of the rate. disturbed: share of readings that something
    else slows to 0.3 to 0.9 of the rate. leaf: number of neighbours that share a switch, on which a
    slow flow slows all others, as in lossless fabrics; 0 for none.
    """

    spread: float = 0.04
    disturbed: float = 0.01
    leaf: int = 0


class Fabric:
    """A simulated cluster that measures rounds, and counts them."""

    def __init__(
        self, nodes: int, rails: int, faults: Sequence[Fault], noise: Noise, seed: int
    ) -> None:
        self.nodes = nodes
        self.rails = rails
        self.faults = tuple(faults)
        self.rounds = 0
        self.tests = 0
        self.tests_by_stage: dict[str, int] = {}
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._by_node: dict[int, list[Fault]] = {}
        for fault in faults:
            for node in {fault.node, fault.node if fault.other is None else fault.other}:
                self._by_node.setdefault(node, []).append(fault)

    def measure(self, step: Round) -> list[Reading]:
        """Readings of a round. Raises AssertionError for an invalid round."""
        ends = [node for flow in step.flows for node in (flow.sender, flow.receiver)]
        assert len(ends) == len(set(ends)), f"a node twice in {step}"
        assert not step.alone or len(step.flows) == 1, f"not alone: {step}"
        self.rounds += 1
        self.tests += step.tests
        self.tests_by_stage[step.stage] = self.tests_by_stage.get(step.stage, 0) + step.tests
        links = [(flow, rail) for flow in step.flows for rail in flow.rails]
        rates = np.array([self._rate(flow, rail) for flow, rail in links])
        if self._noise.leaf:
            rates = self._spread_congestion(links, rates)
        rates *= np.clip(self._random.normal(1, self._noise.spread, len(links)), 0.5, 1.5)
        if self._noise.disturbed:
            hit = self._random.random(len(links)) < self._noise.disturbed
            rates[hit] *= self._random.uniform(0.3, 0.9, int(hit.sum()))
        return [
            Reading(flow.sender, flow.receiver, rail, float(rate), step.alone)
            for (flow, rail), rate in zip(links, rates, strict=True)
        ]

    def _rate(self, flow: Flow, rail: int) -> float:
        rate = HEALTHY_MBITS_S
        for node in (flow.sender, flow.receiver):
            for fault in self._by_node.get(node, ()):
                if fault.mbits_s < rate and fault.slows(flow.sender, flow.receiver, rail):
                    rate = fault.mbits_s
        return rate

    def _spread_congestion(
        self, links: Sequence[tuple[Flow, int]], rates: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Rates slowed by congestion, per rail, because each rail has its own switches."""
        leaf = self._noise.leaf
        switches = [
            [(node // leaf, rail) for node in (flow.sender, flow.receiver)] for flow, rail in links
        ]
        worst: dict[tuple[int, int], float] = {}
        for ends, rate in zip(switches, rates, strict=True):
            for switch in ends:
                worst[switch] = min(float(rate), worst.get(switch, float("inf")))
        return np.array([min(worst[switch] for switch in ends) for ends in switches])


def random_faults(
    nodes: int, rails: int, count: int, kinds: Sequence[str], seed: int, *, on_ring: bool
) -> list[Fault]:
    """`count` faults on different nodes, none at an end of another's path.

    on_ring: whether paths are only between neighbours in the order of nodes.
    """
    random = np.random.default_rng(seed)
    found: list[Fault] = []
    taken: set[int] = set()
    while len(found) < count:
        kind = str(random.choice(list(kinds)))
        node = int(random.integers(nodes))
        other = None
        if kind.endswith("path"):
            step = 1 if on_ring else int(random.integers(1, nodes))
            other = (node + step) % nodes
        ends = {node} if other is None else {node, other}
        if ends & taken:
            continue
        taken |= ends
        rail = int(random.integers(rails)) if kind.startswith("rail") else None
        found.append(Fault(kind, node, other, rail, float(random.uniform(0.05, 0.65)) * 956))
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """Result of a search. missed: faults not fully confirmed. wrong: confirmed but untrue."""

    missed: tuple[Fault, ...]
    wrong: tuple[str, ...]
    tests: int
    rounds: int
    blamed: Diagnosis


def locate(fabric: Fabric, time_is_up: Callable[[Fabric, Round], bool] | None = None) -> Case:
    """Search the fabric to the end, or until `time_is_up` is true before a round."""
    rates = Rates(fabric.nodes, fabric.rails, BOUND_MBITS_S)
    steps = search(rates, every_path=True, day=0)
    complete: bool | None = None
    readings: list[Reading] | None = None
    try:
        step = next(steps)
        while True:
            late = time_is_up is not None and time_is_up(fabric, step)
            readings = None if late else fabric.measure(step)
            step = steps.send(readings)
    except StopIteration as end:
        complete = end.value
    assert complete == (readings is not None)
    found = diagnose(rates)
    missed, wrong = _compare(fabric, found)
    return Case(missed, wrong, fabric.tests, fabric.rounds, found)


def before_all_pairs(fabric: Fabric, step: Round) -> bool:
    """Whether only the final stage, pairs not yet measured, is left in a search of many nodes."""
    return step.stage == "all pairs" and fabric.nodes > EVERY_PAIR_UP_TO


def _compare(fabric: Fabric, found: Diagnosis) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    reported: set[tuple[int, int | None, bool, bool, int]] = set()
    for node in found.nodes:
        if node.confirmed:
            reported |= {
                (node.node, None, node.sends_slowly, node.receives_slowly, r) for r in node.rails
            }
    for path in found.paths:
        if path.confirmed:
            reported |= {(path.sender, path.receiver, True, False, r) for r in path.rails}
            if path.both_ways:
                reported |= {(path.receiver, path.sender, True, False, r) for r in path.rails}
    true = {fault: set(_facts(fault, range(fabric.rails))) for fault in fabric.faults}
    every = set().union(*true.values()) if true else set()
    missed = tuple(fault for fault, facts in true.items() if not facts <= reported)
    wrong = tuple(map(str, sorted(reported - every, key=str)))
    if found.too_slow_rails:
        wrong += ("the fabric as a whole",)
    return missed, wrong


def _facts(fault: Fault, rails: Iterable[int]) -> Iterable[tuple[int, int | None, bool, bool, int]]:
    for rail in rails if fault.rail is None else (fault.rail,):
        if fault.other is not None:
            yield fault.node, fault.other, True, False, rail
            if fault.kind == "path":
                yield fault.other, fault.node, True, False, rail
        else:
            sends, receives = not fault.kind.endswith("rx"), not fault.kind.endswith("tx")
            yield fault.node, None, sends, receives, rail
