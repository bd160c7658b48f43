"""The fabric of a virtual cluster: sweeps, pairs, small messages and counters, as measured.

The suite's own nesting of communicators and repeats, its search for a culprit and its judges run
on values drawn from the virtual cluster.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.fabric import curves, judge_busbw, judge_latencies, judge_slow_links
from pytest_mnode.criteria.failover import judge_failover
from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.at_once import targets_of
from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw, culprit_by, sweeps_by
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.failover import STEADY_S, PortFailover
from pytest_mnode.measuring.latency import SIZES_BYTES, Latencies, rounds_of
from pytest_mnode.measuring.limits import CHECKED_CALLS
from pytest_mnode.measuring.locating.locate import BUDGET_S, SlowLinks, search_slow_links
from pytest_mnode.measuring.locating.pairs import MeasuredRound
from pytest_mnode.measuring.locating.rounds import Reading, Round
from pytest_mnode.measuring.nvlink_domains import nvlink_gbits_s
from pytest_mnode.measuring.sweep import OneSize, calls_of_a_repeat, sweep_of
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s
from pytest_mnode.spec.fabric import BusbwPromise
from pytest_mnode.spec.traffic import FailoverPromise
from pytest_mnode.virtual.cases import NOT_REHEARSED, case
from pytest_mnode.virtual.cluster import LEAF_NODES, REPEATS_DIFFER, TCP_GBYTES_S, VirtualCluster
from pytest_mnode.virtual.machines import links_of
from pytest_mnode.virtual.messages import proof, why_no_proof
from pytest_mnode.virtual.ports import ports
from pytest_mnode.virtual.tools import tools

_FILE = "acceptance/test_fabric.py"
_ROUND_S = 0.08
"""Seconds of a round of pairs: 12 chunks of 5 ms, and the exchange of rates. [choice]"""
_PAIRS_DIFFER = 0.01
"""Standard deviation of the rate of a pair. [choice]"""
_FAILOVER_CALL_S = 0.04
"""As in `measuring.failover`."""
_OVER_PROMISE, _PAUSE = 1.02, 0.3
"""Of the rate that is promised while a port is down, and of the pause. [choice]"""
_MESSAGES_DIFFER = 0.08
"""Standard deviation of the logarithm of a small message's time. [choice]"""


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
        yield case(test, judge_busbw(found), names, charts=curves(found))
    first = next(filter(None, map(promised.busbw, ("send_recv", *COLLECTIVES))), None)
    if first is not None and len(names) > 1:
        links = locate(
            cluster,
            first.nic_mbits_s(cluster.spec.fabric),
            (),
            outliers_only=promised.send_recv_busbw is None,
            every_path=False,
        )
        yield case(
            f"{_FILE}::test_every_path_reaches_the_line_rate",
            judge_slow_links(links),
            names,
            paths=links.rates,
        )
    if len(names) > 2:
        yield case(
            f"{_FILE}::test_small_messages_are_as_fast_as_between_other_nodes",
            judge_latencies(_latencies(cluster), names),
            names,
        )
    if promised.transport is not None:
        test = f"{_FILE}::test_traffic_runs_on_the_fabric"
        if why := why_no_proof(cluster):
            yield case(test, why=f"{NOT_REHEARSED}: {why}")
        else:
            yield case(test, proof(cluster, promised.transport), names)
    yield from tools(cluster)
    if (of_ports := promised.failover) is not None and len(names) > 1:
        found_of = judge_failover(_failovers(cluster, of_ports), of_ports)
        yield case(f"{_FILE}::test_other_ports_take_over_from_one_that_goes_down", found_of, names)
    yield ports(cluster, _FILE)


def _failovers(cluster: VirtualCluster, promise: FailoverPromise) -> list[PortFailover]:
    """Calls around each port that goes down, of which the others keep what is promised."""
    found, rng = list[PortFailover](), cluster.rng
    for name in targets_of(cluster.nodes):
        node = cluster.nodes.index(name)
        for port in promise.ports:
            down_s = STEADY_S
            up_s = down_s + promise.down_for_s
            end_s, now_s, calls = up_s + promise.within_s + STEADY_S, 0.0, []
            kept = min(1.0, _OVER_PROMISE * promise.at_least_fraction)
            while now_s < end_s:
                took_s = _FAILOVER_CALL_S * (1 + REPEATS_DIFFER * abs(rng.standard_normal()))
                took_s /= kept if down_s <= now_s < up_s else 1
                if now_s <= down_s < now_s + took_s:
                    took_s += cluster.pauses_s.get(node, _PAUSE * promise.within_s)
                calls.append((now_s, now_s + took_s))
                now_s += took_s
            found.append(PortFailover(name, port, "", tuple(calls), down_s, up_s))
    return found


def _busbw(
    cluster: VirtualCluster, collective: str, promise: BusbwPromise, known: list[Culprit]
) -> Busbw:
    """As `measuring.busbw.measure_busbw`, by the same sweeps and the same search."""
    spec, world, backend = cluster.spec, cluster.world, cluster.backend
    platform, nodes = Platform.of(spec), len(cluster.nodes)
    model = CollectiveModel(platform, collective, nodes, cluster.per_node, backend)
    sweeps = sweeps_by(
        lambda measured, algorithm, bounds: sweep_of(
            measured,
            cluster.ranks,
            promise.sizes_bytes,
            functools.partial(_Drawn, cluster=cluster, algorithm=algorithm.name),
            lambda: contextlib.nullcontext(cluster.communicator_loss()),
            bounds,
            promise.repeats,
            promise.communicators,
        ),
        promise,
        model,
    )
    found = Busbw(spec, world, backend, sweeps, _traffic(cluster, sweeps, collective))
    short = next((one for one in sweeps if one.falls_short), None)
    if short is None:
        return found
    if not known:
        links = locate(cluster, promise.nic_mbits_s(spec.fabric), found.traffic)
        culprit, named = culprit_by(
            found, short, links, lambda size: functools.partial(_rates_within, cluster, size)
        )
        if not named:
            return replace(found, culprit=culprit)
        known.append(culprit)
    return replace(found, culprit=known[0], named=True)


@dataclass(slots=True, kw_only=True)
class _Drawn(OneSize):
    """A size whose times are drawn, on communicators that are the share of the rate they keep."""

    cluster: VirtualCluster
    algorithm: str

    def measure(self, kept: Any) -> None:
        try:
            self.measured.part(self.size_bytes, self.ranks)
        except ValueError as error:
            self.why = str(error)
            return
        if not self.times_s:
            moved = self.measured.moved_bytes(self.size_bytes, self.ranks)
            self.call_s = self.cluster.collective_s(
                self.measured.collective, moved, algorithm=self.algorithm
            )
            self.calls = calls_of_a_repeat(self.call_s)
            self.checked = max(self.least_checked, min(CHECKED_CALLS, self.calls))
        noise = 1 + REPEATS_DIFFER * self.cluster.rng.standard_normal(self.repeats)
        self.times_s.append(tuple((self.call_s / kept * np.abs(noise)).tolist()))
        self.checked += 1 + self.repeats

    def votes(self) -> tuple[list[int], tuple[int, ...]]:
        return self.cluster.wrong_calls(self.checked)


def _traffic(
    cluster: VirtualCluster, sweeps: Sequence[AlgorithmSweep], collective: str
) -> tuple[SentByNode, ...]:
    """Bytes that each node counted: over its fabric, or over the management network by TCP."""
    sent = sum(row.timed_bytes for one in sweeps for row in one.sweep.rows)
    return tuple(
        SentByNode(
            name,
            cluster.carried(node, 2 * sent),
            0 if node and collective == Collective.BROADCAST else sent,
        )
        for node, name in enumerate(cluster.nodes)
    )


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
        domains=cluster.domains,
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
        fabric, rng = cluster.spec.fabric, cluster.rng
        rails = cluster.rails
        line = fabric.line_rate_mbits_s * rails.nics_each * cluster.of_line
        tcp = TCP_GBYTES_S * 8e3 / rails.count
        inside = 1e3 * (nvlink_gbits_s(cluster.spec) or 0.0) or line
        leaving = np.zeros(len(cluster.uplinks))
        for flow in step.flows:
            over_nics = cluster.domains[flow.sender] != cluster.domains[flow.receiver]
            if over_nics and cluster.leaf(flow.sender) != cluster.leaf(flow.receiver):
                leaving[cluster.leaf(flow.sender)] += 1
        room = np.minimum(1.0, cluster.uplinks * LEAF_NODES / np.maximum(leaving, 1.0))
        readings = []
        for flow in step.flows:
            one, other = flow.sender, flow.receiver
            share = cluster.pairs.get((min(one, other), max(one, other)), 1.0)
            by_nvlink = cluster.domains[one] == cluster.domains[other]
            if cluster.leaf(one) != cluster.leaf(other) and not by_nvlink:
                share = min(share, float(room[cluster.leaf(one)]))
            noise = 1 - _PAIRS_DIFFER * np.abs(rng.standard_normal(len(flow.rails)))
            for rail, of_rail in zip(flow.rails, noise, strict=True):
                if by_nvlink:
                    ends = min(float(cluster.inside[[one, other]].min()), share)
                    rate = ends * inside * of_rail
                else:
                    ends = min(float(self._tx[one, rail]), float(self._rx[other, rail]), share)
                    rate = ends * line * of_rail
                    if {one, other} & cluster.tcp:
                        rate = min(rate, tcp * of_rail)
                readings.append(Reading(one, other, rail, float(rate), step.alone))
        return MeasuredRound(tuple(readings), self._spent_s)


def _rates_within(
    cluster: VirtualCluster, size_bytes: int, groups: Sequence[Sequence[int]]
) -> list[float]:
    """Busbw of all-reduces in groups of nodes, as `leave_one_out.measured_in_ranks` has it."""
    found = []
    for members in groups:
        spent_s = cluster.collective_s(
            "all_reduce", size_bytes, algorithm="default", members=np.array(members)
        )
        spent_s = cluster.around(spent_s, REPEATS_DIFFER)
        ranks = len(members) * cluster.per_node
        found.append(busbw_gbytes_s("all_reduce", size_bytes, spent_s, ranks))
    return found


def _latencies(cluster: VirtualCluster) -> list[Latencies]:
    rng, count = cluster.rng, len(cluster.nodes)
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
