"""Rows of the copy rates of memory near a rank's accelerator, and of memory far from it."""

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

from pytest_mnode.criteria.placement.near import BUFFERS, COPIES, COPY_RATIO, near_nodes
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.machine.cpus import Cpus, read_cpus
from pytest_mnode.machine.numa import Numa, read_numa
from pytest_mnode.machine.process import read_process
from pytest_mnode.measuring.numa import address_of
from pytest_mnode.measuring.ranks import barrier, gathered
from pytest_mnode.rank import binding, mempolicy
from pytest_mnode.rank.accelerators import home_of
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised
from pytest_mnode.spec.devices import Near, NumaCriterion

_CACHES = 2
"""A buffer is at least this many times the largest cache, so that memory is measured."""
_WantsMore = Callable[[Sequence[float]], bool]
"""Whether ratios of repeats, near over far, leave the promise open."""
_MORE = 4
"""Multiple of the promised repeats that are made at most while the promise is undecided."""
_FREE = 8
"""A buffer takes at most 1/8 of a NUMA node's free memory."""


@dataclass(frozen=True, slots=True)
class CopyNodes:
    """NUMA nodes to copy on, and the CPUs that do both copies: those near the accelerator."""

    near: int
    far: int
    cpus: frozenset[int]


def near_and_far(
    world: World, device: torch.device, criterion: NumaCriterion, undecided: _WantsMore
) -> list[Row]:
    """Rates of this rank, measured one rank per node at a time.

    All ranks call this. Ends the test as not promised if no node has memory that is far.
    """
    bound = binding.of_this_rank()
    home = home_of(bound.shown, address_of(world, device, bound.shown))
    process = read_process()
    allowed = process.mems_allowed if process else None
    machine = read_numa()
    cpus = read_cpus()
    nothing = nothing_far(machine, allowed, cpus, criterion.near)
    everywhere = gathered(nothing)
    if all(everywhere):
        not_promised(f"no far memory to measure: {everywhere[0]}")
    found = [_not_copied(nothing)]
    for turn in range(world.local_size):
        barrier(device)
        if turn == world.local_rank and not nothing:
            nodes = copy_nodes(machine, allowed, home)
            size, why = buffer_bytes(criterion.copy_size_bytes, cpus, machine, nodes)
            if isinstance(nodes, str) or why:
                found = [_not_copied(nodes if isinstance(nodes, str) else why)]
            else:
                found = _measured(nodes, size, criterion.copy_repeats, device, undecided)
    return found


def _not_copied(why: str) -> Row:
    return row(COPIES[0], why=why)


def _with_memory(machine: Numa, allowed: frozenset[int] | None) -> list[int]:
    """NUMA nodes with memory and CPUs: memory without CPUs is a device's, or of another kind."""
    numbers = [n.number for n in machine.nodes if n.memory_bytes and n.cpus != frozenset()]
    return [n for n in numbers if allowed is None or n in allowed]


def nothing_far(
    machine: Numa, allowed: frozenset[int] | None, cpus: Cpus, within: Near = "socket"
) -> str:
    """Why a process allowed these NUMA nodes has no memory that is far; "" if it has."""
    found = _with_memory(machine, allowed)
    if any(not near_nodes(machine, cpus, number, within).issuperset(found) for number in found):
        return ""
    if len(found) > 1:
        return "all memory that this process may use counts as near (criteria.numa.near)"
    few = len(_with_memory(machine, None))
    if few > 1:
        return f"this process may use {len(found)} of {few} NUMA nodes with memory"
    return "this machine has memory on one NUMA node, so none is far"


def copy_nodes(machine: Numa, allowed: frozenset[int] | None, home: int | None) -> CopyNodes | str:
    """The NUMA nodes nearest to and farthest from NUMA node `home`; or why they are unknown."""
    if home is None:
        return "the NUMA node of this rank's accelerator is unknown"
    those = _with_memory(machine, allowed)
    distances = {n: machine.distance(home, n) for n in those}
    known = {n: distance for n, distance in distances.items() if distance is not None}
    if home in those:
        known.setdefault(home, 10)
    if len(known) < 2:
        return f"the distance of memory from NUMA node {home} is unknown"
    near = min(known, key=lambda n: (known[n], n != home))
    far = max(known, key=lambda n: (known[n], n != near))
    node = machine.node(home)
    if node is None or not node.cpus:
        return f"the CPUs of NUMA node {home} are unknown"
    if known[near] == known[far]:
        return f"all memory is equally far from NUMA node {home}"
    return CopyNodes(near, far, node.cpus)


def buffer_bytes(wanted: int, cpus: Cpus, machine: Numa, found: CopyNodes | str) -> tuple[int, str]:
    """Bytes of a buffer that measures memory and not a cache; and why it does not fit, or ""."""
    if isinstance(found, str):
        return wanted, ""
    cache = max((cpu.cache_bytes or 0 for cpu in cpus.cpus), default=0)
    size = max(wanted, _CACHES * cache)
    for number in (found.near, found.far):
        node = machine.node(number)
        if node is not None and node.free_bytes is not None and node.free_bytes < _FREE * size:
            free_mib, need_mib = node.free_bytes >> 20, _FREE * size >> 20
            room = f"NUMA node {number} has {free_mib} MiB free"
            return size, f"{room}, but {need_mib} MiB are needed"
    return size, ""


def _measured(
    found: CopyNodes,
    size: int,
    repeats: int,
    device: torch.device,
    wants_more: _WantsMore | None = None,
) -> list[Row]:
    """Rows of the rates: bytes copied (not bytes moved) in GB/s; from pinned memory to the device
    only if there is one."""
    try:
        with running_on(found.cpus):
            near_s, far_s = times_s(found, repeats, lambda n: _pair(n, size), _copy_s, wants_more)
            device_s: tuple[Sequence[float], ...] = ()
            if device.type == "cuda":
                device_s = times_s(found, repeats, lambda n: _pinned(n, size, device), _to_device_s)
    except (OSError, MemoryError, RuntimeError) as error:
        return [_not_copied(f"could not be measured: {error}")]
    each_s = (near_s, far_s, *device_s)
    ratios = enumerate(_ratios(near_s, far_s))
    return [
        *(row(of, size / median(s) / 1e9, "GB/s") for of, s in zip(COPIES, each_s, strict=False)),
        row(BUFFERS, f"{size >> 20} MiB on NUMA node {found.near}, and on {found.far}"),
        *(row(COPY_RATIO, ratio, repeat=number) for number, ratio in ratios),
    ]


def _ratios(near_s: Sequence[float], far_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(far / near for near, far in zip(near_s, far_s, strict=True))


def times_s(
    found: CopyNodes,
    repeats: int,
    buffers_on: Callable[[int], AbstractContextManager[Any]],
    copy_s: Callable[[Any], float],
    wants_more: _WantsMore | None = None,
) -> tuple[list[float], list[float]]:
    """Seconds of near and of far copies, made in turn so that noise disturbs both.

    wants_more: whether the ratios so far leave the promise undecided; then more follow, up to
    `_MORE` times `repeats`.
    """
    with buffers_on(found.near) as near, buffers_on(found.far) as far:
        copy_s(near), copy_s(far)  # the first copies include page faults
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(_MORE * repeats):
            if number >= repeats and not (wants_more and wants_more(_ratios(*times))):
                break
            times[0].append(copy_s(near))
            times[1].append(copy_s(far))
    return times


@contextlib.contextmanager
def running_on(cpus: frozenset[int]) -> Iterator[None]:
    """Run this thread on these CPUs meanwhile, whatever the rank is bound to."""
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
    # Memory that torch pins itself comes from a pool on an unknown NUMA node.
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
