"""How fast memory is copied that is near to a rank's accelerator, and that is far from it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_mnode.machine.cpus import read_cpus
from pytest_mnode.machine.numa import read_numa
from pytest_mnode.machine.process import read_process
from pytest_mnode.measuring.agree import by_rank
from pytest_mnode.measuring.farness import Places, buffer_bytes, nothing_far, places
from pytest_mnode.measuring.numa import address_of
from pytest_mnode.rank import binding, mempolicy
from pytest_mnode.rank.accelerators import home_of
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure


@dataclass(frozen=True, slots=True)
class Copied:
    """What one rank measured, bytes copied (not bytes moved) in GB/s; None without, and why.

    to_device: from pinned memory to the accelerator; None where there is none.
    """

    rank: str
    near_gbytes_s: float | None = None
    far_gbytes_s: float | None = None
    near_to_device_gbytes_s: float | None = None
    far_to_device_gbytes_s: float | None = None
    where: str = ""
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Near over far; None where one of them was not measured."""
        if not self.near_gbytes_s or not self.far_gbytes_s:
            return None
        return self.near_gbytes_s / self.far_gbytes_s


@dataclass(frozen=True, slots=True)
class Copies:
    """What all ranks measured; the same on all of them."""

    least: float
    rows: tuple[Copied, ...]

    def record(self, measure: Measure) -> None:
        """The rank with the least effect against the promise, and rates beside it."""
        unknown = [row for row in self.rows if row.ratio is None]
        worst = min((r for r in self.rows if r.ratio is not None), key=_ratio, default=None)
        measure(
            "copy near over far, of the rank with least",
            None if unknown or worst is None else worst.ratio,
            "",
            at_least=self.least,
            source="numa.copy_near_over_far",
            culprit=worst.rank if worst else None,
            note="; ".join(f"{row.rank}: {row.why}" for row in unknown[:4])
            or (f"{worst.rank}: {worst.where}" if worst else ""),
        )
        for name, of in (
            ("copy near", "near_gbytes_s"),
            ("copy far", "far_gbytes_s"),
            ("copy to device from near", "near_to_device_gbytes_s"),
            ("copy to device from far", "far_to_device_gbytes_s"),
        ):
            rates = [rate for row in self.rows if (rate := getattr(row, of)) is not None]
            if rates:
                measure(f"{name}, median of ranks", median(rates), "GB/s")

    def table(self) -> str:
        """A line a rank."""
        lines = [f"{'near':>8} {'far':>8} {'ratio':>6}  GB/s"]
        for row in self.rows:
            rates = (row.near_gbytes_s, row.far_gbytes_s, row.ratio)
            numbers = ["-" if rate is None else f"{rate:.2f}" for rate in rates]
            rated = f"{numbers[0]:>8} {numbers[1]:>8} {numbers[2]:>6}"
            lines.append(f"{rated}  {row.rank} {row.where or row.why}")
        return "\n".join(lines)


def _ratio(row: Copied) -> float:
    return row.ratio or 0.0


def near_and_far(world: World, device: torch.device, spec: Spec) -> Copies:
    """Measure in each rank, one a node at a time. All ranks call this.

    Ends the test as not promised where no node has memory that is far.
    """
    promised = spec.criteria.numa
    if promised is None or promised.copy_near_over_far is None:
        not_promised("numa.copy_near_over_far")
    bound = binding.of_this_rank()
    home = home_of(bound.shown, address_of(world, device, bound.shown))
    process = read_process()
    allowed = process.mems_allowed if process else None
    machine = read_numa()
    nothing = nothing_far(machine, allowed)
    everywhere = [nothing] * world.size
    dist.all_gather_object(everywhere, nothing)
    if all(everywhere):
        not_promised(f"nothing to measure: {everywhere[0]}")
    rank = f"rank {world.rank} on {world.node}"
    row = Copied(rank, why=nothing)
    for turn in range(world.local_size):
        by_rank([0.0], device)
        if turn == world.local_rank and not nothing:
            found = places(machine, allowed, home)
            size, why = buffer_bytes(promised.copy_size_bytes, read_cpus(), machine, found)
            if isinstance(found, str) or why:
                row = Copied(rank, why=found if isinstance(found, str) else why)
            else:
                row = _measured(rank, found, size, promised.copy_repeats, device)
    rows = [row] * world.size
    dist.all_gather_object(rows, row)
    return Copies(promised.copy_near_over_far, tuple(rows))


def _measured(rank: str, found: Places, size: int, repeats: int, device: torch.device) -> Copied:
    try:
        with _running_on(found.cpus):
            near_s, far_s = medians_s(found, repeats, lambda n: _pair(n, size), _copy_s)
            device_s: tuple[float, ...] = ()
            if device.type == "cuda":
                device_s = medians_s(
                    found, repeats, lambda n: _pinned(n, size, device), _to_device_s
                )
    except (OSError, MemoryError, RuntimeError) as error:
        return Copied(rank, why=f"could not be measured: {error}")
    rates = [size / seconds / 1e9 for seconds in device_s]
    return Copied(
        rank,
        near_gbytes_s=size / near_s / 1e9,
        far_gbytes_s=size / far_s / 1e9,
        near_to_device_gbytes_s=rates[0] if rates else None,
        far_to_device_gbytes_s=rates[1] if rates else None,
        where=f"{size >> 20} MiB on NUMA node {found.near}, and on {found.far}",
    )


def medians_s(
    found: Places,
    repeats: int,
    buffers_on: Callable[[int], Any],
    copy_s: Callable[[Any], float],
) -> tuple[float, float]:
    """Median seconds of a copy near and far, in turn, so that what disturbs disturbs both."""
    near, far = buffers_on(found.near), buffers_on(found.far)
    copy_s(near), copy_s(far)  # first copies pay for page tables
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        times[0].append(copy_s(near))
        times[1].append(copy_s(far))
    return median(times[0]), median(times[1])


@contextlib.contextmanager
def _running_on(cpus: frozenset[int]) -> Iterator[None]:
    """This thread on these CPUs meanwhile, whatever the rank is bound to."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _pair(number: int, size: int) -> Sequence[Any]:
    import numpy

    with mempolicy.only(number):
        return numpy.ones(size, numpy.uint8), numpy.ones(size, numpy.uint8)


def _copy_s(pair: Sequence[Any]) -> float:
    import numpy

    started = time.perf_counter()
    numpy.copyto(pair[1], pair[0])
    return time.perf_counter() - started


def _pinned(number: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    with mempolicy.only(number):
        host = torch.ones(size, dtype=torch.uint8)
    # Registered where it is: memory that torch pins itself comes from a pool of unknown place.
    runtime: Any = torch.cuda.cudart
    code = runtime().cudaHostRegister(host.data_ptr(), size, 0)
    if int(code) != 0:
        raise RuntimeError(f"cudaHostRegister: {code}")
    return host, torch.empty(size, dtype=torch.uint8, device=device)


def _to_device_s(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    host, there = pair
    torch.cuda.synchronize(there.device)
    started = time.perf_counter()
    there.copy_(host)
    torch.cuda.synchronize(there.device)
    return time.perf_counter() - started
