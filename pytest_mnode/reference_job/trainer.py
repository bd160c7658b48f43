"""The training loop: one object per rank, one call per step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # else optimisers import it at their first use, in every forked rank
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store
from pytest_mnode.reference_job.checkpoint.loading import Loaded
from pytest_mnode.reference_job.checkpoint.saving import Saved
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.data import IGNORED, Feed
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.parallel import parallel, summing_up
from pytest_mnode.reference_job.randomness import (
    digest,
    digest_of,
    random_states,
    seed_all,
    set_random_states,
    values_of,
)
from pytest_mnode.reference_job.records import (
    CheckpointRecord,
    EndRecord,
    RecordFile,
    StartRecord,
    StepRecord,
)
from pytest_mnode.reference_job.spans import Spans, clock_of, pace_of

HOLD_S = 60.0
"""Time for which a job waits (JobConfig.hold_after): a command of a busy scheduler takes seconds to
reach the ranks."""
_HOLD_INTERVAL_S = 0.1


class Trainer:
    """Trains over the ranks of `group` (None: all); each makes one, and all make the same calls.

    stop_requested: called after each step; when it is true on any rank, all stop (`preempted`).
    Raises UsageError for a config that does not fit these ranks or this device.
    """

    def __init__(
        self,
        config: JobConfig,
        world: World,
        device: torch.device,
        *,
        group: Any = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.world, self.device = config, world, device
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.finished_steps = 0
        self.preempted = False
        self._stop_requested = stop_requested
        self._saved_step: int | None = None

        self.spans = Spans(clock_of(device), pace_of(config, device))
        seed_all(config.seed)  # the same model on every rank
        model = Transformer(config, self.spans).to(device)
        self.model = parallel(model, config, device, self.group, self.spans)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, learning_rate_factor(config)
        )
        self.feed = Feed(config, self.rank, self.ranks, device)
        self._settle()
        seed_all(config.seed, 1 + self.rank)  # dropout differs by rank
        # A run without checkpoints cannot resume after a node loss, but may be timed: no syncs.
        stored = config.checkpoint_every > 0
        self.records = RecordFile(config.records, self.rank, self.ranks, world.node, stored)
        self.store: Store | None = None
        if config.checkpoint_every:
            self.store = Store(config.checkpoints, keep=config.keep, settle_s=config.visible_s)

    def step(self) -> StepRecord:
        """Do one optimiser step, record it, and save the checkpoint that is due after it.

        The checkpoint's time counts in the next step, because a step is recorded before it.
        """
        config, spans = self.config, self.spans
        began = time.time()
        with spans.running():
            epoch = self.feed.epoch
            batches = [self.feed.next() for _ in range(config.accumulation)]
            spans.lap("input")

            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for number, (_, tokens, targets) in enumerate(batches):
                with summing_up(self.model, last=number == config.accumulation - 1):
                    total += self._forward_and_backward(tokens, targets)
            spans.lap("passes")

            count = sum(int((targets != IGNORED).sum()) for _, _, targets in batches)
            loss, self.preempted = self._agree(total, count)
            spans.lap("metrics")

            lr = float(self.schedule.get_last_lr()[0])
            self.optimiser.step()
            self.schedule.step()
            self.optimiser.zero_grad()
            spans.lap("optimiser")

            samples = tuple(int(i) for indices, _, _ in batches for i in indices)
            self.finished_steps += 1
            self.feed.advance()
            states = digest(random_states(self.device))
            spans.lap("rest")
        record = StepRecord(
            **self.records.origin,
            step=self.finished_steps,
            epoch=epoch,
            samples=samples,
            loss=loss,
            tokens=count,
            lr=lr,
            rng=states,
            began=began,
            ended=time.time(),
            wall_s=spans.wall_s,
            parts=spans.parts(),
        )
        self.records.append(record)
        spans.next_step()
        if config.checkpoint_every and self.finished_steps % config.checkpoint_every == 0:
            self.save()
        return record

    def save(self) -> Saved | None:
        """Save a checkpoint of the finished steps; None if there is one of this step."""
        if self.store is None or self._saved_step == self.finished_steps:
            return None
        spans, begun = self.spans, time.time()
        with spans.running():
            saved = self.store.save(
                self._state(),
                step=self.finished_steps,
                world=self.world,
                group=self.group,
                own=random_states(self.device),
                before_commit=lambda _: self.wait_to_be_killed(),
            )
            spans.lap("checkpoint")
        self._saved_step = saved.step
        self.records.append(
            CheckpointRecord(
                **self.records.origin,
                step=saved.step,
                seconds=saved.seconds,
                write_s=saved.write_s,
                bytes=saved.bytes,
                begun=begun,
                ended=time.time(),
            )
        )
        return saved

    def resume(self) -> Loaded | None:
        """Resume from the newest checkpoint that is whole; None if there is none."""
        began = time.monotonic()
        loaded = None if self.store is None else self._load(self.store)
        refused = () if self.store is None else self.store.refused
        self.records.append(
            StartRecord(
                **self.records.origin,
                time=time.time(),
                loaded=None if loaded is None else loaded.step,
                loaded_from=None if loaded is None else loaded.world_size,
                saved_at=None if loaded is None else loaded.saved_at,
                load_s=time.monotonic() - began,
                refused=tuple(str(one) for one in refused),
            )
        )
        return loaded

    def _load(self, store: Store) -> Loaded | None:
        state = self._state()
        loaded = store.load(state, world=self.world, group=self.group, reshard=self.config.reshard)
        if loaded is None:
            # get_state_dict took an optimiser step with a learning rate of 0, and counted it: AdamW
            # would begin with its second step.
            self.optimiser.state.clear()
            return None
        set_state_dict(
            self.model,
            self.optimiser,
            model_state_dict=state["model"],
            optim_state_dict=state["optimiser"],
        )
        self.schedule.load_state_dict(state["schedule"])
        self.feed.load_state_dict(state["feed"])  # draws a random number, so precedes the states
        self.finished_steps = self._saved_step = loaded.step
        if loaded.own is not None:
            set_random_states(loaded.own, self.device)
        else:  # another number of ranks: no saved state belongs to this rank
            seed_all(self.config.seed, 1 + self.rank, loaded.step, self.ranks)
        return loaded

    def end(self) -> EndRecord:
        """Record the final state of this rank."""
        record = EndRecord(
            **self.records.origin,
            steps=self.finished_steps,
            parameters=digest_of([p.data for p in self.model.parameters()]),
            optimiser=digest_of(values_of(self.optimiser)),
            lr=float(self.schedule.get_last_lr()[0]),
            time=time.time(),
            preempted=self.preempted and self.finished_steps < self.config.steps,
        )
        self.records.append(record)
        return record

    def close(self) -> None:
        """Close all files; the process group is the caller's."""
        self.records.close()
        self.feed.close()

    def _forward_and_backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Sum of the losses of one pass of this rank."""
        config = self.config
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            loss: Tensor = self.model(tokens, targets)
        # Gradients are averaged over ranks. With this factor the average is the sum over the global
        # batch divided by a constant, for any lengths of documents and any division of the batch.
        scale = self.ranks / (config.global_batch * config.context)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach().double()

    def _agree(self, total: Tensor, count: int) -> tuple[float, bool]:
        """Mean loss over all tokens of all ranks, from sums and counts; whether any rank stops."""
        sums = torch.stack(
            [total, total.new_tensor(count), total.new_tensor(self._stop_requested())]
        )
        dist.all_reduce(sums, group=self.group)
        summed, counted, stopping = sums.tolist()
        return summed / counted, stopping > 0

    def _state(self) -> dict[str, Any]:
        model, optimiser = get_state_dict(self.model, self.optimiser)
        rest = {"schedule": self.schedule.state_dict(), "feed": self.feed.state_dict()}
        return {"model": model, "optimiser": optimiser, **rest}

    def wait_to_be_killed(self) -> None:
        """After a step of `hold_after`, or while its checkpoint is not complete, wait until the run
        is killed or a rank is asked to stop, for HOLD_S at most; not again after a restart."""
        if self.finished_steps not in self.config.hold_after:
            return
        mark = self.config.held_after(self.finished_steps)
        if gathered(mark.exists(), self.group)[0]:
            return
        if self.rank == 0:
            mark.touch()
        for _ in range(round(HOLD_S / _HOLD_INTERVAL_S)):
            # The others notice at once when a rank is killed.
            if any(gathered(self._stop_requested(), self.group)):
                return
            time.sleep(_HOLD_INTERVAL_S)

    def _settle(self) -> None:
        """Do one discarded pass, in which DDP orders its buckets and FSDP2 sets itself up.

        The last bits of a sum over ranks depend on its bucket. A run that resumes must have the
        same buckets in its first step as a run that was never interrupted.
        """
        shape = (self.feed.local_batch, self.config.context)
        tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
        pace, self.spans.pace = self.spans.pace, None
        self._forward_and_backward(tokens, tokens)
        self.optimiser.zero_grad()
        self.spans.pace = pace
        self.spans.next_step()


def learning_rate_factor(config: JobConfig) -> Callable[[int], float]:
    """Factor of the learning rate by step: a linear warm-up, then a cosine."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / (config.warmup_steps + 1)
        left = max(1, config.steps - config.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / left)))

    return factor
