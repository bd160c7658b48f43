"""The fabric of a virtual cluster: sweeps, pairs, small messages and counters, as measured.

The suite's own nesting of communicators and repeats, its search for a culprit and its judges run
on values drawn from the virtual cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.fabric import (
    curves,
    judge_busbw,
    judge_latencies,
    judge_slow_links,
)
from pytest_mnode.criteria.port_counters.judging import clock_steps, judge
from pytest_mnode.criteria.port_counters.reading import CARRIER, TCP, Counters, PortReading
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import wants_more
from pytest_mnode.evidence.check import CHECKS
from pytest_mnode.measurement import Bound, Measurement
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of
from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw, bounds_of
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.latency import SIZES_BYTES, Latencies, rounds_of
from pytest_mnode.measuring.limits import CHECKED_CALLS, repeats_of_each
from pytest_mnode.measuring.locating.leave_one_out import (
    FEWEST_NODES,
    MOST_NODES,
    Trial,
    culprit_of_trials,
)
from pytest_mnode.measuring.locating.locate import BUDGET_S, SlowLinks, search_slow_links
from pytest_mnode.measuring.locating.pairs import MeasuredRound
from pytest_mnode.measuring.locating.rounds import Reading, Round
from pytest_mnode.measuring.sweep import Row, Sweep, Unmeasured, calls_of_a_repeat
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.spec.alpha_beta import Algorithm as Moves
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s
from pytest_mnode.spec.fabric import BusbwPromise
from pytest_mnode.virtual.cases import NOT_REHEARSED, case
from pytest_mnode.virtual.cluster import (
    LEAF_NODES,
    REPEATS_DIFFER,
    TCP_GBYTES_S,
    VirtualCluster,
)
from pytest_mnode.virtual.machines import links_of

_FILE = "acceptance/test_fabric.py"
_ROUND_S = 0.08
"""Seconds of a round of pairs: 12 chunks of 5 ms, and the exchange of rates. [choice]"""
_PAIRS_DIFFER = 0.01
"""Standard deviation of the rate of a pair. [choice]"""
_MESSAGES_DIFFER = 0.08
"""Standard deviation of the logarithm of a small message's time. [choice]"""
_OUTSIDE = (
    ("test_traffic_runs_on_the_fabric", "transport", "no rank of a virtual cluster writes a log"),
    ("test_nccl_tests_reach_the_line_rate", "nccl_tests", "no program runs"),
    ("test_rdma_by_perftest_is_as_promised", "write_bandwidth", "no program runs"),
)
_PACKETS = 50_000_000


def fabric(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_fabric.py`."""
    promised = cluster.spec.criteria.fabric
    assert promised is not None
    names = cluster.nodes
    known: list[Culprit] = []
    for name in COLLECTIVES:
        if (promise := promised.busbw(name)) is None:
            continue
        found = _busbw(cluster, name, promise, known)
        test = f"{_FILE}::test_collective_reaches_the_line_rate[{name}]"
        question = "Does this collective reach the line rate promised, with the right results?"
        yield case(test, question, judge_busbw(found), names, charts=curves(found))
    first = next(filter(None, map(promised.busbw, ("send_recv", *COLLECTIVES))), None)
    if first is not None and len(names) > 1:
        links = locate(
            cluster,
            first.nic_mbits_s(cluster.spec.fabric),
            (),
            outliers_only=promised.send_recv_busbw is None,
            every_path=False,
        )
        rates = [links.rates] if links.rates is not None else []
        yield case(
            f"{_FILE}::test_every_path_reaches_the_line_rate",
            "Does every path between two nodes reach the line rate promised, in each direction?",
            judge_slow_links(links),
            names,
            paths=rates,
        )
    if len(names) > 2:
        yield case(
            f"{_FILE}::test_small_messages_are_as_fast_as_between_other_nodes",
            "Do small messages take as long between any two nodes as between most?",
            judge_latencies(_latencies(cluster), names),
            names,
        )
    for test, key, why in _OUTSIDE:
        if getattr(promised, key) is not None:
            yield case(f"{_FILE}::{test}", "", why=f"{NOT_REHEARSED}: {why}")
    yield ports(cluster, _FILE)


def ports(cluster: VirtualCluster, file: str) -> CaseResult:
    """The case on counters of ports, which each loaded criterion has."""
    question = "Did every fabric port stay up, free of errors and losses, during this criterion?"
    test = f"{file}::test_fabric_ports_stay_up_and_free_of_errors"
    return case(test, question, _counted(cluster), cluster.nodes)


def _counted(cluster: VirtualCluster) -> list[Measurement]:
    fabric, nodes = cluster.spec.fabric, cluster.nodes
    names = links_of(fabric)
    steps = cluster.clock_steps_s

    def reading(node: int, *, after: bool) -> PortReading:
        found: dict[str, Counters] = {}
        for name in names:
            port = name if fabric.protocol is None else f"{name}:1"
            counted: Counters = (
                {"tx_packets": 0, "rx_packets": 0, "rx_errors": 0, "rx_dropped": 0, CARRIER: 1}
                if fabric.protocol is None
                else {
                    "port_xmit_packets": 0,
                    "port_rcv_packets": 0,
                    "symbol_error": 0,
                    "link_downed": 0,
                    "port_rcv_errors": 0,
                    "out_of_sequence": 0,
                }
            )
            found[port] = counted
            if after:
                for counter in counted:
                    counted[counter] = _PACKETS if "packets" in counter else counted[counter]
                for (at, of, counter), count in cluster.errors.items():
                    if (at, of) == (node, name):
                        counted[counter] = (counted.get(counter) or 0) + count
        if fabric.protocol is None:
            found[TCP] = {"OutSegs": _PACKETS if after else 0, "RetransSegs": 0, "TCPOFOQueue": 0}
        return PortReading(f"boot-{node}", found, steps.get(node, 0.0) if after else 0.0)

    before = {name: reading(node, after=False) for node, name in enumerate(nodes)}
    last = {name: reading(node, after=True) for node, name in enumerate(nodes)}
    measurements = judge(before, last, fabric)
    clocks = promise_of(CHECKS["test_clocks_agree"], cluster.spec)
    if clocks is not None:
        measurements.append(clock_steps(before, last, clocks.skew_s))
    return measurements


def _busbw(
    cluster: VirtualCluster, collective: str, promise: BusbwPromise, known: list[Culprit]
) -> Busbw:
    """As `measuring.busbw.measure_busbw`: sweeps, and the culprit if one falls short."""
    spec, world = cluster.spec, cluster.world
    nodes = len(cluster.nodes)
    platform = Platform.of(spec)
    model = CollectiveModel(platform, collective, nodes, cluster.per_node, cluster.backend)
    algorithms = algorithms_of(Collective(collective), cluster.backend, cluster.per_node)
    sweeps = tuple(
        AlgorithmSweep(
            one,
            _sweep(cluster, collective, promise, one, bounds_of(promise, model, one)),
            promise,
            model,
        )
        for one in algorithms
    )
    traffic = _traffic(cluster, sweeps, collective)
    found = Busbw(spec, world, cluster.backend, sweeps, traffic)
    short = next((one for one in sweeps if one.falls_short), None)
    if short is None:
        return found
    if known:
        return Busbw(spec, world, cluster.backend, sweeps, traffic, known[0], named=True)
    links = locate(cluster, promise.nic_mbits_s(spec.fabric), traffic)
    culprit = links.summary if links.culprit is not None else None
    if links.faults == 0:
        culprit = _only_in_collectives(cluster, promise)
    if culprit is not None:
        known.append(culprit)
    named = culprit is not None
    return Busbw(spec, world, cluster.backend, sweeps, traffic, culprit or links.summary, named)


def _sweep(
    cluster: VirtualCluster,
    collective: str,
    promise: BusbwPromise,
    algorithm: Algorithm,
    judged: dict[int, Bound],
) -> Sweep:
    measured, rng = COLLECTIVES[collective], cluster.night.rng
    ranks = cluster.ranks
    times: dict[int, list[tuple[float, ...]]] = {size: [] for size in promise.sizes_bytes}
    rows: dict[int, Row] = {}
    left: dict[int, str] = {}

    def row(size: int) -> Row:
        moved = measured.moved_bytes(size, ranks)
        call_s = cluster.collective_s(collective, moved, algorithm=algorithm.name)
        calls = calls_of_a_repeat(call_s)
        least = CHECKED_CALLS if size == min(promise.sizes_bytes) else 1
        checked = max(least, min(CHECKED_CALLS, calls)) + 4 * len(times[size])
        wrong, at, senders = _wrong(cluster, checked)
        return Row(
            collective, ranks, size, moved, measured.part(size, ranks), calls, tuple(times[size]),
            wrong, at, senders, checked,
        )  # fmt: skip

    def due(size: int) -> bool:
        bound = judged.get(size)
        if bound is None or not times[size]:
            return not times[size]
        found = rows[size].estimate
        decided = found is not None and bound.decides(*found.interval) is not None
        return wants_more(len(times[size]), promise.communicators, decided=decided)

    for size in promise.sizes_bytes:
        try:
            measured.part(size, ranks)
        except ValueError as error:
            left[size] = str(error)
    while sizes := [size for size in promise.sizes_bytes if size not in left and due(size)]:
        kept = cluster.communicator_loss()
        for size in sizes:
            whole_s = cluster.collective_s(
                collective, measured.moved_bytes(size, ranks), algorithm=algorithm.name
            )
            each = repeats_of_each(promise.repeats, promise.communicators if size in judged else 1)
            noise = np.abs(1 + REPEATS_DIFFER * rng.standard_normal(each))
            times[size].append(tuple((whole_s / kept * noise).tolist()))
            rows[size] = row(size)
    unmeasured = tuple(Unmeasured(size, why) for size, why in left.items())
    return Sweep(measured, ranks, tuple(rows[size] for size in sorted(rows)), unmeasured)


def _wrong(cluster: VirtualCluster, checked: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Wrong values, the ranks that received them, and those that sent them, as far as known.

    A rank that corrupts what it sends spoils the results of all; one that keeps stale results
    spoils its own.
    """
    rng = cluster.night.rng
    senders = [
        rank
        for rank, share in cluster.corrupts.items()
        if rng.random() < 1 - (1 - share) ** checked
    ]
    stale = [
        rank for rank, share in cluster.stale.items() if rng.random() < 1 - (1 - share) ** checked
    ]
    at = tuple(range(cluster.ranks)) if senders else tuple(stale)
    return len(at) * 7, at, tuple(senders)


def _traffic(
    cluster: VirtualCluster, sweeps: Sequence[AlgorithmSweep], collective: str
) -> tuple[SentByNode, ...]:
    """Bytes that each node counted: over its fabric, or over the management network by TCP."""
    sent = sum(row.timed_bytes for one in sweeps for row in one.sweep.rows)
    names, management = links_of(cluster.spec.fabric), cluster.spec.management
    other = links_of(management)[0] if management else "eth0"

    def of_node(node: int, name: str) -> SentByNode:
        least = 0 if node and collective == Collective.BROADCAST else sent
        if node in cluster.tcp:
            return SentByNode(name, {other: 2 * sent, **dict.fromkeys(names, 0)}, least)
        return SentByNode(name, {other: 0, **dict.fromkeys(names, 2 * sent // len(names))}, least)

    return tuple(of_node(node, name) for node, name in enumerate(cluster.nodes))


def locate(
    cluster: VirtualCluster,
    slow_below_mbits_s: float,
    traffic: tuple[SentByNode, ...],
    *,
    budget_s: float = BUDGET_S,
    outliers_only: bool = False,
    every_path: bool = True,
) -> SlowLinks:
    """As `find_slow_links`."""
    names, local = links_of(cluster.spec.fabric), range(cluster.per_node)
    each = max(1, len(names) // cluster.per_node)
    used = [names[r * len(names) // cluster.per_node :][:each] for r in local]
    return search_slow_links(
        cluster.world,
        cluster.spec,
        traffic,
        slow_below_mbits_s,
        _Pairs(cluster) if len(cluster.nodes) > 1 else None,
        lambda: used * len(cluster.nodes),
        budget_s=budget_s,
        outliers_only=outliers_only,
        every_path=every_path,
    )


class _Pairs:
    """Rates of pairs in rounds, as `measuring.locating.pairs.Pairs` measures them."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster, self._spent_s = cluster, 0.0
        self._tx, self._rx = map(cluster.rail_shares, (cluster.tx, cluster.rx))

    def day(self) -> int:
        return 0

    def measure(self, step: Round) -> MeasuredRound:
        cluster, self._spent_s = self._cluster, self._spent_s + _ROUND_S
        fabric, rng = cluster.spec.fabric, cluster.night.rng
        rails = cluster.rails
        line = fabric.line_rate_mbits_s * rails.nics_each * cluster.of_line
        tcp = TCP_GBYTES_S * 8e3 / rails.count
        leaving = np.zeros(len(cluster.uplinks))
        for flow in step.flows:
            if cluster.leaf(flow.sender) != cluster.leaf(flow.receiver):
                leaving[cluster.leaf(flow.sender)] += 1
        room = np.minimum(1.0, cluster.uplinks * LEAF_NODES / np.maximum(leaving, 1.0))
        readings = []
        for flow in step.flows:
            one, other = flow.sender, flow.receiver
            share = cluster.pairs.get((min(one, other), max(one, other)), 1.0)
            if cluster.leaf(one) != cluster.leaf(other):
                share = min(share, float(room[cluster.leaf(one)]))
            noise = 1 - _PAIRS_DIFFER * np.abs(rng.standard_normal(len(flow.rails)))
            for rail, of_rail in zip(flow.rails, noise, strict=True):
                ends = min(float(self._tx[one, rail]), float(self._rx[other, rail]), share)
                rate = ends * line * of_rail
                if {one, other} & cluster.tcp:
                    rate = min(rate, tcp * of_rail)
                readings.append(Reading(one, other, rail, float(rate), step.alone))
        return MeasuredRound(tuple(readings), self._spent_s)


def _only_in_collectives(cluster: VirtualCluster, promise: BusbwPromise) -> Culprit | None:
    """As `leave_one_out.slow_in_collectives`."""
    fabric = cluster.spec.criteria.fabric
    promise = (fabric.all_reduce_busbw if fabric else None) or promise
    count = len(cluster.nodes)
    if not FEWEST_NODES <= count <= MOST_NODES:
        return None
    size = promise.sizes_bytes[-1]

    def rate(members: Sequence[int]) -> float:
        chosen = np.array(members)
        spent_s = cluster.collective_s("all_reduce", size, algorithm="default", members=chosen)
        spent_s = cluster.night.around(spent_s, REPEATS_DIFFER)
        return busbw_gbytes_s("all_reduce", size, spent_s, len(members) * cluster.per_node)

    def trials() -> Iterator[Trial]:
        every = range(count)
        while True:
            without = (rate([n for n in every if n != left]) for left in every)
            yield Trial(rate(every), tuple(without))

    platform = Platform.of(cluster.spec)
    model = CollectiveModel(platform, "all_reduce", count, cluster.per_node, cluster.backend)
    enough = promise.bound_gbytes_s(model, (Moves.RING,), size).accepted[0]
    return culprit_of_trials(trials(), enough, cluster.nodes)


def _latencies(cluster: VirtualCluster) -> list[Latencies]:
    rng, count = cluster.night.rng, len(cluster.nodes)
    found = []
    for size in SIZES_BYTES:
        by_pair = {}
        for pairs in rounds_of(count):
            for one, other in pairs:
                slowest = float(rng.standard_normal(cluster.per_node).max())
                time_s = cluster.step_s * 2 * math.exp(_MESSAGES_DIFFER * slowest)
                by_pair[one, other] = time_s + cluster.late_s[one] + cluster.late_s[other]
        found.append(Latencies(size, 3, 20e-6, by_pair))
    return found
