"""Values that differ by rank and by position, written and checked piece by piece.

Pieces keep the memory that is needed besides a collective's own buffers small and constant. All
values are whole numbers below 2^24, so that float32 holds them and their sums exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

DTYPE = torch.float32
_EXACT = 1 << 24
_PERIOD_SUMMED = 509
_PERIOD_COPIED = 2039
"""Primes: lengths of parts are seldom multiples of them, so a misplaced part is detected."""
_PIECE = 1 << 22
"""Approximate number of values per piece: 16 MiB."""
PIECES_BYTES = 4 * _PIECE * DTYPE.itemsize
"""Memory of a pattern and of its temporary tensors."""
STALE = -1.0
"""A value that no pattern has: it marks values that a collective did not write."""


class Pattern:
    """Values at positions 0, 1, …, shifted by `phase`: times × (position mod period) + plus."""

    def __init__(self, period: int, longest: int, device: torch.device) -> None:
        periods = max(1, min(_PIECE, longest) // period) + 1
        self._step = periods * period
        positions = torch.arange(self._step + period, device=device)
        self._positions = positions.remainder_(period).to(DTYPE)
        self._period = period

    def fill(self, values: torch.Tensor, plus: float, phase: int = 0) -> None:
        """Write the pattern to one-dimensional `values`."""
        for piece, positions in self._pieces(values, phase):
            torch.add(positions, plus, out=piece)

    def wrong(
        self, values: torch.Tensor, plus: float, times: float = 1, phase: int = 0
    ) -> Iterator[torch.Tensor]:
        """Positions in `values` that differ from the expected pattern; NaN differs."""
        first = 0
        for piece, positions in self._pieces(values, phase):
            yield (piece != positions * times + plus).nonzero().flatten() + first
            first += len(piece)

    def _pieces(self, values: torch.Tensor, phase: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        phase %= self._period
        pieces = parts_of(values, self._step)
        return [(piece, self._positions[phase : phase + len(piece)]) for piece in pieces]


class Summed:
    """Inputs of a sum, and the sum: (position + phase) mod 509, plus a number for each rank.

    A rank that is missing or counted twice changes every value of the sum, and so does a misplaced
    part. Sums are exact up to 32,000 ranks; the numbers differ up to 5,000 ranks. In odd phases
    only one rank gives the value of a position and all others give 0, so that a wrong value names
    its sender.
    """

    def __init__(self, ranks: int, longest: int, device: torch.device) -> None:
        self._ranks = ranks
        positions = ranks * (_PERIOD_SUMMED - 1)  # the largest sum, less that of the numbers
        if positions + ranks * (ranks + 1) // 2 < _EXACT:
            self._numbers = ranks
        else:
            self._numbers = max(1, (_EXACT - 1 - positions) // ranks)
        self._pattern = Pattern(_PERIOD_SUMMED, longest, device)

    def fill(self, values: torch.Tensor, rank: int, phase: int = 0) -> None:
        """Write the input of `rank`."""
        if phase % 2 == 0:
            self._pattern.fill(values, self._number(rank), phase)
            return
        self._pattern.fill(values, 1, phase)
        first = rank - phase
        for piece in parts_of(values, _PIECE):
            own = slice(first % self._ranks, None, self._ranks)
            kept = piece[own].clone()
            piece.zero_()
            piece[own] = kept
            first -= len(piece)

    def wrong(
        self, values: torch.Tensor, _number: int = 0, phase: int = 0, _sender: int = 0
    ) -> torch.Tensor:
        """Number of wrong `values` of the sum, by their sender; the last entry: unknown sender.

        Shape (ranks + 1,), int64. A sum has one message, and every rank sends it.
        """
        if phase % 2 == 0:
            plus = sum(map(self._number, range(self._ranks)))
            found = self._pattern.wrong(values, plus, self._ranks, phase)
            owners = (torch.full_like(positions, self._ranks) for positions in found)
        else:
            found = self._pattern.wrong(values, 1, phase=phase)
            owners = ((positions + phase) % self._ranks for positions in found)
        return _counted(owners, self._ranks, values.device)

    def _number(self, rank: int) -> int:
        return rank % self._numbers + 1


class Copied:
    """Messages that are copied unchanged: no two share a value at any position.

    The first 8,000 messages differ; after these the values repeat.
    """

    def __init__(self, ranks: int, longest: int, device: torch.device) -> None:
        self._ranks = ranks
        self._pattern = Pattern(_PERIOD_COPIED, longest, device)

    def fill(self, values: torch.Tensor, number: int, phase: int = 0) -> None:
        """Write message `number`."""
        self._pattern.fill(values, self._first(number), phase)

    def wrong(
        self, values: torch.Tensor, number: int, phase: int = 0, sender: int = 0
    ) -> torch.Tensor:
        """Number of `values` that differ from message `number`, counted as in `Summed.wrong`."""
        found = self._pattern.wrong(values, self._first(number), phase=phase)
        senders = (torch.full_like(positions, sender) for positions in found)
        return _counted(senders, self._ranks, values.device)

    @staticmethod
    def _first(number: int) -> int:
        return number % (_EXACT // _PERIOD_COPIED) * _PERIOD_COPIED


def _counted(owners: Iterator[torch.Tensor], ranks: int, device: torch.device) -> torch.Tensor:
    counts = torch.zeros(ranks + 1, dtype=torch.int64, device=device)
    for of_piece in owners:
        counts += torch.bincount(of_piece, minlength=ranks + 1)
    return counts


def parts_of(values: torch.Tensor, length: int) -> Sequence[torch.Tensor]:
    """Views of `values`, `length` long each; the last may be shorter."""
    parts: Sequence[torch.Tensor] = torch.split(values, length)
    return parts
