"""What each rank of a scaling job does: the plan's turns, all numbers of nodes in one life.

Groups of a turn train at the same time, after all ranks have met; ranks of no group wait at the
next meeting. Every wait has the plan's limit. Rank 0 has all facts, and decides on more rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.criteria.scaling.counters import grown, starved_so_far_s
from pytest_mnode.criteria.scaling.efficiency import settled
from pytest_mnode.criteria.scaling.facts import Facts, Step, Swept, Trained
from pytest_mnode.criteria.scaling.plan import Group, Plan, Turn
from pytest_mnode.criteria.scaling.recorded import step_of
from pytest_mnode.machine.counters import grown_by, sent_so_far
from pytest_mnode.measuring.timing import elapsed_s, finish
from pytest_mnode.measuring.traffic import same_bytes
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.device import device_of
from pytest_mnode.reference_job.trainer import Trainer

_SWEEP_S = 0.1
"""How long a repeat of all-reduces takes, about: longer than a shaper's burst."""
_SWEEP_REPEATS = 3
_MOST_CALLS = 50


class Program:
    """One rank. Made after the default process group."""

    def __init__(self, plan: Plan, device: torch.device, directory: str) -> None:
        self.plan, self.device, self.directory = plan, device, directory
        self.place = World.from_env(os.environ, plan.nodes)
        self._limit = timedelta(seconds=plan.within_s)
        # Meetings and facts go over a group of their own, which no accelerator waits for.
        self._control: Any = dist.new_group(backend="gloo", timeout=self._limit)
        self._groups: dict[Group, Any] = {}
        self._facts = Facts(plan.ranks_per_node, _backend(device), device.type, 0, 0, (), (), ())

    def run(self) -> Facts | None:
        """All turns; what was measured, on rank 0."""
        turn: Turn | None = None
        for number in range(self.plan.most_rounds):
            for turn in self.plan.turns(number):
                self._gather(self._train(turn))
            if number + 1 >= self.plan.rounds and not self._goes_on():
                break
        assert turn is not None
        for count in self.plan.counts:
            if count * self.plan.ranks_per_node > 1:
                self._sweep(next(t for t in self.plan.turns(turn.round) if t.count == count))
        return self._facts if self.place.rank == 0 else None

    def _train(self, turn: Turn) -> tuple[Trained | None, dict[str, Any]]:
        """This rank's part of a turn: a Trained with its own steps only, and what it sent."""
        where = f"round {turn.round + 1}, {turn.count} nodes"
        self._open(turn.groups)
        mine = self._group_of(turn.groups)
        if mine is None:
            self._meet(where)
            return None, {}
        ranks = self._ranks_of(mine)
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            trainer = self._trainer(turn.count, mine, directory)
            self._meet(where)
            for _ in range(self.plan.warmup):
                trainer.step()
            before, waited_s = sent_so_far(), starved_so_far_s()
            steps = [self._timed(trainer) for _ in range(self.plan.steps)]
            after, waited_until_s = sent_so_far(), starved_so_far_s()
            trainer.close()
        trained = Trained(
            round=turn.round,
            nodes=tuple(self.plan.nodes[node] for node in mine),
            ranks=ranks,
            steps=(tuple(step for step, _ in steps),),
            samples=self.plan.group_batch(turn.count),
            tokens=self.plan.group_batch(turn.count) * trainer.config.context,
            sent_bytes=(grown_by(before, after),),
            starved_s=(grown(waited_s, waited_until_s),),
            beneath=(same_bytes(),),
        )
        parameters = sum(p.numel() for p in trainer.model.parameters())
        return trained, {"parameters": parameters, "bucket_bytes": steps[-1][1]}

    def _timed(self, trainer: Trainer) -> tuple[Step, tuple[int, ...]]:
        """A step, and the bytes of its buckets; timed once more around all that it does."""
        began = time.perf_counter()
        record = trainer.step()
        sent = tuple(transfer.bytes for transfer in record.transfers or ())
        return step_of(record, time.perf_counter() - began), sent

    def _gather(self, mine: tuple[Trained | None, dict[str, Any]]) -> None:
        """Have rank 0 put the ranks' steps together, by group."""
        every: list[Any] | None = [None] * self.place.size if self.place.rank == 0 else None
        dist.gather_object(mine, every, group=self._control)
        if every is None:
            return
        by_rank = {rank: trained for rank, (trained, _) in enumerate(every) if trained is not None}
        groups = dict.fromkeys(trained.ranks for trained in by_rank.values())
        whole = [_whole([by_rank[rank] for rank in ranks], self.plan) for ranks in groups]
        about = next(about for trained, about in every if trained is not None)
        buckets = about["bucket_bytes"] or self._facts.bucket_bytes
        self._facts = replace(
            self._facts,
            parameters=max(about["parameters"], self._facts.parameters),
            # Every gradient goes over the fabric once, whatever it is cut into.
            gradient_bytes=max(about["parameters"] * 4, self._facts.gradient_bytes),
            bucket_bytes=buckets,
            trained=(*self._facts.trained, *whole),
        )

    def _goes_on(self) -> bool:
        """Whether another round is worth its time; by rank 0, so that all agree."""
        plan, told = self.plan, [False]
        if self.place.rank == 0:
            most, bound = plan.at_most_uncertainty, plan.bound
            known = settled(self._facts, most, bound, hidden=plan.hidden, seed=plan.seed)
            told = [not known]
        dist.broadcast_object_list(told, src=0, group=self._control)
        return told[0]

    def _sweep(self, turn: Turn) -> None:
        """All-reduces of all gradients, and of the last bucket, in all groups of a turn."""
        told = [(self._facts.gradient_bytes, self._facts.bucket_bytes)]
        dist.broadcast_object_list(told, src=0, group=self._control)
        gradient_bytes, buckets = told[0]
        last = buckets[-1] if buckets else gradient_bytes
        self._open(turn.groups)
        mine = self._group_of(turn.groups)
        found: list[Swept] = []
        self._meet(f"all-reduces over {turn.count} nodes")
        if mine is not None:
            names = tuple(self.plan.nodes[node] for node in mine)
            for size in dict.fromkeys((last, gradient_bytes)):
                found.append(Swept(names, size, self._all_reduce_s(size, self._groups[mine])))
        first = mine is not None and self.place.rank == self._ranks_of(mine)[0]
        every: list[Any] | None = [None] * self.place.size if self.place.rank == 0 else None
        dist.gather_object(found if first else [], every, group=self._control)
        if every is not None:
            swept = tuple(one for of_rank in every for one in of_rank)
            self._facts = replace(self._facts, swept=(*self._facts.swept, *swept))

    def _all_reduce_s(self, size_bytes: int, group: Any) -> float:
        """Median of a few repeats of calls in a row, by the slowest rank of the group."""
        buffer = torch.zeros(max(1, size_bytes // 4), device=self.device)

        def call() -> None:
            dist.all_reduce(buffer, group=group)

        def slowest_s(calls: int) -> float:
            mine = torch.tensor([elapsed_s(call, calls, self.device) / calls], device=self.device)
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=group)
            return float(mine)

        slowest_s(1)
        calls = max(1, min(_MOST_CALLS, round(_SWEEP_S / max(slowest_s(2), 1e-6))))
        return statistics.median(slowest_s(calls) for _ in range(_SWEEP_REPEATS))

    def _trainer(self, count: int, mine: Group, directory: str) -> Trainer:
        batch = self.plan.group_batch(count)
        steps = self.plan.warmup + self.plan.steps
        config = JobConfig(
            **self.plan.training,
            directory=directory,
            global_batch=batch,
            samples=batch * (steps + 1),  # one epoch, not quite used up: no loader begins anew
            steps=steps,
            compute_s=self.plan.group_compute_s(count),
            deterministic=False,
        )
        names, ranks = tuple(self.plan.nodes[node] for node in mine), self._ranks_of(mine)
        place = replace(self.place, rank=ranks.index(self.place.rank), size=len(ranks), nodes=names)
        return Trainer(config, place, self.device, group=self._groups[mine])

    def _group_of(self, groups: Sequence[Group]) -> Group | None:
        node = self.place.rank // self.place.local_size
        return next((group for group in groups if node in group), None)

    def _ranks_of(self, group: Group) -> tuple[int, ...]:
        each = self.place.local_size
        return tuple(node * each + local for node in group for local in range(each))

    def _open(self, groups: Sequence[Group]) -> None:
        """Process groups over these nodes' ranks, once for all rounds. All ranks make all of them:
        torch numbers groups by how many a rank has made."""
        for group in groups:
            if group not in self._groups:
                self._groups[group] = dist.new_group(self._ranks_of(group), timeout=self._limit)

    def _meet(self, where: str) -> None:
        """All ranks of the job. Raises RuntimeError that names who did not come."""
        finish(self.device)
        try:
            dist.monitored_barrier(self._control, self._limit, wait_all_ranks=True)
        except RuntimeError as error:
            raise RuntimeError(f"scaling, {where}: {error}") from error


def _whole(ranks: Sequence[Trained], plan: Plan) -> Trained:
    """A group's ranks as one; what a node sent by its first rank."""
    return replace(
        ranks[0],
        steps=tuple(steps for one in ranks for steps in one.steps),
        sent_bytes=tuple(one.sent_bytes[0] for one in ranks[:: plan.ranks_per_node]),
        starved_s=tuple(one.starved_s[0] for one in ranks),
        beneath=tuple(one.beneath[0] for one in ranks[:: plan.ranks_per_node]),
    )


def _backend(device: torch.device) -> str:
    """Of the default group for tensors on `device`: a group may have one for each kind."""
    group: Any = dist.group.WORLD
    try:
        return str(group._get_backend(device).name()).lower()
    except (RuntimeError, AttributeError):
        return str(dist.get_backend()).lower()


def train(plan: Plan) -> Facts | None:
    """Meet the others, do what the plan says, and leave; facts on rank 0.

    Raises EnvironmentContractError where accelerators are promised, and torch shows none.
    """
    from pytest_mnode.criteria.launching.meeting import meet

    config = JobConfig(directory=".", device=plan.training["device"])
    device = device_of(config, int(os.environ["LOCAL_RANK"]))
    began = time.monotonic()
    meet(plan.within_s)
    plan = replace(plan, within_s=max(1.0, plan.within_s - (time.monotonic() - began)))
    try:
        with tempfile.TemporaryDirectory(prefix="mnode-scaling-") as directory:
            return Program(plan, device, directory).run()
    finally:
        dist.destroy_process_group()
