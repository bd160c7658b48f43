"""Collectives inside groups, with values that differ by rank, by position and by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.checks.groups.facts import Expected, Talked
from pytest_mnode.measuring.collectives import all_gather_single, reduce_scatter_single

COUNT = 64
"""Values of a part."""
_RANKS = 1 << 20
"""More than there are ranks."""
_WRONG = -(1 << 40)
"""What receivers hold before: nothing that anybody sends."""


def sent(rank: int, salt: int, device: torch.device, count: int = COUNT) -> torch.Tensor:
    """Whole numbers that no other rank sends, nor this one with another salt (below 2^20)."""
    first = (salt * _RANKS + rank) * count
    return torch.arange(first, first + count, device=device)


def all_reduce(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    mine = sent(me, salt, on)
    work = dist.all_reduce(mine, group=group, async_op=True)
    right = torch.stack([sent(rank, salt, on) for rank in ranks]).sum(0)
    return Check(work, mine, right)


def all_gather(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    every = _empty(len(ranks) * COUNT, on)
    mine = sent(me, salt, on)
    work = all_gather_single(every, mine, group=group, async_op=True)
    return Check(work, every, torch.cat([sent(rank, salt, on) for rank in ranks]), mine)


def reduce_scatter(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    size, place = len(ranks), ranks.index(me)
    parts = torch.cat([sent(me, salt + receiver, on) for receiver in range(size)])
    mine = _empty(COUNT, on)
    work = reduce_scatter_single(mine, parts, group=group, async_op=True)
    right = torch.stack([sent(rank, salt + place, on) for rank in ranks]).sum(0)
    return Check(work, mine, right, parts)


def broadcast(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    """From the last rank of the group, so that the first is not so by chance."""
    root = ranks[-1]
    here = sent(root, salt, on) if me == root else _empty(COUNT, on)
    work = dist.broadcast(here, src=root, group=group, async_op=True)
    return Check(work, here, sent(root, salt, on))


def all_to_all(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    place = ranks.index(me)
    parts = torch.cat([sent(me, salt + receiver, on) for receiver in range(len(ranks))])
    mine = _empty(len(ranks) * COUNT, on)
    work = dist.all_to_all_single(mine, parts, group=group, async_op=True)
    return Check(work, mine, torch.cat([sent(rank, salt + place, on) for rank in ranks]), parts)


def forward(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    """Each rank to the next, as activations go from stage to stage; the first hears of nobody."""
    return _along(group, ranks, me, salt, on, 1)


def backward(group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device) -> Check:
    """Each rank to the one before, as gradients go."""
    return _along(group, ranks, me, salt, on, -1)


def _along(  # noqa: PLR0917  what its two callers have, and the way
    group: Any, ranks: Sequence[int], me: int, salt: int, on: torch.device, step: int
) -> Check:
    place = ranks.index(me)
    here, mine = _empty(COUNT, on), sent(me, salt, on)
    operations = []
    if 0 <= (sender := place - step) < len(ranks):
        operations.append(dist.P2POp(dist.irecv, here, ranks[sender], group=group))
        right = sent(ranks[sender], salt, on)
    else:
        right = here.clone()
    if 0 <= (receiver := place + step) < len(ranks):
        operations.append(dist.P2POp(dist.isend, mine, ranks[receiver], group=group))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Check(works, here, right, mine)


class Check:
    """A collective under way, and what it should come to."""

    def __init__(
        self, work: Any, got: torch.Tensor, right: torch.Tensor, kept: object = None
    ) -> None:
        self._works = work if isinstance(work, list) else [work]
        self._got, self._right = got, right
        self._kept = kept  # what is being sent must live until it is

    def wrong(self, group: str, name: str) -> Talked:
        """Wait for its end, and count what is wrong on this rank."""
        for work in self._works:
            if work is not None:
                work.wait()
        self._kept = None
        differs = (self._got != self._right).nonzero().flatten().tolist()
        if not differs:
            return Talked(group, name, 0)
        at = differs[0]
        got, right = int(self._got[at]), int(self._right[at])
        told = difference(got, right) if name in _COPIES else f"{got}, expected {right}"
        return Talked(group, name, len(differs), f"position {at} is {told}")


def difference(got: int, right: int) -> str:
    """A value that was copied, and the one that should have been, by the rank that sends them."""
    sender, position = right // COUNT % _RANKS, right % COUNT
    if got == _WRONG:
        return f"not written, expected from rank {sender}"
    if right == _WRONG:
        return f"from rank {got // COUNT % _RANKS}, expected nothing"
    if got < 0:
        return f"{got}, which nobody sends, expected from rank {sender}"
    other = got // COUNT % _RANKS
    if other != sender:
        return f"from rank {other}, expected from rank {sender}"
    if got % COUNT != position:
        return f"rank {sender}'s of position {got % COUNT}, expected {position}"
    return f"what rank {sender} sends elsewhere"


_COPIES = (
    *("all_gather", "broadcast", "all_to_all"),
    *("send to the next", "send to the one before"),
)
Start = Callable[[Any, Sequence[int], int, int, torch.device], Check]
EVERY: Mapping[str, Start] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "send to the next": forward,
    "send to the one before": backward,
}
"""Collectives by name. Each takes the group, its ranks in order, this rank, a salt of which it uses
as many as the group has ranks, and the device."""
_AT_ONCE = ("all_reduce", "all_gather", "broadcast")


def one_by_one(
    groups: Mapping[str, Any], expected: Expected, me: int, on: torch.device
) -> list[Talked]:
    """Every collective in every group, one after the other.

    groups: those of this rank, by name. expected: the groups of all ranks, the same on each, by
    which calls are counted: the members of one may be in unequally many others.
    """
    done = []
    widest = _widest(expected)
    for number, name, ranks in _own(groups, expected, me):
        for place, (collective, start) in enumerate(EVERY.items()):
            salt = (number * len(EVERY) + place) * widest
            check = start(groups[name], ranks, me, salt, on)
            done.append(check.wrong(name, collective))
    return done


def at_once(
    groups: Mapping[str, Any],
    expected: Expected,
    me: int,
    on: torch.device,
    rounds: int = 2,
) -> list[Talked]:
    """Collectives in all groups, under way together and waited for last to first.

    All ranks start them in the same order, as NCCL wants it of communicators that run at once.
    groups, expected: as in `one_by_one`.
    """
    under_way = []
    widest = _widest(expected)
    for call, collective in enumerate(_AT_ONCE * rounds):
        for number, name, ranks in _own(groups, expected, me):
            salt = (call * len(expected) + number) * widest
            check = EVERY[collective](groups[name], ranks, me, salt, on)
            under_way.append((name, collective, check))
    return [check.wrong(name, collective) for name, collective, check in reversed(under_way)]


def _own(
    groups: Mapping[str, Any], expected: Expected, me: int
) -> Iterator[tuple[int, str, Sequence[int]]]:
    """Number, name and ranks of each group this rank is in; numbers are the same on all ranks."""
    for number, (name, every) in enumerate(expected.items()):
        ours = next((ranks for ranks in every if me in ranks), None)
        if ours is not None and name in groups:
            yield number, name, ours


def _widest(expected: Expected) -> int:
    """Ranks of the largest group: as many salts as any call uses."""
    return max((len(ranks) for every in expected.values() for ranks in every), default=1)


def _empty(count: int, on: torch.device) -> torch.Tensor:
    return torch.full((count,), _WRONG, dtype=torch.int64, device=on)
