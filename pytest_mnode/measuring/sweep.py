"""Sweep of a collective over sizes: its time, and whether results are right, in every repeat.

Repeats are nested: communicator ⊃ repeat ⊃ call. Sizes that are judged are measured on several
fresh communicators, because each draws its connections, and so its paths, anew.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from pytest_mnode.detection import Estimate, estimate, wants_more
from pytest_mnode.measurement import Bound, Curve, Point
from pytest_mnode.measuring.checked_calls import Timed, votes, wrong_here
from pytest_mnode.measuring.collectives import ALL_REDUCE, Group, Measured, Prepared
from pytest_mnode.measuring.limits import CHECKED_CALLS, REPEAT_S, repeats_of_each
from pytest_mnode.measuring.patterns import DTYPE
from pytest_mnode.measuring.ranks import by_rank, elapsed_s, free_bytes_by_rank
from pytest_mnode.progress import progress
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.quantity import SIZE

MOST_CALLS = 1000
_FEW_CALLS = 4
_LEAD_BYTES = 512 * 1024
"""Size of the all-reduce before each repeat: it uses up a shaper's burst and aligns the ranks."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size of a sweep.

    size_bytes: the requested size. moved_bytes: the size in whole values and equal parts. count:
    values per part, as in nccl-tests. calls: calls in a row per repeat. times_s: by communicator,
    seconds per call in each repeat, of its slowest rank. wrong: number of wrong values over all
    ranks. wrong_ranks: ranks that received them. wrong_senders: ranks that sent them, as far as
    known. checked: number of checked calls: some before the repeats and the last of each repeat,
    with all values compared, and others of each repeat, with a few values compared
    (`checked_calls`).
    """

    collective: str
    ranks: int
    size_bytes: int
    moved_bytes: int
    count: int
    calls: int
    times_s: tuple[tuple[float, ...], ...]
    wrong: int
    wrong_ranks: tuple[int, ...] = ()
    wrong_senders: tuple[int, ...] = ()
    checked: int = 0

    @property
    def all_times_s(self) -> tuple[float, ...]:
        """Times of all repeats of all communicators."""
        return tuple(time_s for of_one in self.times_s for time_s in of_one)

    @property
    def timed_bytes(self) -> int:
        """Total size of all timed calls."""
        return self.moved_bytes * self.calls * len(self.all_times_s)

    @property
    def median_s(self) -> float:
        """Median over all repeats."""
        return statistics.median(self.all_times_s)

    @property
    def p99_s(self) -> float:
        """99th percentile over the repeats; with fewer than 100 repeats, the slowest."""
        times_s = sorted(self.all_times_s)
        return times_s[math.ceil(0.99 * len(times_s)) - 1]

    @property
    def busbw_gbytes_s(self) -> float:
        """Mean over communicators, each by its median repeat (`Estimate.value`)."""
        if found := self.estimate:
            return found.value
        return statistics.median(rate for rates in self.all_busbw_gbytes_s for rate in rates)

    @property
    def all_busbw_gbytes_s(self) -> tuple[tuple[float, ...], ...]:
        """Busbw of each repeat, by communicator."""
        busbw = bandwidth.busbw_gbytes_s
        return tuple(
            tuple(busbw(self.collective, self.moved_bytes, time_s, self.ranks) for time_s in of_one)
            for of_one in self.times_s
        )

    @property
    def estimate(self) -> Estimate | None:
        """The busbw and how sure it is; None for one communicator."""
        return estimate(self.all_busbw_gbytes_s)

    @property
    def point(self) -> Point:
        """This row as a point of a curve."""
        return Point(
            size_bytes=self.moved_bytes,
            repeats=len(self.all_times_s),
            time_median_us=self.median_s * 1e6,
            time_p99_us=self.p99_s * 1e6,
            time_min_us=min(self.all_times_s) * 1e6,
            time_max_us=max(self.all_times_s) * 1e6,
            algbw_gbytes_s=self.busbw_gbytes_s / bandwidth.bus_factor(self.collective, self.ranks),
            busbw_gbytes_s=self.busbw_gbytes_s,
            wrong=self.wrong,
            times_us=tuple(tuple(t * 1e6 for t in of_one) for of_one in self.times_s),
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


Communicator = Callable[[], AbstractContextManager[Group]]
"""Makes a fresh process group of all ranks, and destroys it again."""


def sweep(
    measured: Measured,
    sizes_bytes: Sequence[int],
    *,
    warmup: int,
    repeats: int,
    device: torch.device,
    communicator: Communicator = contextlib.nullcontext,
    judged: Mapping[int, Bound] | None = None,
    communicators: int = 1,
) -> Sweep:
    """Measure a collective over all ranks, two or more. All ranks call this.

    sizes_bytes: sizes as nccl-tests defines them. warmup: untimed calls before the timed ones, at
    each size. repeats: timed runs on one communicator, each of as many calls as fill `REPEAT_S`.
    communicator: makes the group to measure with; left out, the default group. judged,
    communicators: as in `sweep_of`.

    Raises ValueError for one rank.
    """
    ranks = dist.get_world_size()
    if ranks < 2:
        raise ValueError(
            f"{measured.collective} over one rank moves nothing; give two nodes or more"
        )
    make = functools.partial(_InRanks, warmup=warmup, device=device)
    return sweep_of(
        measured, ranks, sizes_bytes, make, communicator, judged or {}, repeats, communicators
    )


def sweep_of(  # noqa: PLR0917  of `sweep`, and what measures
    measured: Measured,
    ranks: int,
    sizes_bytes: Sequence[int],
    make: Callable[..., OneSize],
    communicator: Communicator,
    judged: Mapping[int, Bound],
    repeats: int,
    communicators: int,
) -> Sweep:
    """A sweep whose sizes `make` makes: they measure in ranks, or on a virtual cluster.

    judged: by size, the bound of its busbw in GB/s. These sizes are measured on `communicators`
    communicators, and on up to four times as many until the interval of the busbw is on one side of
    the bound, with their repeats spread over them (`limits.repeats_of_each`). Other sizes are
    measured on the first communicator only.
    """
    sizes = [
        make(
            measured=measured,
            ranks=ranks,
            size_bytes=size,
            repeats=repeats_of_each(repeats, communicators if size in judged else 1),
            least_checked=CHECKED_CALLS if size == min(sizes_bytes) else 1,
            bound=judged.get(size),
            planned=communicators if size in judged else 1,
        )
        for size in sizes_bytes
    ]
    while due := [one for one in sizes if one.wants_more]:
        with communicator() as group:
            for number, one in enumerate(due):
                progress(f"{measured.collective} {SIZE.text(one.size_bytes)}", number, len(due))
                one.measure(group)
    return Sweep(
        measured,
        ranks,
        tuple(one.row() for one in sizes if not one.why),
        tuple(Unmeasured(one.size_bytes, one.why) for one in sizes if one.why),
    )


@dataclass(slots=True, kw_only=True)
class OneSize:
    """The measuring of one size, communicator by communicator.

    least_checked: least number of calls checked one by one. bound: None if it is not judged.
    planned: number of communicators. why: why it cannot be measured. call_s, calls: as the first
    communicator found; on others the checked call is the only one before the timed ones.
    """

    measured: Measured
    ranks: int
    size_bytes: int
    repeats: int
    least_checked: int
    bound: Bound | None
    planned: int
    why: str = ""
    call_s: float = 0.0
    calls: int = 0
    checked: int = 0
    times_s: list[tuple[float, ...]] = field(default_factory=list)

    def measure(self, group: Group) -> None:
        """Measure `repeats` repeats on this communicator; else set `why`."""
        raise NotImplementedError

    def votes(self) -> tuple[list[int], tuple[int, ...]]:
        """Wrong values by rank, and the ranks that sent them, as far as known."""
        raise NotImplementedError

    @property
    def wants_more(self) -> bool:
        """Whether another communicator is to measure it; the same on every rank."""
        if self.why or self.bound is None:
            return not self.why and not self.times_s
        found = self.row(voted=False).estimate if self.times_s else None
        decided = found is not None and self.bound.decides(*found.interval) is not None
        return wants_more(len(self.times_s), self.planned, decided=decided)

    def row(self, *, voted: bool = True) -> Row:
        """What was measured. voted: with wrong values, for which all ranks must call this."""
        wrong_by_rank, senders = self.votes() if voted else ([], ())
        return Row(
            collective=self.measured.collective.value,
            ranks=self.ranks,
            size_bytes=self.size_bytes,
            moved_bytes=self.measured.moved_bytes(self.size_bytes, self.ranks),
            count=self.measured.part(self.size_bytes, self.ranks),
            calls=self.calls,
            times_s=tuple(self.times_s),
            wrong=sum(wrong_by_rank),
            wrong_ranks=tuple(rank for rank, count in enumerate(wrong_by_rank) if count),
            wrong_senders=senders,
            checked=self.checked,
        )


@dataclass(slots=True, kw_only=True)
class _InRanks(OneSize):
    """Measures in ranks, all of which call it alike. mine: this rank's wrong values, as
    `Prepared.wrong` counts."""

    warmup: int
    device: torch.device
    mine: torch.Tensor | None = None

    def measure(self, group: Group) -> None:
        ranks, device = self.ranks, self.device
        try:
            part = self.measured.part(self.size_bytes, ranks)
        except ValueError as error:
            self.why = str(error)
            return
        prepared = self._prepare(part, ranks, group)
        if isinstance(prepared, str):
            self.why = prepared
            return
        try:
            self._count(wrong_here(prepared, self.checked))
        except (RuntimeError, NotImplementedError) as error:
            if "not support" not in str(error) and "unsupported" not in str(error).lower():
                raise
            # Raised before anything was sent.
            self.why = str(error).partition("\n")[0]
            return
        self.checked += 1
        if not self.times_s:
            self._time_a_call(prepared)
            self._check_one_by_one(prepared)
        lead = ALL_REDUCE.prepare(_LEAD_BYTES // DTYPE.itemsize, device, group)
        mine_s = []
        for _ in range(self.repeats):
            prepared.fill(self.checked)
            timed = Timed(prepared, self.measured.collective, self.calls, self.call_s, self.checked)
            lead.run_scratch()
            mine_s.append(elapsed_s(timed, 1, device) / self.calls)
            self._count(prepared.wrong() + timed.spots.wrong())
            self.checked += 1 + len(timed.chosen)
        by_repeat = zip(*by_rank(mine_s, device), strict=True)
        self.times_s.append(tuple(max(of_repeat) for of_repeat in by_repeat))

    def _time_a_call(self, prepared: Prepared) -> None:
        self.call_s = _call_s(prepared, max(1, self.warmup), self.device)
        self.calls = calls_of_a_repeat(self.call_s)
        if self.calls > _FEW_CALLS:  # a shaper's burst made the first calls fast
            self.call_s = _call_s(prepared, math.ceil(self.calls / 4), self.device)
            self.calls = calls_of_a_repeat(self.call_s)

    def _check_one_by_one(self, prepared: Prepared) -> None:
        for _ in range(max(self.least_checked, min(CHECKED_CALLS, self.calls))):
            self._count(wrong_here(prepared, self.checked))
            self.checked += 1

    def _count(self, wrong: torch.Tensor) -> None:
        self.mine = wrong if self.mine is None else self.mine + wrong

    def votes(self) -> tuple[list[int], tuple[int, ...]]:
        return ([], ()) if self.mine is None else votes(self.mine, self.device)

    def _prepare(self, part: int, ranks: int, group: Group) -> Prepared | str:
        """Buffers on every rank, or why there is no memory for them."""
        needed_bytes = self.measured.held_bytes(self.size_bytes, ranks)
        if why := too_large(needed_bytes, free_bytes_by_rank(self.device)):
            return why
        prepared = None
        with contextlib.suppress(torch.OutOfMemoryError):
            prepared = self.measured.prepare(part, self.device, group)
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
