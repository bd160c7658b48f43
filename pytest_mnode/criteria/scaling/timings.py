"""Timings of a scaling job, without judgement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any, NamedTuple

import numpy as np

from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.logs.kineto import Call, Traced


class Step(NamedTuple):
    """One step of one rank, in seconds. wall_s: measured independently of the parts.

    Parts: compute; waiting for collectives, which are those of gradients after all compute is done
    and that of the loss; waiting for input; the optimiser; writing a checkpoint; the rest; waiting
    for the slowest rank, which `attribution` takes out of that for collectives.
    backward_s: the part of compute that can hide the transfer.
    """

    wall_s: float
    compute: float
    exposed: float
    input: float
    optimiser: float
    checkpoint: float
    rest: float
    waiting: float = 0.0
    backward_s: float = 0.0

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds by part, in the order of PARTS."""
        return self[1:-1]

    @property
    def missed(self) -> float:
        """Fraction of the wall time by which the sum of the parts differs from it."""
        return abs(sum(self.parts) - self.wall_s) / self.wall_s if self.wall_s > 0 else 1.0

    def scaled(self, share: float) -> Step:
        """The same step with this share of the work."""
        return Step(*(share * seconds for seconds in self))


PARTS = Step._fields[1:-1]
WALL, EXPOSED = map(Step._fields.index, ("wall_s", "exposed"))
_AFTER = [*map(Step._fields.index, ("optimiser", "rest"))]
"""Parts after the last collective of a step."""


def mean_of(steps: Any) -> Step:
    """A step whose times are the means of theirs."""
    return Step(*np.mean(steps, axis=0).tolist())


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """A group's timed steps in one turn, by rank, in the group's order.

    nodes: names. ranks: numbers in the whole job. steps[i]: of ranks[i], equally many for each.
    samples, tokens: of one step, over all ranks. sent_bytes: by node, bytes that each NIC sent
    during the steps, RDMA ports as "device:port". cpu_wait_s: by rank, time for which its threads
    were ready and had no CPU, summed over steps and threads; None if not known. lower_devices: by
    node, NICs that count the same bytes (`measuring.traffic`), RDMA devices without port. traced:
    by rank, what torch's profiler saw in further steps; None or () if it saw no collective.
    """

    round: int
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    steps: Sequence[Sequence[Step]]
    samples: int
    tokens: int
    sent_bytes: tuple[Mapping[str, int], ...]
    cpu_wait_s: tuple[float | None, ...] = ()
    lower_devices: tuple[Mapping[str, Sequence[str]], ...] = ()
    traced: tuple[Traced | None, ...] = ()

    @property
    def count(self) -> int:
        return len(self.nodes)

    def node_of(self, index: int) -> str:
        """Name of the node of `ranks[index]`."""
        return self.nodes[index // (len(self.ranks) // len(self.nodes))]

    @property
    def by_rank(self) -> np.ndarray:
        """Seconds by rank, step and field of `Step`."""
        return np.asarray(self.steps, dtype=float)

    def cycles(self, closed: bool = False) -> np.ndarray:
        """Seconds by step, rank and field, of each step from collective to collective: with the end
        of the step before, not its own.

        Ranks end their last collective together. A rank that takes longer after it is late in the
        next step, where the others wait for it. The first step follows none; if `closed`, it
        follows the last step, so that no time is missing from the sum of all steps.
        """
        own = self.by_rank.swapaxes(0, 1).copy()
        after = np.roll(own[..., _AFTER], 1, axis=0)
        if not closed:
            after[0] = own[0][:, _AFTER]
        own[..., WALL] += (after - own[..., _AFTER]).sum(axis=-1)
        own[..., _AFTER] = after
        return own

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Seconds of each step of the group: the mean, because ranks run in lockstep."""
        return tuple(self.by_rank[..., WALL].mean(axis=0).tolist())


@dataclass(frozen=True, slots=True)
class AloneTime:
    """Times of collectives over a group while nothing else runs, by its slowest rank: medians of a
    few repeats. all_s: of a step's, back to back. last_s: of `JobTimings.last`. whole_s: of one
    all-reduce of all gradients, which shows the line's rate where buckets are too small for it.
    """

    nodes: tuple[str, ...]
    all_s: float
    last_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class JobTimings:
    """All timings of a job. gradient_bytes: sent in a step by each rank, before the collective
    makes copies. alone: times of a step's `calls` while nothing else runs.
    """

    ranks_per_node: int
    backend: str
    device: str
    gradient_bytes: int
    trained: tuple[GroupSteps, ...]
    alone: tuple[AloneTime, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The collectives of a step, in their order, by the first trace that shows them; all
        gradients at once if none does."""
        traces = (trace.calls for one in self.trained for trace in one.traced if trace)
        known = next(filter(None, traces), ())
        each = len(known) // TRACED_STEPS
        return known[:each] or (self.whole,)

    @property
    def whole(self) -> Call:
        """All gradients at once."""
        return Call("all_reduce", self.gradient_bytes)

    @property
    def last(self) -> Call:
        """The last call for gradients, which no computing is left to hide. That of the loss, of a
        few bytes, follows it."""
        least = max(call.size_bytes for call in self.calls) // 1000
        sums = [
            call
            for call in self.calls
            if call.collective != "all_gather" and call.size_bytes > least
        ]
        return (sums or self.calls)[-1]

    def over(self, count: int) -> tuple[GroupSteps, ...]:
        """Steps of the groups of `count` nodes."""
        return tuple(one for one in self.trained if one.count == count)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(sorted({one.count for one in self.trained}))

    @property
    def rounds(self) -> int:
        return len({one.round for one in self.trained})

    def cpu_wait_s(self, count: int) -> float | None:
        """Seconds per step over `count` nodes that threads of the median rank waited for a CPU."""
        waits_s = [
            of_rank / len(one.steps[0])
            for one in self.over(count)
            for of_rank in one.cpu_wait_s
            if of_rank is not None
        ]
        return median_high(waits_s) if waits_s else None
