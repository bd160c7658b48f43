"""Checks that timed calls give right results, by a few values that differ from call to call.

Writing and comparing a whole buffer for each call would be timed as well. Instead a few values,
spread over the buffers, are set before a call and copied away after it: two small copies, whose
cost does not grow with the size. They are compared after the clock has stopped. All ranks know
which calls are chosen, and which rank gives which value.
"""

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from pytest_mnode.measuring.collectives import Measured, Prepared
from pytest_mnode.measuring.limits import CHECKED_CALLS
from pytest_mnode.measuring.patterns import DTYPE
from pytest_mnode.measuring.ranks import by_rank
from pytest_mnode.spec.bandwidth import Collective

_CELLS = 64
"""Least number of values per buffer: a piece as large as 1/64 of it cannot fall between them."""
_SPOT_S = 20e-6
"""Two small copies take 4 to 10 µs on CPUs, and as much on a GPU, where two events are added."""
_SHARE = 0.01
"""Share of a repeat that these copies may take."""
_PERIOD, _CALL, _CELL = 8_388_593, 1_299_709, 15_485_863
"""Primes: the values of two calls, or of two cells, differ, and float32 holds each exactly."""


def chosen_calls(calls: int, call_s: float, seed: int) -> frozenset[int]:
    """Indices of the calls of a repeat to check; not the last, which is checked in full.

    They are random, the same for the same seed, so that a periodic fault cannot avoid them for
    long. Their checks take a hundredth of the repeat; all are chosen if a call takes 2 ms or more.
    """
    most = max(1, int(calls * call_s * _SHARE / _SPOT_S))
    before = range(calls - 1)
    return frozenset(before if len(before) <= most else random.Random(seed).sample(before, most))


class Timed:
    """The calls of one repeat in a row; the last has the inputs of `fill`.

    call_s: approximate seconds of a call, the same on all ranks.
    """

    def __init__(
        self, prepared: Prepared, collective: Collective, calls: int, call_s: float, turn: int
    ) -> None:
        self.chosen = chosen_calls(calls, call_s, turn)
        self.spots = Spots(prepared, collective, len(self.chosen), turn)
        self._prepared, self._calls = prepared, calls

    def __call__(self) -> None:
        looked_at = 0
        for call in range(self._calls - 1):
            if call not in self.chosen:
                self._prepared.run_scratch()
                continue
            self.spots.set(looked_at)
            self._prepared.run_scratch()
            self.spots.keep(looked_at)
            looked_at += 1
        if looked_at:
            self.spots.restore()
        self._prepared.run()


class Spots:
    """The checked values of one repeat. All ranks create and call it in the same way.

    calls: number of checked calls. turn: the repeat's; it shifts positions and owners of values.
    """

    def __init__(self, prepared: Prepared, collective: Collective, calls: int, turn: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self._ranks = ranks
        sent, received = prepared.spot_buffers()
        part, device = sent.shape[1], sent.device
        wanted = max(1, _CELLS // max(len(sent), len(received)))
        cells = min(part, max(wanted, ranks) if len(sent) == len(received) == 1 else wanted)
        stride = part // cells
        where = slice(turn * 7919 % stride, None, stride)
        self._sent, self._received = sent[:, where][:, :cells], received[:, where][:, :cells]
        self._before = self._sent.clone()
        ids, own, awaited, self._senders = _cells(
            *(collective, (rank, ranks), cells, turn, device), step=prepared.step
        )
        call = torch.arange(calls, device=device).view(-1, 1, 1)
        self._salts = _values(ids, call, turn) * own
        self._expected = _values(awaited, call, turn)
        self._kept = torch.zeros_like(self._expected)

    def set(self, call: int) -> None:
        """Set the values of this call, before it."""
        self._sent.copy_(self._salts[call])

    def keep(self, call: int) -> None:
        """Keep the values received by this call, after it."""
        self._kept[call].copy_(self._received)

    def restore(self) -> None:
        """Restore the values that the input had before."""
        self._sent.copy_(self._before)

    def wrong(self) -> torch.Tensor:
        """Number of received values that are wrong, as `Prepared.wrong` counts them."""
        senders = self._senders.expand_as(self._kept)[self._kept != self._expected]
        return torch.bincount(senders, minlength=self._ranks + 1)


def _values(cells: torch.Tensor, call: torch.Tensor, turn: int) -> torch.Tensor:
    """Values of these cells in these calls: 1 to 2^23."""
    return ((cells * _CELL + (turn * 1000 + call) * _CALL) % _PERIOD + 1).to(DTYPE)


def _cells(
    collective: Collective,
    place: tuple[int, int],
    cells: int,
    turn: int,
    device: torch.device,
    *,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """By part and cell: ids sent, whether this rank sends them, ids received, and their senders.

    place: rank and number of ranks. step: how many ranks further an exchange goes. In a sum, one
    rank owns each cell and the others add 0.
    """
    rank, ranks = place
    cell = torch.arange(cells, device=device).view(1, -1)
    part = torch.arange(ranks, device=device).view(-1, 1)
    every = torch.ones_like(part + cell)
    one = every[:1]
    match collective:
        case Collective.ALL_REDUCE:
            owner = (cell + turn) % ranks
            return cell, owner == rank, cell, owner
        case Collective.BROADCAST:
            return cell, one * (rank == 0), cell, one * 0
        case Collective.ALL_GATHER:
            return rank * cells + cell, one, part * cells + cell, part * every
        case Collective.REDUCE_SCATTER:
            owner = (part + cell + turn) % ranks
            ids = part * cells + cell
            return ids, owner == rank, ids[rank : rank + 1], owner[rank : rank + 1]
        case Collective.ALL_TO_ALL:
            sent = (rank * ranks + part) * cells + cell
            return sent, every, (part * ranks + rank) * cells + cell, part * every
        case _:
            before = (rank - step) % ranks
            return rank * cells + cell, one, before * cells + cell, one * before


def wrong_here(prepared: Prepared, turn: int) -> torch.Tensor:
    """Number of this rank's values that are wrong after one call, as `Prepared.wrong` counts."""
    prepared.fill(turn)
    prepared.run()
    return prepared.wrong()


def votes(mine: torch.Tensor, device: torch.device) -> tuple[list[int], tuple[int, ...]]:
    """Number of wrong values of every rank, and their senders if known. All ranks call this.

    mine: this rank's, as `Prepared.wrong` counts. If collectives are wrong, this exchange may be
    wrong too, so a rank keeps its own counts. Of many senders the first and the last are named.
    """
    known = mine[:-1].nonzero().flatten().tolist() or [-1]
    own = [int(mine.sum()), known[0], known[-1]]
    every = [[int(n) for n in row] for row in by_rank(own, device)]
    every[dist.get_rank()] = own
    senders = {sender for count, *ends in every if count for sender in ends if sender >= 0}
    return [count for count, *_ in every], tuple(sorted(senders))


def wrong_values(
    measured: Measured, size_bytes: int, device: torch.device
) -> tuple[list[int], tuple[int, ...]]:
    """Number of wrong values of each rank in CHECKED_CALLS calls, and the ranks that sent them.

    All ranks call this.
    """
    part = measured.part(size_bytes, dist.get_world_size())
    prepared = measured.prepare(part, device, None)
    wrong = torch.stack([wrong_here(prepared, turn) for turn in range(CHECKED_CALLS)])
    return votes(wrong.sum(0), device)
