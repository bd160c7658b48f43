"""Composed JobTimings of scaling jobs: a function gives each rank's parts of a step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_mnode.criteria.scaling.judge import (
    CountResult,
    ScalingResult,
    judge,
    judge_efficiency,
    judge_parts,
)
from pytest_mnode.criteria.scaling.network import judge_network
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import AloneTime, GroupSteps, JobTimings, Step
from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.logs.kineto import Call, Traced
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec, profile_spec
from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform
from pytest_mnode.spec.scaling import ScalingCriterion

Own = Callable[[str, int], Mapping[str, float]]
"""Seconds by part that a rank itself needs in a step, from its node and the number of nodes."""
HEALTHY = {"compute": 0.2, "input": 0.001, "optimiser": 0.003, "rest": 0.001}
GRADIENTS = 2_000_000
LINE_BYTES_S = 200e6 / 8
CALLS = (Call("all_reduce", GRADIENTS - 40_000), Call("all_reduce", 40_000))


def spec() -> Spec:
    return profile_spec("rack")


def promise(**changes: object) -> ScalingCriterion:
    """The rack's promise with changes. compute None: computing is not emulated."""
    page = {"compute": "200 ms", **changes}
    return ScalingCriterion.model_validate({k: v for k, v in page.items() if v is not None})


def plan(nodes: int = 4, per_node: int = 1, **changes: object) -> Plan:
    names = [f"node{i}" for i in range(nodes)]
    return Plan(tuple(names), per_node, 0, promise(**changes))


def healthy(node: str, count: int) -> Mapping[str, float]:
    return HEALTHY


def timings(
    made: Plan,
    own: Own = healthy,
    needed_s: Callable[[int], float] = lambda count: 0.002,
    *,
    hidden: float = 0.9,
    line: float = 0.95,
    nic: str = "fab0",
    jitter: Callable[[int, int], float] = lambda round_, number: 0.0,
    missed_s: float = 0.0,
) -> JobTimings:
    """Timings of the plan's turns.

    needed_s: exposed time of collectives by number of nodes. hidden: share of the gradients'
    transfer. line: share of the model, and of the line rate, that collectives alone reach. nic: the
    NIC that carries them.
    jitter: seconds added to each step, by round and step. missed_s: seconds per step in no part.
    """
    trained = [
        _trained(made, turn.round, group, own, needed_s(turn.count), hidden, nic, jitter, missed_s)
        for round_ in range(made.promise.rounds)
        for turn in made.turns(round_)
        for group in turn.groups
    ]
    each, platform = made.ranks_per_node, Platform.of(spec())
    alone = []
    for n in made.counts[1:]:
        model = CollectiveModel(platform, "all_reduce", n, each, "gloo")
        times = [model.time_s(Algorithm.RING, call.size_bytes) / line for call in CALLS]
        whole_s = 2 * (1 - 1 / (n * each)) * GRADIENTS / (line * LINE_BYTES_S)
        alone.append(AloneTime(made.nodes[:n], sum(times), times[-1], whole_s))
    return JobTimings(each, "gloo", "cpu", GRADIENTS, tuple(trained), tuple(alone))


def changed(job: JobTimings, change: Callable[[Step, int, int], Step]) -> JobTimings:
    """The job with `change` applied to each step of groups of two nodes or more.

    `change` gets the step, its number and its round.
    """

    def of(one: GroupSteps) -> GroupSteps:
        steps = tuple(
            tuple(change(step, number, one.round) for number, step in enumerate(of_rank))
            for of_rank in one.steps
        )
        return replace(one, steps=steps)

    return replace(job, trained=tuple(of(t) if t.count > 1 else t for t in job.trained))


def stalled(
    job: JobTimings, more_s: float, late: Callable[[int], object], part: str = "input"
) -> JobTimings:
    """Some steps of two nodes or more take longer in one part. late: of a step's number."""

    def stall(step: Step, number: int, round_: int) -> Step:
        more = more_s if late(number) else 0.0
        return step._replace(wall_s=step.wall_s + more, **{part: getattr(step, part) + more})

    return changed(job, stall)


def exposed_later(job: JobTimings, by: Callable[[int, int], float]) -> JobTimings:
    """Each step of two nodes or more waits longer for collectives: `by` its round and number."""

    def wait(step: Step, number: int, round_: int) -> Step:
        more_s = by(round_, number)
        return step._replace(wall_s=step.wall_s + more_s, exposed=step.exposed + more_s)

    return changed(job, wait)


def uneven(job: JobTimings, most_s: float, seed: int = 0) -> JobTimings:
    """Each rank computes up to `most_s` longer per step by chance; the others wait for it."""
    chance = random.Random(seed)
    return later(job, lambda rank, count: chance.uniform(0, most_s))


def later(job: JobTimings, by: Callable[[int, int], float], part: str = "compute") -> JobTimings:
    """Each rank takes longer in each step: `by` its number and the number of nodes."""

    def of(one: GroupSteps) -> GroupSteps:
        steps = [list(of_rank) for of_rank in one.steps]
        for number in range(len(steps[0])):
            mine = [of_rank[number] for of_rank in steps]
            more = [by(rank, one.count) for rank in one.ranks]
            busy = [s.wall_s - s.exposed + m for s, m in zip(mine, more, strict=True)]
            needed_s = min(step.exposed for step in mine)
            for of_rank, step, own_s, late_s in zip(steps, mine, busy, more, strict=True):
                of_rank[number] = step._replace(
                    wall_s=max(busy) + needed_s,
                    exposed=max(busy) - own_s + needed_s,
                    **{part: getattr(step, part) + late_s},
                )
        return replace(one, steps=tuple(map(tuple, steps)))

    return replace(job, trained=tuple(map(of, job.trained)))


def _trained(  # noqa: PLR0917  one group's turn
    made: Plan,
    round_: int,
    group: tuple[int, ...],
    own: Own,
    needed_s: float,
    hidden: float,
    nic: str,
    jitter: Callable[[int, int], float],
    missed_s: float,
) -> GroupSteps:
    each, count, steps = made.ranks_per_node, len(group), made.promise.steps
    names = tuple(made.nodes[node] for node in group)
    parts = [own(name, count) for name in names for _ in range(each)]
    slowest_s = max(sum(of_rank.values()) for of_rank in parts)
    moving = TRACED_STEPS * 0.1 if count > 1 else 0.0

    def step(of_rank: Mapping[str, float], number: int) -> Step:
        more_s = needed_s + jitter(round_, number)
        return Step(
            wall_s=slowest_s + more_s + missed_s,
            exposed=slowest_s - sum(of_rank.values()) + more_s,
            checkpoint=0.0,
            backward_s=of_rank["compute"] * 2 / 3,
            **of_rank,
        )

    batch, sent = made.group_batch(count), GRADIENTS * 2 * steps if count > 1 else 500
    return GroupSteps(
        round=round_,
        nodes=names,
        ranks=tuple(node * each + local for node in group for local in range(each)),
        steps=tuple(tuple(step(of_rank, n) for n in range(steps)) for of_rank in parts),
        samples=batch,
        tokens=batch * 16,
        sent_bytes=tuple({"lo": 0, "mgmt0": 900, "fab0": 900, nic: sent} for _ in names),
        cpu_wait_s=tuple(0.0 for _ in range(each * count)),
        traced=(Traced(None, moving * (1 - hidden), moving * hidden, 0.0, CALLS * TRACED_STEPS),)
        * (each * count),
    )


def judged(job: JobTimings, *, on: Spec | None = None, **changes: object) -> ScalingResult:
    """The job judged by the rack's spec, or by the spec `on`."""
    return judge(job, on or spec(), promise(**changes))


def measured(found: ScalingResult) -> dict[str, Measurement]:
    """All measurements of a result, by name."""
    network = judge_network(found.sent, found.spec, found.promise)
    every = (*judge_efficiency(found), *judge_parts(found), *network)
    return {one.name: one for one in every}


def not_attributed(one: CountResult) -> float:
    """Fraction of the step by which the parts of the mean rank differ from the judged loss."""
    return abs(one.row.lost_s - sum(one.parts.lost)) / one.row.step_s


def last(found: ScalingResult) -> Measurement:
    """The efficiency on all nodes."""
    return measured(found)[f"efficiency, {found.counts[-1].row.count} nodes"]


def judged_last(job: JobTimings, *allowed: str) -> tuple[CountResult, Measurement]:
    """The result on all nodes and its efficiency, if these causes are allowed."""
    found = judged(job, allowed_causes=list(allowed))
    return found.counts[-1], last(found)


def slow_on(slow: str | Sequence[str], **parts: float) -> Own:
    """Ranks of the slow nodes have these parts; the others are healthy."""
    names = [slow] if isinstance(slow, str) else slow

    def own(node: str, count: int) -> Mapping[str, float]:
        return HEALTHY | (parts if node in names else {})

    return own


def exposed_by(seconds: float) -> Callable[[int], float]:
    """Exposed time of collectives on two nodes or more."""
    return lambda count: seconds if count > 1 else 0.0
