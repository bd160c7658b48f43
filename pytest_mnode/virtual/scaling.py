"""The training job on 1, 2, 4, … nodes of a virtual cluster: the steps of every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.scaling.efficiency import settled
from pytest_mnode.criteria.scaling.judge import judge, judge_efficiency, judge_parts
from pytest_mnode.criteria.scaling.network import judge_network
from pytest_mnode.criteria.scaling.plan import Group, Plan, Turn
from pytest_mnode.criteria.scaling.timings import AloneTime, GroupSteps, JobTimings, Step
from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.logs.kineto import Call, Traced
from pytest_mnode.measuring.locating.locate import BUDGET_S
from pytest_mnode.spec.scaling import ReferenceModel
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.fabric import locate
from pytest_mnode.virtual.ports import ports

_FILE = "acceptance/test_scaling.py"
_EVERY_RANK_UP_TO = 64
"""Nodes up to which every rank has steps of its own; of more nodes, the slowest rank of each."""
_STEPS_DIFFER, _ROUNDS_DIFFER = 0.004, 0.003
"""Relative standard deviations of a rank's steps, and of its rounds. [choice]"""
_INPUT_S, _OPTIMISER_S, _REST_S = 5e-4, 1e-3, 2e-4
"""Seconds of a step beside computing. [choice]"""
_BACKWARD = 2 / 3
"""Share of computing that can hide communication: the backward pass has twice the products of the
forward pass."""
_TFLOPS, _OF_PRODUCTS = 590.0, 0.4
"""Of matrix products without a promised floor, and the share of products' rate that a small
transformer trains with. [choice]"""
_GRADIENT_BYTES = 4
"""Of a parameter: sums of gradients stay float32."""


def scaling(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_scaling.py`."""
    promise, spec, nodes = cluster.spec.criteria.scaling, cluster.spec, cluster.nodes
    assert promise is not None
    each = cluster.per_node if len(nodes) <= _EVERY_RANK_UP_TO else 1
    plan = Plan(nodes, each, spec.accelerators.per_node, promise)
    found = judge(_timings(cluster, plan), spec, promise)
    if found.falls_short_by_fabric:
        mbits_s = promise.fabric_fraction * spec.fabric.line_rate_mbits_s
        links = locate(cluster, mbits_s, (), budget_s=BUDGET_S)
        found = replace(found, slow_links=links.summary)
    for test, measured in (
        ("test_throughput_grows_with_the_nodes", judge_efficiency(found)),
        ("test_every_second_is_attributed", judge_parts(found)),
        ("test_gradients_travel_on_the_fabric", judge_network(found.sent, spec, promise)),
    ):
        yield case(f"{_FILE}::{test}", measured, nodes)
    yield ports(cluster, _FILE)


def _timings(cluster: VirtualCluster, plan: Plan) -> JobTimings:
    """As the job measures: further rounds while an efficiency is not settled."""
    promise = plan.promise
    job = _Job(cluster, plan)
    device = "cuda" if cluster.spec.accelerators.per_node else "cpu"
    of_job = (plan.ranks_per_node, cluster.backend, device, job.gradient_bytes)
    timings = JobTimings(*of_job, (), ())
    for number in range(promise.rounds_at_most):
        if number >= promise.rounds and settled(timings, promise):
            break
        pairs = [(turn, group) for turn in plan.turns(number) for group in turn.groups]
        trained = (*timings.trained, *(job.steps(*pair) for pair in pairs))
        alone = (*timings.alone, *(one for pair in pairs for one in job.alone(*pair)))
        timings = replace(timings, trained=trained, alone=alone)
    return timings


def _traced(exposed_s: float, sent_s: float, calls: tuple[Call, ...]) -> Traced:
    hidden_s = max(0.0, sent_s - exposed_s)
    return Traced(None, TRACED_STEPS * exposed_s, TRACED_STEPS * hidden_s, 0.0, calls)


class _Job:
    """The reference job's times on a virtual cluster."""

    def __init__(self, cluster: VirtualCluster, plan: Plan) -> None:
        self._cluster, self._plan, promise = cluster, plan, plan.promise
        self.parameters = _parameters(promise.model)
        self.gradient_bytes = _GRADIENT_BYTES * self.parameters
        last = min(promise.bucket_bytes, self.gradient_bytes)
        rest = self.gradient_bytes - last
        self.buckets = (rest, last) if rest else (last,)
        slowest = plan.ranks_per_node < cluster.per_node
        self._speed = cluster.matmul.min(axis=1, keepdims=True) if slowest else cluster.matmul

    def steps(self, turn: Turn, group: Group) -> GroupSteps:
        """The timed steps of a group in a turn."""
        cluster, plan, promise = self._cluster, self._plan, self._plan.promise
        rng, count, each = cluster.rng, len(group), self._plan.ranks_per_node
        members = np.array(group)
        speed = self._speed[members].ravel()
        if promise.compute_s is not None:  # it is emulated by waiting
            speed = np.ones_like(speed)
        shape = (len(speed), promise.steps)
        noise = 1 + _STEPS_DIFFER * np.abs(rng.standard_normal(shape))
        noise *= 1 + _ROUNDS_DIFFER * np.abs(rng.standard_normal((len(speed), 1)))
        late = np.repeat(cluster.late_s[members], each)[:, None]
        compute = self._compute_s(count) / speed[:, None] * noise + late
        read = _INPUT_S + np.repeat(cluster.input_s[members], each)[:, None] + 0 * noise
        sent_s, last_s = (
            self._all_reduce_s(members, size) for size in (self.gradient_bytes, self.buckets[-1])
        )
        backward = _BACKWARD * compute
        bare = np.maximum(last_s, sent_s - backward.min(axis=0)) * (count * each > 1)
        exposed = (compute + read).max(axis=0) + bare - compute - read
        samples = plan.group_batch(count)
        calls = tuple(Call("all_reduce", size) for size in self.buckets) * TRACED_STEPS
        wall = compute + read + exposed + _OPTIMISER_S + _REST_S
        step: Any = wall, compute, exposed, read, _OPTIMISER_S, 0.0, _REST_S, 0.0, backward
        steps: Any = np.stack(np.broadcast_arrays(*Step(*step)), axis=-1)
        names = tuple(plan.nodes[node] for node in group)
        ranks = tuple(node * each + i for node in group for i in range(each))
        moved = 2 * self.gradient_bytes * promise.steps
        return GroupSteps(
            turn.round,
            names,
            ranks,
            steps,
            samples,
            samples * promise.model.context,
            tuple(cluster.carried(node, moved if count > 1 else 0) for node in group),
            traced=tuple(_traced(e, sent_s, calls) for e in exposed.mean(axis=1).tolist()),
        )

    def alone(self, turn: Turn, group: Group) -> Iterator[AloneTime]:
        """All buckets, the last one, and all gradients at once, on the idle fabric."""
        if turn.count < 2:
            return
        names, members = tuple(self._plan.nodes[node] for node in group), np.array(group)
        *others_s, last_s = (self._all_reduce_s(members, size) for size in self.buckets)
        whole_s = self._all_reduce_s(members, self.gradient_bytes)
        yield AloneTime(names, sum(others_s) + last_s, last_s, whole_s)

    def _all_reduce_s(self, members: np.ndarray, size_bytes: int) -> float:
        cluster = self._cluster
        if len(members) == 1:  # within a node: as many times faster as its links are
            return float(2 * size_bytes / cluster.inside_bytes_s)
        spent_s = cluster.collective_s(
            "all_reduce", size_bytes, algorithm="default", members=members
        )
        return cluster.around(spent_s, _ROUNDS_DIFFER)

    def _compute_s(self, count: int) -> float:
        plan = self._plan
        declared = plan.group_compute_s(count)
        if declared is not None:
            return declared
        tokens = plan.group_batch(count) * plan.promise.model.context
        each = tokens / (count * plan.ranks_per_node)
        promised = self._cluster.spec.criteria.devices
        floors = promised.matmul.at_least_tflops if promised and promised.matmul else {}
        tflops = _OF_PRODUCTS * floors.get(plan.promise.dtype, _TFLOPS)
        return float(6 * self.parameters * each / (tflops * 1e12))


def _parameters(model: ReferenceModel) -> int:
    """Of a transformer: 12 width² of each layer, and the embedding."""
    return 12 * model.layers * model.width**2 + (model.vocab + model.context) * model.width
