"""Sweep of a collective over sizes: its time, and whether results are right, in every repeat."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.detection import noise_share
from pytest_mnode.measurement import Curve, Point
from pytest_mnode.measuring.checked_calls import Timed, votes, wrong_here
from pytest_mnode.measuring.collectives import ALL_REDUCE, Group, Measured, Prepared
from pytest_mnode.measuring.limits import CHECKED_CALLS, REPEAT_S
from pytest_mnode.measuring.patterns import DTYPE
from pytest_mnode.measuring.ranks import by_rank, elapsed_s, free_bytes_by_rank
from pytest_mnode.progress import progress
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.quantity import SIZE

MOST_CALLS = 1000
_FEW_CALLS = 4
_MOST_REPEATS, _LEAST_MOST_REPEATS = 8, 12
"""Most repeats of a noisy size: 8 times the requested number, or 12 if that is more."""
_LEAD_BYTES = 512 * 1024
"""Size of the all-reduce before each repeat: it uses up a shaper's burst and aligns the ranks."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size of a sweep.

    size_bytes: the requested size. moved_bytes: the size in whole values and equal parts. count:
    values per part, as in nccl-tests. calls: calls in a row per repeat. times_s: seconds per call
    in each repeat, of its slowest rank. wrong: number of wrong values over all ranks. wrong_ranks:
    ranks that received them. wrong_senders: ranks that sent them, as far as known. checked: number
    of checked calls: some before the repeats and the last of each repeat, with all values compared,
    and others of each repeat, with a few values compared (`checked_calls`).
    """

    collective: str
    ranks: int
    size_bytes: int
    moved_bytes: int
    count: int
    calls: int
    times_s: tuple[float, ...]
    wrong: int
    wrong_ranks: tuple[int, ...] = ()
    wrong_senders: tuple[int, ...] = ()
    checked: int = 0

    @property
    def timed_bytes(self) -> int:
        """Total size of all timed calls."""
        return self.moved_bytes * self.calls * len(self.times_s)

    @property
    def median_s(self) -> float:
        """Median over the repeats, from which bandwidths are computed."""
        return statistics.median(self.times_s)

    @property
    def p99_s(self) -> float:
        """99th percentile over the repeats; with fewer than 100 repeats, the slowest."""
        return sorted(self.times_s)[math.ceil(0.99 * len(self.times_s)) - 1]

    @property
    def busbw_gbytes_s(self) -> float:
        """Busbw of the median repeat."""
        return self._busbw_gbytes_s(self.median_s)

    @property
    def all_busbw_gbytes_s(self) -> tuple[float, ...]:
        """Busbw of each repeat."""
        return tuple(map(self._busbw_gbytes_s, self.times_s))

    def _busbw_gbytes_s(self, time_s: float) -> float:
        return bandwidth.busbw_gbytes_s(self.collective, self.moved_bytes, time_s, self.ranks)

    @property
    def point(self) -> Point:
        """This row as a point of a curve."""
        return Point(
            size_bytes=self.moved_bytes,
            repeats=len(self.times_s),
            time_median_us=self.median_s * 1e6,
            time_p99_us=self.p99_s * 1e6,
            time_min_us=min(self.times_s) * 1e6,
            time_max_us=max(self.times_s) * 1e6,
            algbw_gbytes_s=bandwidth.algbw_gbytes_s(self.moved_bytes, self.median_s),
            busbw_gbytes_s=self.busbw_gbytes_s,
            wrong=self.wrong,
        )


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A size that could not be measured, and why, in words."""

    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of all sizes that could be measured, by rising size; the same on every rank."""

    measured: Measured
    ranks: int
    rows: tuple[Row, ...]
    unmeasured: tuple[Unmeasured, ...] = ()

    def curve(self, algorithm: str, backend: str) -> Curve:
        """The rows as points, with the algorithm and the backend that were used."""
        points = tuple(row.point for row in self.rows)
        return Curve(self.measured.collective.value, algorithm, backend, self.ranks, points)


def sweep(
    measured: Measured,
    sizes_bytes: Sequence[int],
    *,
    warmup: int,
    repeats: int,
    device: torch.device,
    group: Group = None,
    tolerated: Mapping[int, float] | None = None,
) -> Sweep:
    """Measure a collective over all ranks, two or more. All ranks call this.

    sizes_bytes: sizes as nccl-tests defines them. warmup: untimed calls before the timed ones, at
    each size. repeats: timed runs, each of as many calls as fill `REPEAT_S`. group: a group of all
    ranks; None for the default one. tolerated: by size, the largest acceptable
    `detection.noise_share` of a median; repeats are added while it is larger. Raises ValueError for
    one rank.
    """
    ranks = dist.get_world_size()
    if ranks < 2:
        raise ValueError(
            f"{measured.collective} over one rank moves nothing; give two nodes or more"
        )
    found = []
    for number, size in enumerate(sizes_bytes):
        progress(f"{measured.collective} {SIZE.text(size)}", number, len(sizes_bytes))
        least_checked = CHECKED_CALLS if size == min(sizes_bytes) else 1
        enough = (tolerated or {}).get(size)
        run = _Run(measured, size, warmup, repeats, device, group, least_checked, enough)
        found.append(run.measure())
    return Sweep(
        measured,
        ranks,
        tuple(row for row in found if isinstance(row, Row)),
        tuple(row for row in found if isinstance(row, Unmeasured)),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Measuring of one size. All ranks call it alike. tolerated: see `sweep`.

    least_checked: least number of calls checked one by one.
    """

    measured: Measured
    size_bytes: int
    warmup: int
    repeats: int
    device: torch.device
    group: Group
    least_checked: int
    tolerated: float | None

    def measure(self) -> Row | Unmeasured:
        ranks, device = dist.get_world_size(), self.device
        try:
            part = self.measured.part(self.size_bytes, ranks)
        except ValueError as error:
            return Unmeasured(self.size_bytes, str(error))
        prepared = self._prepare(part, ranks)
        if isinstance(prepared, str):
            return Unmeasured(self.size_bytes, prepared)
        try:
            mine = wrong_here(prepared, 0)
        except (RuntimeError, NotImplementedError) as error:
            if "not support" not in str(error) and "unsupported" not in str(error).lower():
                raise
            # Raised before anything was sent.
            return Unmeasured(self.size_bytes, str(error).partition("\n")[0])
        call_s = _call_s(prepared, max(1, self.warmup), device)
        calls = calls_of_a_repeat(call_s)
        if calls > _FEW_CALLS:  # a shaper's burst made the first calls fast
            call_s = _call_s(prepared, math.ceil(calls / 4), device)
            calls = calls_of_a_repeat(call_s)
        checked = max(self.least_checked, min(CHECKED_CALLS, calls))
        for turn in range(1, checked + 1):
            mine += wrong_here(prepared, turn)
        checked += 1
        lead = ALL_REDUCE.prepare(_LEAD_BYTES // DTYPE.itemsize, device, self.group)
        times_s: list[float] = []
        while self._more_repeats(times_s):
            mine_s = []
            for _ in range(self.repeats):
                prepared.fill(checked)
                timed = Timed(prepared, self.measured.collective, calls, call_s, checked)
                lead.run_scratch()
                mine_s.append(elapsed_s(timed, 1, device) / calls)
                mine += prepared.wrong() + timed.spots.wrong()
                checked += 1 + len(timed.chosen)
            by_repeat = zip(*by_rank(mine_s, device), strict=True)
            times_s += [max(of_repeat) for of_repeat in by_repeat]
        wrong_by_rank, senders = votes(mine, device)
        return Row(
            collective=self.measured.collective.value,
            ranks=ranks,
            size_bytes=self.size_bytes,
            moved_bytes=self.measured.moved_bytes(self.size_bytes, ranks),
            count=part,
            calls=calls,
            times_s=tuple(times_s),
            wrong=sum(wrong_by_rank),
            wrong_ranks=tuple(rank for rank, count in enumerate(wrong_by_rank) if count),
            wrong_senders=senders,
            checked=checked,
        )

    def _more_repeats(self, times_s: Sequence[float]) -> bool:
        """Whether another `repeats` repeats are needed."""
        if not times_s or self.tolerated is None:
            return not times_s
        unsure = noise_share([1 / time_s for time_s in times_s])
        most = max(_LEAST_MOST_REPEATS, _MOST_REPEATS * self.repeats)
        return (unsure is None or unsure > self.tolerated) and len(times_s) < most

    def _prepare(self, part: int, ranks: int) -> Prepared | str:
        """Buffers on every rank, or why there is no memory for them."""
        needed_bytes = self.measured.held_bytes(self.size_bytes, ranks)
        if why := too_large(needed_bytes, free_bytes_by_rank(self.device)):
            return why
        prepared = None
        with contextlib.suppress(torch.OutOfMemoryError):
            prepared = self.measured.prepare(part, self.device, self.group)
        has_room = by_rank([prepared is not None], self.device)
        without = [rank for rank, [has] in enumerate(has_room) if not has]
        if prepared is None or without:
            return f"no memory for its buffers on rank {', '.join(map(str, without))}"
        return prepared


def _call_s(prepared: Prepared, calls: int, device: torch.device) -> float:
    """Mean seconds of `calls` calls on the slowest rank. All ranks call this."""
    mine_s = elapsed_s(prepared.run_scratch, calls, device) / calls
    return max(times[0] for times in by_rank([mine_s], device))


def too_large(needed_bytes: int, free_bytes: Sequence[float]) -> str | None:
    """Why buffers of `needed_bytes` per rank do not fit; None if every rank has room."""
    least = min(free_bytes)
    if needed_bytes <= least:
        return None
    gib, rank = 1 << 30, free_bytes.index(least)
    return (
        f"needs {needed_bytes / gib:.3g} GiB on every rank, but rank {rank} may allocate only "
        f"{least / gib:.3g} GiB"
    )


def calls_of_a_repeat(call_s: float) -> int:
    """Number of calls of `call_s` seconds that fill a repeat."""
    return max(1, min(MOST_CALLS, math.ceil(REPEAT_S / max(call_s, 1e-9))))
