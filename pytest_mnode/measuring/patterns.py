"""Values that differ by rank and by position, written and checked piece by piece.

Pieces keep what is needed beside a collective's own buffers small, whatever their size. All values
are whole numbers below 2^24, so that float32 holds them, and their sums, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DTYPE = torch.float32
_EXACT = 1 << 24
_PERIOD_SUMMED = 509
_PERIOD_COPIED = 2039
"""Primes, so that what landed elsewhere shows: parts of buffers are seldom a multiple of them."""
_PIECE = 1 << 22
"""Values, about: 16 MiB."""
PIECES_BYTES = 4 * _PIECE * DTYPE.itemsize
"""What a pattern holds, and needs for a moment, beside the buffers."""
STALE = -1.0
"""What no pattern holds: a value that a collective did not write shows."""


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

    def wrong(self, values: torch.Tensor, plus: float, times: float = 1, phase: int = 0) -> int:
        """How many of `values` are not exactly as they should be; NaN is not."""
        return sum(
            int((piece != positions * times + plus).sum())
            for piece, positions in self._pieces(values, phase)
        )

    def _pieces(self, values: torch.Tensor, phase: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        phase %= self._period
        pieces = parts_of(values, self._step)
        return [(piece, self._positions[phase : phase + len(piece)]) for piece in pieces]


class Summed:
    """What ranks put into a sum, and the sum: (position + phase) mod 509, and the rank's number.

    A rank that is missing or counted twice changes every value of the sum, and so does a part that
    landed elsewhere. Exact up to 32,000 ranks, with different numbers up to 5,000.
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
        """What `rank` puts in."""
        self._pattern.fill(values, self._number(rank), phase)

    def wrong(self, values: torch.Tensor, _: int = 0, phase: int = 0) -> int:
        """How many of `values` are not the sum over all ranks."""
        plus = sum(map(self._number, range(self._ranks)))
        return self._pattern.wrong(values, plus, self._ranks, phase)

    def _number(self, rank: int) -> int:
        return rank % self._numbers + 1


class Copied:
    """What is sent on as it is: values of one message are those of no other, at any position.

    The first 8,000 messages differ; then numbers begin again.
    """

    def __init__(self, longest: int, device: torch.device) -> None:
        self._pattern = Pattern(_PERIOD_COPIED, longest, device)

    def fill(self, values: torch.Tensor, number: int, phase: int = 0) -> None:
        """Message `number`."""
        self._pattern.fill(values, self._first(number), phase)

    def wrong(self, values: torch.Tensor, number: int, phase: int = 0) -> int:
        """How many of `values` are not those of message `number`."""
        return self._pattern.wrong(values, self._first(number), phase=phase)

    @staticmethod
    def _first(number: int) -> int:
        return number % (_EXACT // _PERIOD_COPIED) * _PERIOD_COPIED


def parts_of(values: torch.Tensor, length: int) -> Sequence[torch.Tensor]:
    """Views of `values`, `length` long each; the last may be shorter."""
    parts: Sequence[torch.Tensor] = torch.split(values, length)
    return parts
