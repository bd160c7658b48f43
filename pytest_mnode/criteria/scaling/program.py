"""The program of each rank of a scaling job: all turns of the plan in one process.

Groups of a turn train at the same time, after a barrier of all ranks; ranks in no group wait at the
next barrier. Every wait has the promise's limit. Rank 0 has all timings, and decides on more
rounds.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pytest_mnode.criteria.scaling.efficiency import settled
from pytest_mnode.criteria.scaling.plan import Group, Plan, Turn
from pytest_mnode.criteria.scaling.timings import AloneTime, GroupSteps, JobTimings, Step
from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.launchers.node import count
from pytest_mnode.logs.kineto import Call, Traced
from pytest_mnode.machine.counters import increases, sent_so_far
from pytest_mnode.machine.waiting import cpu_wait_so_far_s, difference
from pytest_mnode.measuring.collectives import all_gather_single, reduce_scatter_single
from pytest_mnode.measuring.ranks import backend_on, finish, slowest_call_s, traced
from pytest_mnode.measuring.traffic import LowerDevices, lower_devices_here
from pytest_mnode.progress import progress
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.device import device_of
from pytest_mnode.reference_job.trainer import Trainer

T = TypeVar("T")
_SWEEP_S = 0.1
"""Approximate time of a repeat of collectives alone: longer than a shaper's burst."""
_SWEEP_REPEATS = 3
RankTurn = tuple[tuple[Step, ...], Mapping[str, int], float | None, LowerDevices, Traced | None]
"""A rank's part of `GroupSteps`: steps, and sent_bytes, cpu_wait_s, lower_devices and traced."""


class Program:
    """The program of one rank. It is made after the default process group."""

    def __init__(self, plan: Plan, world: World, device: torch.device, directory: str) -> None:
        self.plan, self.world, self.device, self.directory = plan, world, device, directory
        self._limit = timedelta(seconds=plan.promise.within_s)
        # Barriers and timings use a separate process group, for which no accelerator waits.
        self._control: Any = dist.new_group(backend="gloo", timeout=self._limit)
        self._groups: dict[Group, Any] = {}
        self._gradient_bytes = 0
        self._trained: list[GroupSteps] = []
        self._alone: list[AloneTime] = []

    def _timings(self) -> JobTimings:
        """All timings so far, on rank 0."""
        made = self.plan.ranks_per_node, backend_on(self.device), self.device.type
        return JobTimings(*made, self._gradient_bytes, tuple(self._trained), tuple(self._alone))

    def run(self) -> JobTimings | None:
        """Run all turns; return the timings on rank 0."""
        rounds, counts = self.plan.promise.rounds, self.plan.counts
        for number in range(self.plan.promise.rounds_at_most):
            for place, turn in enumerate(self.plan.turns(number)):
                done, total = number * len(counts) + place, max(rounds, number + 1) * len(counts)
                progress(f"round {number + 1}, {count(turn.count)}", done, total)
                self._gather(turn, self._train(turn))
            if number + 1 >= self.plan.promise.rounds and not self._goes_on():
                break
        for turn in self.plan.turns(number):
            if turn.count * self.plan.ranks_per_node > 1:
                self._sweep(turn)
        return self._timings() if self.world.rank == 0 else None

    def _train(self, turn: Turn) -> RankTurn | None:
        """Train this rank's part of a turn; None if it has none."""
        where = f"round {turn.round + 1}, {count(turn.count)}"
        self._make_groups(turn.groups)
        mine = self._group_of(turn.groups)
        if mine is None:
            self._meet(where)
            return None
        trainer = self._trainer(turn, mine)
        self._meet(where)
        # Declared compute is only a wait, so it needs no warm-up.
        pace, trainer.spans.pace = trainer.spans.pace, None
        for _ in range(self.plan.promise.warmup):
            trainer.step()
        trainer.spans.pace = pace
        before, waited_s = sent_so_far(), cpu_wait_so_far_s()
        steps = tuple(timed(trainer) for _ in range(self.plan.promise.steps))
        after, waited_until_s = sent_so_far(), cpu_wait_so_far_s()
        # Tracing takes as long as many steps, and hidden time hardly differs by round.
        trace = None
        if turn.round == 0 and len(self._ranks_of(mine)) > 1:
            trace = traced(trainer.step, TRACED_STEPS, self.device, self.directory, shapes=True)
        trainer.close()
        # Every gradient goes over the fabric once, however many buckets there are.
        self._gradient_bytes = 4 * sum(p.numel() for p in trainer.model.parameters())
        sent, cpu_wait_s = increases(before, after), difference(waited_s, waited_until_s)
        return steps, sent, cpu_wait_s, lower_devices_here(), trace

    def _on_rank_0(self, mine: Any) -> list[Any] | None:
        """The values of all ranks on rank 0; None on the others."""
        every: list[Any] | None = [None] * self.world.size if self.world.rank == 0 else None
        dist.gather_object(mine, every, group=self._control)
        return every

    def _gather(self, turn: Turn, mine: RankTurn | None) -> None:
        """Collect the ranks' steps on rank 0, by group."""
        every = self._on_rank_0(mine)
        if every is None:
            return
        plan, each = self.plan, self.plan.ranks_per_node
        samples = plan.group_batch(turn.count)
        for group in turn.groups:
            ranks = self._ranks_of(group)
            steps, sent, waits_s, lower, traces = zip(*(every[n] for n in ranks), strict=True)
            self._trained.append(
                GroupSteps(
                    round=turn.round,
                    nodes=tuple(plan.nodes[node] for node in group),
                    ranks=ranks,
                    steps=steps,
                    samples=samples,
                    tokens=samples * plan.promise.model.context,
                    sent_bytes=sent[::each],
                    cpu_wait_s=waits_s,
                    lower_devices=lower[::each],
                    traced=traces,
                )
            )

    def _goes_on(self) -> bool:
        """Whether another round is needed; rank 0 decides, so that all ranks agree."""
        return self._of_rank_0(lambda timings: not settled(timings, self.plan.promise))

    def _of_rank_0(self, value: Callable[[JobTimings], T]) -> T:
        """The value that rank 0 makes of the timings, on all ranks."""
        box: list[Any] = [value(self._timings()) if self.world.rank == 0 else None]
        dist.broadcast_object_list(box, src=0, group=self._control)
        found: T = box[0]
        return found

    def _sweep(self, turn: Turn) -> None:
        """Time the collectives of a step, and the last for gradients, in all groups of a turn."""
        known = self._of_rank_0(lambda made: (made.calls, (made.last,), (made.whole,)))
        progress(f"collectives alone, {count(turn.count)}", 0, 0)
        self._make_groups(turn.groups)
        mine = self._group_of(turn.groups)
        self._meet(f"collectives alone over {count(turn.count)}")
        found = None
        if mine is not None:
            group, names = self._groups[mine], tuple(self.plan.nodes[node] for node in mine)
            found = AloneTime(names, *(self._alone_s(calls, group) for calls in known))
        every = self._on_rank_0(found)  # the same of all ranks of a group
        firsts = [self._ranks_of(group)[0] for group in turn.groups]
        self._alone += [every[rank] for rank in firsts] if every else []

    def _alone_s(self, calls: Sequence[Call], group: Any) -> float:
        """Seconds of these calls, back to back as the job makes them, by the slowest rank of the
        group: the median of a few repeats."""
        ranks, floats = dist.get_world_size(group), max(c.size_bytes for c in calls) // 4
        whole = torch.zeros(ranks * math.ceil(max(1, floats) / ranks), device=self.device)
        part = torch.zeros(len(whole) // ranks, device=self.device)

        def begin(call: Call) -> Any:
            share = math.ceil(max(1, call.size_bytes // 4) / ranks)
            all_of_it = whole[: ranks * share]
            if call.collective == "all_gather":
                return all_gather_single(all_of_it, part[:share], group=group, async_op=True)
            if call.collective == "reduce_scatter":
                return reduce_scatter_single(part[:share], all_of_it, group=group, async_op=True)
            return dist.all_reduce(all_of_it, group=group, async_op=True)

        def step() -> None:
            for running in [begin(call) for call in calls]:
                running.wait()

        return slowest_call_s(step, _SWEEP_S, self.device, repeats=_SWEEP_REPEATS, group=group)

    def _trainer(self, turn: Turn, mine: Group) -> Trainer:
        batch = self.plan.group_batch(turn.count)
        steps = self.plan.promise.warmup + self.plan.promise.steps + TRACED_STEPS
        config = JobConfig(
            **self.plan.training,
            directory=f"{self.directory}/{turn.round}-{turn.count}",
            global_batch=batch,
            samples=batch * (steps + 1),  # one epoch, not quite used up: no loader starts again
            steps=steps,
            compute_s=self.plan.group_compute_s(turn.count),
            deterministic=False,
        )
        names, ranks = tuple(self.plan.nodes[node] for node in mine), self._ranks_of(mine)
        world = replace(self.world, rank=ranks.index(self.world.rank), size=len(ranks), nodes=names)
        return Trainer(config, world, self.device, group=self._groups[mine])

    def _group_of(self, groups: Sequence[Group]) -> Group | None:
        node = self.world.rank // self.world.local_size
        return next((group for group in groups if node in group), None)

    def _ranks_of(self, group: Group) -> tuple[int, ...]:
        each = self.world.local_size
        return tuple(node * each + local for node in group for local in range(each))

    def _make_groups(self, groups: Sequence[Group]) -> None:
        """Create the process groups of these nodes, once for all rounds. All ranks create all of
        them, because torch numbers groups by how many a rank has created."""
        for group in groups:
            if group not in self._groups:
                self._groups[group] = dist.new_group(self._ranks_of(group), timeout=self._limit)

    def _meet(self, where: str) -> None:
        """Wait for all ranks of the job. Raises RuntimeError that names the missing ranks."""
        finish(self.device)
        try:
            dist.monitored_barrier(self._control, self._limit, wait_all_ranks=True)
        except RuntimeError as error:
            raise RuntimeError(f"scaling, {where}: {error}") from error


def train(plan: Plan, world: World) -> JobTimings | None:
    """Run the plan on the default process group; return the timings on rank 0.

    Raises EnvironmentContractError if accelerators are promised and torch shows none.
    """
    device = device_of(plan.training["device"], world.local_rank)
    # A rank that is killed removes nothing: its files go with the temporary directory of the run.
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=get_temp_dir()) as directory:
        return Program(plan, world, device, directory).run()


def timed(trainer: Trainer) -> Step:
    """A step of the reference job, timed once more from outside.

    Work of the job for its records, after the step that it times, counts as the rest.
    """
    began = time.perf_counter()
    record = trainer.step()
    elapsed_s, parts = time.perf_counter() - began, record.parts
    return Step(
        wall_s=elapsed_s,
        compute=parts["forward"] + parts["backward"],
        exposed=parts["exposed"] + parts["metrics"],
        input=parts["input"],
        optimiser=parts["optimiser"],
        checkpoint=parts["checkpoint"],
        rest=parts["rest"] + elapsed_s - record.wall_s,
        backward_s=parts["backward"],
    )
