"""Collectives inside groups, with values that differ by rank, by position and by call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.checks.groups.judge import CollectiveResult, Expected
from pytest_mnode.measuring.collectives import all_gather_single, reduce_scatter_single

COUNT = 64
"""Number of values of a part."""
_RANKS = 1 << 20
"""More than the ranks of any world."""
_NOT_WRITTEN = -(1 << 40)
"""Initial value of receive buffers, which no rank sends."""


def sent(rank: int, salt: int, device: torch.device) -> torch.Tensor:
    """Whole numbers that no other rank sends, nor this one with another salt (below 2^20)."""
    first = (salt * _RANKS + rank) * COUNT
    return torch.arange(first, first + COUNT, device=device)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective in one group on one rank; it uses as many salts as the group has ranks."""

    group: Any
    ranks: Sequence[int]
    me: int
    salt: int
    device: torch.device

    @property
    def place(self) -> int:
        return self.ranks.index(self.me)

    def sent_by(self, rank: int, salt: int = 0) -> torch.Tensor:
        return sent(rank, self.salt + salt, self.device)

    def sent_to_each(self) -> torch.Tensor:
        """A part for each rank of the group, each with a salt of its own."""
        return torch.cat([self.sent_by(self.me, place) for place in range(len(self.ranks))])

    def sent_here(self) -> list[torch.Tensor]:
        """The parts that the ranks of the group send to this one."""
        return [self.sent_by(rank, self.place) for rank in self.ranks]

    def empty(self, parts: int = 1) -> torch.Tensor:
        size = (parts * COUNT,)
        return torch.full(size, _NOT_WRITTEN, dtype=torch.int64, device=self.device)


class Pending:
    """A collective in progress, and its right result. kept: buffers that are still being sent."""

    def __init__(
        self, works: Any, got: torch.Tensor, right: torch.Tensor, kept: object = None
    ) -> None:
        self._works = works if isinstance(works, list) else [works]
        self._got, self._right = got, right
        self._kept = kept

    def result(self, group: str, name: str) -> CollectiveResult:
        """Wait for the end, and count the wrong values on this rank."""
        for work in filter(None, self._works):
            work.wait()
        self._kept = None
        differs = (self._got != self._right).nonzero().flatten().tolist()
        if not differs:
            return CollectiveResult(group, name, 0)
        got, right = int(self._got[differs[0]]), int(self._right[differs[0]])
        summed = name in ("all_reduce", "reduce_scatter")
        text = f"{got}, expected {right}" if summed else difference(got, right)
        return CollectiveResult(group, name, len(differs), f"position {differs[0]} is {text}")


def difference(got: int, right: int) -> str:
    """Text that compares a copied value with the right one, by the ranks that send them."""
    sender, position = right // COUNT % _RANKS, right % COUNT
    if got == _NOT_WRITTEN:
        return f"not written, expected from rank {sender}"
    if right == _NOT_WRITTEN:
        return f"from rank {got // COUNT % _RANKS}, expected nothing"
    if got < 0:
        return f"{got}, which no rank sends, expected from rank {sender}"
    other = got // COUNT % _RANKS
    if other != sender:
        return f"from rank {other}, expected from rank {sender}"
    if got % COUNT != position:
        return f"rank {sender}'s of position {got % COUNT}, expected {position}"
    return f"what rank {sender} sends elsewhere"


def _all_reduce(call: Call) -> Pending:
    mine = call.sent_by(call.me)
    right = torch.stack([call.sent_by(rank) for rank in call.ranks]).sum(0)
    return Pending(dist.all_reduce(mine, group=call.group, async_op=True), mine, right)


def _all_gather(call: Call) -> Pending:
    every, mine = call.empty(len(call.ranks)), call.sent_by(call.me)
    work = all_gather_single(every, mine, group=call.group, async_op=True)
    return Pending(work, every, torch.cat([call.sent_by(rank) for rank in call.ranks]), mine)


def _reduce_scatter(call: Call) -> Pending:
    mine, parts = call.empty(), call.sent_to_each()
    work = reduce_scatter_single(mine, parts, group=call.group, async_op=True)
    return Pending(work, mine, torch.stack(call.sent_here()).sum(0), parts)


def _broadcast(call: Call) -> Pending:
    """From the last rank of the group, because the first is a default."""
    root = call.ranks[-1]
    here = call.sent_by(root) if call.me == root else call.empty()
    work = dist.broadcast(here, src=root, group=call.group, async_op=True)
    return Pending(work, here, call.sent_by(root))


def _all_to_all(call: Call) -> Pending:
    mine, parts = call.empty(len(call.ranks)), call.sent_to_each()
    work = dist.all_to_all_single(mine, parts, group=call.group, async_op=True)
    return Pending(work, mine, torch.cat(call.sent_here()), parts)


def _along(call: Call, step: int) -> Pending:
    """Send from each rank to the one `step` places on; ranks without a sender receive nothing."""
    here, mine = call.empty(), call.sent_by(call.me)
    right = here.clone()
    operations = []
    sender, receiver = call.place - step, call.place + step
    if 0 <= sender < len(call.ranks):
        operations.append(dist.P2POp(dist.irecv, here, call.ranks[sender], group=call.group))
        right = call.sent_by(call.ranks[sender])
    if 0 <= receiver < len(call.ranks):
        operations.append(dist.P2POp(dist.isend, mine, call.ranks[receiver], group=call.group))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Pending(works, here, right, mine)


COLLECTIVES: Mapping[str, Callable[[Call], Pending]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send to the next": partial(_along, step=1),  # as activations go from stage to stage
    "send to the one before": partial(_along, step=-1),  # as gradients go
}
_AT_ONCE = ("all_reduce", "all_gather", "broadcast")


def exchange(
    groups: Mapping[str, Any],
    expected: Expected,
    me: int,
    device: torch.device,
    *,
    at_once: bool = False,
) -> list[CollectiveResult]:
    """Run every collective in every group, one after the other.

    at_once: run three of them in all groups, twice, all in progress together, and wait for them
    from last to first. groups: those of this rank, by name. expected: the groups of all ranks,
    the same on each. All ranks start them in the same order, which NCCL requires. Calls are
    numbered by `expected`, because members of one group may be in different numbers of others.
    """
    widest = max((len(ranks) for every in expected.values() for ranks in every), default=1)

    def started() -> Iterator[tuple[str, str, Pending]]:
        calls = itertools.product(_AT_ONCE * 2 if at_once else COLLECTIVES, expected)
        for number, (collective, name) in enumerate(calls):
            ranks = next((ranks for ranks in expected[name] if me in ranks), None)
            if ranks is not None and name in groups:
                call = Call(groups[name], ranks, me, number * widest, device)
                yield name, collective, COLLECTIVES[collective](call)

    calls = reversed(list(started())) if at_once else started()
    return [pending.result(name, collective) for name, collective, pending in calls]
