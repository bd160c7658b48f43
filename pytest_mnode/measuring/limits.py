"""Time limits of the tests of fabric and devices, computed from the spec. Pure, without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_mnode.detection import LOOKS
from pytest_mnode.measuring.port_meanwhile import TRIES_S
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective

EVERY_PAIR_UP_TO = 16
"""Number of nodes up to which measuring all pairs is cheaper than groups."""
EVERY_PATH_UP_TO = 64
"""Number of nodes up to which all pairs are measured by default."""
SAMPLE_TURNS = 8
"""Turns of the circle in a sample; every node has one partner per turn. They take 16 rounds."""

if TYPE_CHECKING:
    from pytest_mnode.marks import LimitOf
    from pytest_mnode.options import Settings
    from pytest_mnode.spec import BusbwPromise, Spec

REPEAT_S = 0.25
"""Duration of a repeat: a shaper's burst, or a clock's resolution, is negligible in it."""
START_UP_S, START_UP_OF_A_RANK_S = 30.0, 0.1
"""Time to create a process group and its connections: a constant, and a part per rank."""
TRIAL_S = 5.0
"""The same constant after a hang: forked ranks form a process group in a second."""
CONNECT_S, CONNECT_OF_A_RANK_S = 1.0, 0.01
"""Time to create one more process group: a constant, and a part per rank."""
START_UP_OF_ACCELERATORS_S = 60.0
"""Contexts of all accelerators of a node, libraries on a file server, NCCL's topology search."""
FACTOR = 10.0
"""Limit as a multiple of the time at a promise that is just kept: slower is a hang, not a rate."""
LEAST_SEARCH_S = 20.0
"""A search of a few nodes: all pairs, and suspects alone."""
ROUND_S = 0.1
"""A round of pairs over connections that are there: 126 rounds over 64 nodes take 13 s."""
CONNECT_PAIRS_S = 0.3
"""[choice] The first messages of new pairs on accelerators: NCCL connects two ranks when they first
send, and all pairs of a round at the same time."""
CONFIRMING_ROUNDS = 60
"""Rounds of suspects that are tried alone, and of controls."""
LEAST_REPEATS = 3
"""Least repeats on each communicator of a size that is judged."""
CHECKED_CALLS = 12
"""Number of calls in a row that are checked one by one: for a large size only as many as fill a
repeat, but for the smallest size always all, to find one stale result in that many calls."""


def sweep_s(promise: BusbwPromise, model: CollectiveModel) -> float:
    """Seconds that one sweep of all sizes takes if busbw is exactly at its bound."""
    spent_s, judged = 0.0, promise.judged_sizes_bytes(model)
    for size in promise.sizes_bytes:
        call_s = _call_s(size, promise, model)
        calls = math.ceil(REPEAT_S / call_s)
        # Checked calls and warm-up, then the repeats, and up to a quarter to time one call.
        checked = 1 + min(CHECKED_CALLS, calls)
        times = promise.communicators if size in judged else 1
        repeats = repeats_of_each(promise.repeats, times) * times
        spent_s += (checked + promise.warmup + times - 1 + (repeats + 0.25) * calls) * call_s
    return spent_s


def repeats_of_each(repeats: int, communicators: int) -> int:
    """Repeats on each communicator, if `repeats` are spread over them.

    Of one communicator all; of several at least three each, so that one that something disturbed
    is not the median.
    """
    if communicators == 1:
        return repeats
    return max(LEAST_REPEATS, math.ceil(repeats / communicators))


def _call_s(size_bytes: int, promise: BusbwPromise, model: CollectiveModel) -> float:
    slowest_s = max(model.time_s(one, size_bytes) for one in model.default)
    return slowest_s / promise.at_least_fraction


def _model(spec: Spec, collective: str, nodes: int, ranks_per_node: int) -> CollectiveModel:
    """That of gloo, whose busbw at line rate is the lowest."""
    return CollectiveModel(Platform.of(spec), collective, nodes, ranks_per_node, "gloo")


def collective_limit_s(collective: str) -> LimitOf:
    """Limit of this collective's test: start-up, locating, communicators, ten times the sweep."""

    def limit_s(spec: Spec, settings: Settings, nodes: int, ranks_per_node: int) -> float:
        fabric = spec.criteria.fabric
        promise = fabric.busbw(collective) if fabric else None
        limit = paths_limit_s(spec, settings, nodes, ranks_per_node)
        if promise is None or nodes * ranks_per_node < 2:
            return limit
        ranks = nodes * ranks_per_node
        connect_s = CONNECT_S + CONNECT_OF_A_RANK_S * ranks
        limit += max(LOOKS) * promise.communicators * connect_s
        return limit + FACTOR * sweep_s(promise, _model(spec, collective, nodes, ranks_per_node))

    return limit_s


def still_limit_s(spec: Spec, _: Settings, nodes: int, ranks_per_node: int) -> float:
    """Longest time without a call of any rank: start-up, and ten times a sweep's longest call."""
    ranks, fabric = nodes * ranks_per_node, spec.criteria.fabric
    longest_s = 0.0
    for collective in Collective if ranks > 1 else ():
        if fabric and (promise := fabric.busbw(collective)):
            model = _model(spec, collective, nodes, ranks_per_node)
            longest_s = max(longest_s, _call_s(max(promise.sizes_bytes), promise, model))
    return _start_up_s(spec, ranks) + FACTOR * longest_s


def locating_s(given_s: float | None, spec: Spec, nodes: int, *, every_path: bool = False) -> float:
    """Seconds for a search of slow links: as given, or what its rounds take over these nodes.

    All rails of a node are measured in one round. Up to 64 nodes, or with every_path, all pairs are
    measured, in n - 1 turns of the circle and both ways; of more nodes groups, and a sample.
    """
    if given_s is not None:
        return given_s
    all_pairs = every_path or nodes <= EVERY_PATH_UP_TO
    rounds = 2 * (nodes - 1) if all_pairs else 2 * SAMPLE_TURNS
    if nodes > EVERY_PAIR_UP_TO:
        rounds += 4 + 2 * math.ceil(math.log2(math.sqrt(nodes)))  # the ring, and halves of groups
    connect_s = CONNECT_PAIRS_S if spec.accelerators.per_node else 0.0
    return max(LEAST_SEARCH_S, (rounds + CONFIRMING_ROUNDS) * (ROUND_S + connect_s))


def paths_limit_s(spec: Spec, settings: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of the test of all paths: start-up, and the budget of locating."""
    budget_s = locating_s(settings.locate_budget_s, spec, nodes, every_path=True)
    return _start_up_s(spec, nodes * ranks_per_node) + budget_s


def at_once_limit_s(spec: Spec, _: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of a test of traffic of many nodes at once: 100 repeats, and some of each node."""
    repeats = 100 + 8 * nodes
    return _start_up_s(spec, nodes * ranks_per_node) + FACTOR * repeats * REPEAT_S


def traffic_limit_s(spec: Spec, settings: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of a test of today's traffic: the same, and all calls of experts at the line rate."""
    base_s, traffic = at_once_limit_s(spec, settings, nodes, ranks_per_node), spec.criteria.traffic
    if traffic is None or traffic.experts is None:
        return base_s
    promise, ranks = traffic.experts, nodes * ranks_per_node
    calls = ranks + promise.calls_over(ranks)  # each to a hot rank, and back
    sent_bits = 2 * 8 * calls * ranks * promise.skew * sum(promise.sizes_bytes)
    return base_s + FACTOR * sent_bits / spec.fabric.line_rate_bits_s


def failover_limit_s(spec: Spec, settings: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of the test that takes ports down: each of up to 16 nodes, with a minute to come up."""
    fabric = spec.criteria.fabric
    base_s = at_once_limit_s(spec, settings, nodes, ranks_per_node)
    if fabric is None or fabric.failover is None:
        return base_s
    promise = fabric.failover
    each_s = TRIES_S + promise.down_for_s + promise.within_s
    return base_s + each_s * len(promise.ports) * min(nodes, 16)


SCAN_S = 120.0
"""[choice] A program that asks all ports of a subnet: a few ms for each of 20,000."""


def switches_limit_s(spec: Spec, settings: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of the test of switches: six scans, and traffic in between."""
    return 6 * SCAN_S + at_once_limit_s(spec, settings, nodes, ranks_per_node)


def trial_limit_s(spec: Spec, _: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of one small collective after a hang, in fresh ranks."""
    return TRIAL_S + _start_up_s(spec, nodes * ranks_per_node) - START_UP_S


def transport_limit_s(spec: Spec, _: Settings, nodes: int, ranks_per_node: int) -> float:
    """Limit of the proof of transport: start-up, and ten times its calls at the line rate."""
    fabric = spec.criteria.fabric
    start_up_s = _start_up_s(spec, nodes * ranks_per_node)
    if fabric is None or fabric.transport is None:
        return start_up_s
    sent_bits = 2 * fabric.transport.size_bytes * fabric.transport.calls * 8
    return start_up_s + FACTOR * sent_bits / spec.fabric.line_rate_bits_s


def _start_up_s(spec: Spec, ranks: int) -> float:
    of_accelerators_s = START_UP_OF_ACCELERATORS_S if spec.accelerators.per_node else 0.0
    return START_UP_S + of_accelerators_s + START_UP_OF_A_RANK_S * ranks
