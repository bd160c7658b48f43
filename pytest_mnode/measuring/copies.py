"""How fast memory near a rank's accelerator is copied, and memory that is far from it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy
import torch

from pytest_mnode.machine.cpus import Cpus, read_cpus
from pytest_mnode.machine.numa import Numa, read_numa
from pytest_mnode.machine.process import read_process
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.numa import address_of
from pytest_mnode.measuring.ranks import barrier, gathered
from pytest_mnode.rank import binding, mempolicy
from pytest_mnode.rank.accelerators import home_of
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised, promised
from pytest_mnode.spec import Spec

_CACHES = 2
"""How many times the largest cache a buffer must be, so that it is memory that is measured."""
_FREE = 8
"""Of a NUMA node's free memory, at most one in so many parts is taken for a buffer."""


@dataclass(frozen=True, slots=True)
class CopyNodes:
    """NUMA nodes to copy on, and CPUs to copy by: those near the accelerator, for both."""

    near: int
    far: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class CopyRates:
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


def near_and_far(world: World, device: torch.device, spec: Spec) -> list[CopyRates]:
    """Measure in each rank, one per node at a time; the same on all ranks, which all call this.

    Ends the test as not promised where no node has memory that is far.
    """
    promised(spec, "numa.copy_near_over_far")
    criterion = spec.criteria.numa
    assert criterion is not None
    bound = binding.of_this_rank()
    home = home_of(bound.shown, address_of(world, device, bound.shown))
    process = read_process()
    allowed = process.mems_allowed if process else None
    machine = read_numa()
    nothing = nothing_far(machine, allowed)
    everywhere = gathered(nothing)
    if all(everywhere):
        not_promised(f"nothing to measure: {everywhere[0]}")
    rank = rank_name(world, world.rank)
    rates = CopyRates(rank, why=nothing)
    for turn in range(world.local_size):
        barrier(device)
        if turn == world.local_rank and not nothing:
            nodes = copy_nodes(machine, allowed, home)
            size, why = buffer_bytes(criterion.copy_size_bytes, read_cpus(), machine, nodes)
            if isinstance(nodes, str) or why:
                rates = CopyRates(rank, why=nodes if isinstance(nodes, str) else why)
            else:
                rates = _measured(rank, nodes, size, criterion.copy_repeats, device)
    return list(gathered(rates))


def _with_memory(machine: Numa, allowed: frozenset[int] | None) -> list[int]:
    """Memory without CPUs is left out: a device's, or of another kind than that of sockets."""
    numbers = [n.number for n in machine.nodes if n.memory_bytes and n.cpus != frozenset()]
    return [n for n in numbers if allowed is None or n in allowed]


def nothing_far(machine: Numa, allowed: frozenset[int] | None) -> str:
    """Why a process allowed these NUMA nodes has no memory that is far; "" where it has."""
    found = _with_memory(machine, allowed)
    if len(found) > 1:
        return ""
    few = len(_with_memory(machine, None))
    if few > 1:
        return f"of {few} NUMA nodes with memory this process may use {len(found)}"
    return "this machine has memory on one NUMA node, so none is far"


def copy_nodes(machine: Numa, allowed: frozenset[int] | None, home: int | None) -> CopyNodes | str:
    """Where memory is near to NUMA node `home`, and where it is farthest; or why not known."""
    if home is None:
        return "the NUMA node of its accelerator is not known"
    those = _with_memory(machine, allowed)
    distances = {n: machine.distance(home, n) for n in those}
    known = {n: distance for n, distance in distances.items() if distance is not None}
    if home in those:
        known.setdefault(home, 10)
    if len(known) < 2:
        return f"how far memory is from NUMA node {home} is not known"
    near = min(known, key=lambda n: (known[n], n != home))
    far = max(known, key=lambda n: (known[n], n != near))
    node = machine.node(home)
    if node is None or not node.cpus:
        return f"the CPUs of NUMA node {home} are not known"
    if known[near] == known[far]:
        return f"no memory is farther from NUMA node {home} than other"
    return CopyNodes(near, far, node.cpus)


def buffer_bytes(wanted: int, cpus: Cpus, machine: Numa, found: CopyNodes | str) -> tuple[int, str]:
    """How large a buffer must be to show memory and not cache, and why that is too large here."""
    if isinstance(found, str):
        return wanted, ""
    cache = max((c.size_bytes or 0 for cpu in cpus.cpus for c in cpu.caches), default=0)
    size = max(wanted, _CACHES * cache)
    for number in (found.near, found.far):
        node = machine.node(number)
        if node is not None and node.free_bytes is not None and node.free_bytes < _FREE * size:
            free_mib, need_mib = node.free_bytes >> 20, _FREE * size >> 20
            return size, f"NUMA node {number} has {free_mib} MiB free, and {need_mib} are needed"
    return size, ""


def _measured(
    rank: str, found: CopyNodes, size: int, repeats: int, device: torch.device
) -> CopyRates:
    try:
        with _running_on(found.cpus):
            near_s, far_s = medians_s(found, repeats, lambda n: _pair(n, size), _copy_s)
            device_s: tuple[float, ...] = ()
            if device.type == "cuda":
                device_s = medians_s(
                    found, repeats, lambda n: _pinned(n, size, device), _to_device_s
                )
    except (OSError, MemoryError, RuntimeError) as error:
        return CopyRates(rank, why=f"could not be measured: {error}")
    rates = [size / seconds / 1e9 for seconds in device_s]
    return CopyRates(
        rank,
        near_gbytes_s=size / near_s / 1e9,
        far_gbytes_s=size / far_s / 1e9,
        near_to_device_gbytes_s=rates[0] if rates else None,
        far_to_device_gbytes_s=rates[1] if rates else None,
        where=f"{size >> 20} MiB on NUMA node {found.near}, and on {found.far}",
    )


def medians_s(
    found: CopyNodes,
    repeats: int,
    buffers_on: Callable[[int], AbstractContextManager[Any]],
    copy_s: Callable[[Any], float],
) -> tuple[float, float]:
    """Median seconds of a copy near and far, in turn, so that what disturbs disturbs both."""
    with buffers_on(found.near) as near, buffers_on(found.far) as far:
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


@contextlib.contextmanager
def _pair(number: int, size: int) -> Iterator[Sequence[Any]]:
    with mempolicy.only(number):
        pair = numpy.ones(size, numpy.uint8), numpy.ones(size, numpy.uint8)
    yield pair


def _copy_s(pair: Sequence[Any]) -> float:
    started = time.perf_counter()
    numpy.copyto(pair[1], pair[0])
    return time.perf_counter() - started


@contextlib.contextmanager
def _pinned(
    number: int, size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    with mempolicy.only(number):
        host = torch.ones(size, dtype=torch.uint8)
    # Registered where it is: memory that torch pins itself comes from a pool of unknown place.
    runtime: Any = torch.cuda.cudart
    code = runtime().cudaHostRegister(host.data_ptr(), size, 0)
    if int(code) != 0:
        raise RuntimeError(f"cudaHostRegister: {code}")
    try:
        yield host, torch.empty(size, dtype=torch.uint8, device=device)
    finally:
        # The registration outlives the memory: the next one at its address would fail with
        # cudaErrorHostMemoryAlreadyRegistered, and with it the next call of CUDA.
        runtime().cudaHostUnregister(host.data_ptr())


def _to_device_s(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    host, there = pair
    torch.cuda.synchronize(there.device)
    started = time.perf_counter()
    there.copy_(host)
    torch.cuda.synchronize(there.device)
    return time.perf_counter() - started
