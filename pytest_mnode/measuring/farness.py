"""Where memory is near and where it is far, and how much of it shows the difference. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.machine.cpus import Cpus
from pytest_mnode.machine.numa import Numa

_CACHES = 2
"""How many times the largest cache a buffer must be, so that it is memory that is measured."""
_FREE = 8
"""Of a NUMA node's free memory, at most one in so many parts is taken for a buffer."""


@dataclass(frozen=True, slots=True)
class Places:
    """NUMA nodes to copy on, and CPUs to copy by: those near the accelerator, for both."""

    near: int
    far: int
    cpus: frozenset[int]


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


def places(machine: Numa, allowed: frozenset[int] | None, home: int | None) -> Places | str:
    """Where memory is near to NUMA node `home`, and where it is farthest; or why not known."""
    if home is None:
        return "the NUMA node of its accelerator is not known"
    those = _with_memory(machine, allowed)
    distances = {n: machine.distance(home, n) for n in those}
    told = {n: distance for n, distance in distances.items() if distance is not None}
    if home in those:
        told.setdefault(home, 10)
    if len(told) < 2:
        return f"how far memory is from NUMA node {home} is not known"
    near = min(told, key=lambda n: (told[n], n != home))
    far = max(told, key=lambda n: (told[n], n != near))
    cpus = machine.node(home) and machine.node(home).cpus  # type: ignore[union-attr]
    if told[near] == told[far] or not cpus:
        return (
            f"no memory is farther from NUMA node {home} than other"
            if cpus
            else (f"the CPUs of NUMA node {home} are not known")
        )
    return Places(near, far, cpus)


def buffer_bytes(wanted: int, cpus: Cpus, machine: Numa, found: Places | str) -> tuple[int, str]:
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
