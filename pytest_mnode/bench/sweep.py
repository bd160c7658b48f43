"""A collective over sizes: first whether its result is right, then how long it takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.bench.agree import by_rank
from pytest_mnode.bench.collectives import Measured, Prepared
from pytest_mnode.bench.timing import elapsed_s
from pytest_mnode.spec import wire

REPEAT_S = 0.25
"""How long a repeat should take: a shaper's burst, or a clock's grain, is then lost in it."""
MOST_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One size: how long one call took in each repeat, by the slowest rank of that repeat.

    calls: in a row in each repeat. wrong: values that were not right, over all ranks.
    """

    collective: str
    ranks: int
    size_bytes: int
    calls: int
    times_s: tuple[float, ...]
    wrong: int

    @property
    def timed_bytes(self) -> int:
        """Size of all timed calls together."""
        return self.size_bytes * self.calls * len(self.times_s)

    @property
    def median_s(self) -> float:
        """Of the repeats; what the bandwidths are computed from."""
        return statistics.median(self.times_s)

    @property
    def algbw_gbytes_s(self) -> float:
        """See `wire.algbw_gbytes_s`."""
        return wire.algbw_gbytes_s(self.size_bytes, self.median_s)

    @property
    def busbw_gbytes_s(self) -> float:
        """See `wire.busbw_gbytes_s`."""
        return wire.busbw_gbytes_s(self.collective, self.size_bytes, self.median_s, self.ranks)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A row for each size, rising; the same on every rank."""

    rows: tuple[Row, ...]

    def table(self) -> str:
        """As nccl-tests prints it, with the fastest and the slowest repeat beside the median."""
        head = ("size B", "calls", "min us", "time us", "max us", "algbw GB/s", "busbw GB/s")
        lines = ["".join(f"{name:>12}" for name in (*head, "#wrong"))]
        for row in self.rows:
            times_us = (min(row.times_s) * 1e6, row.median_s * 1e6, max(row.times_s) * 1e6)
            lines.append(
                f"{row.size_bytes:>12}{row.calls:>12}"
                + "".join(f"{time:>12.1f}" for time in times_us)
                + f"{row.algbw_gbytes_s:>12.4g}{row.busbw_gbytes_s:>12.4g}{row.wrong:>12}"
            )
        return "\n".join(lines)


def sweep(
    measured: Measured,
    sizes_bytes: Sequence[int],
    *,
    warmup: int,
    repeats: int,
    device: torch.device,
) -> Sweep:
    """Measure a collective over the default group of two ranks or more. All ranks call this.

    sizes_bytes: nccl-tests' meaning of a collective's size. warmup: calls before the first that is
    timed, at each size. repeats: timed runs of as many calls as fill `REPEAT_S`. Raises ValueError
    for one rank.
    """
    if dist.get_world_size() < 2:
        raise ValueError(
            f"{measured.collective} over one rank moves nothing; give two nodes or more"
        )
    return Sweep(tuple(_row(measured, size, warmup, repeats, device) for size in sizes_bytes))


def _row(
    measured: Measured, size_bytes: int, warmup: int, repeats: int, device: torch.device
) -> Row:
    prepared = measured.prepare(size_bytes, device)
    wrong = _called_once(prepared, device)
    warmup = max(1, warmup)
    warm_s = by_rank([elapsed_s(prepared.run, warmup, device) / warmup], device)
    calls = calls_of_a_repeat(max(times[0] for times in warm_s))
    # Ranks meet before the first repeat only: a pause between two would refill a shaper's burst.
    by_rank([0], device)
    times_s = [elapsed_s(prepared.run, calls, device) / calls for _ in range(repeats)]
    slowest_s = tuple(max(of_repeat) for of_repeat in zip(*by_rank(times_s, device), strict=True))
    wrong += _called_once(prepared, device)  # and once more with everything warm
    return Row(measured.collective, dist.get_world_size(), size_bytes, calls, slowest_s, wrong)


def calls_of_a_repeat(call_s: float) -> int:
    """How many calls of `call_s` seconds fill a repeat."""
    return max(1, min(MOST_CALLS, math.ceil(REPEAT_S / max(call_s, 1e-9))))


def wrong_values(measured: Measured, size_bytes: int, device: torch.device) -> int:
    """How many values are not right after one call, over all ranks. All ranks call this."""
    return _called_once(measured.prepare(size_bytes, device), device)


def _called_once(prepared: Prepared, device: torch.device) -> int:
    prepared.fill()
    prepared.run()
    mine = prepared.wrong()
    total = sum(int(wrong[0]) for wrong in by_rank([mine], device))
    return max(mine, total)  # where collectives are wrong, what was agreed may be wrong as well
