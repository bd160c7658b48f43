"""The CPU sockets that each node of a rack shows, made of this machine's CPUs, as values.

On a machine with one socket no placement can be wrong. So every node shows a board of several
sockets: CPUs, memory, a slot for each accelerator and both network links, each on one socket. CPU
numbers are this machine's own, so that ranks can be bound to them. A socket beyond this machine's
own NUMA nodes has no memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.errors import UsageError
from pytest_mnode.machine.numa import NumaCores

MOST_SOCKETS = 8
_OWN_CORES = 2
"""Nodes get cores of their own if each gets at least this many of every socket."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sockets of the devices on the board of node 0; sockets are numbered from 0. Node i has every
    device i sockets further, so that nodes use different CPUs of this machine.

    accelerators: the socket of each accelerator's slot; local rank i uses slot i, and further ranks
        start again with slot 0.
    """

    sockets: int = 2
    accelerators: tuple[int, ...] = (0, 1)
    fabric: int = 0
    management: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.sockets <= MOST_SOCKETS:
            raise UsageError(f"rack: {self.sockets} sockets: needs 1 to {MOST_SOCKETS}")
        places = {
            **{f"accelerator {i}": socket for i, socket in enumerate(self.accelerators)},
            "fabric": self.fabric,
            "management": self.management,
        }
        for what, socket in places.items():
            if not 0 <= socket < self.sockets:
                raise UsageError(f"rack: {what} on socket {socket}: there are {self.sockets}")


@dataclass(frozen=True, slots=True)
class Socket:
    """One socket of a board, which is one NUMA node. size_bytes is 0 if it has no memory."""

    number: int
    cpus: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Board:
    """The board that one node shows: its sockets, and the index of each device's socket."""

    sockets: tuple[Socket, ...]
    accelerators: tuple[int, ...]
    fabric: int
    management: int


def why_not(machine: Sequence[NumaCores], layout: Layout) -> str | None:
    """Why this machine cannot show so many sockets, in one line; None if it can."""
    cpus = sum(len(core) for memory in machine for core in memory.cores)
    if cpus >= layout.sockets:
        return None
    return f"{layout.sockets} sockets need as many CPUs, but this process may use {cpus}"


def board(machine: Sequence[NumaCores], layout: Layout, node: int, nodes: int) -> Board:
    """The board of node `node` of `nodes`; only for machines for which `why_not` is None.

    Sockets are this machine's own NUMA nodes if enough of them have usable CPUs; else its CPUs are
    distributed. Nodes get cores of their own if there are enough; else each shows all.
    """

    def turned(socket: int) -> int:
        return (socket + node) % layout.sockets

    return Board(
        tuple(
            Socket(memory.number, _own(memory.cores, node, nodes), memory.size_bytes)
            for memory in _as_sockets(machine, layout.sockets)
        ),
        tuple(turned(socket) for socket in layout.accelerators),
        turned(layout.fabric),
        turned(layout.management),
    )


def _as_sockets(machine: Sequence[NumaCores], sockets: int) -> list[NumaCores]:
    real = [memory for memory in machine if memory.cores]
    if len(real) >= sockets:
        return real[:sockets]
    cores = [core for memory in real for core in memory.cores]
    if len(cores) < sockets:
        cores = [(cpu,) for core in cores for cpu in core]
    taken = {memory.number for memory in real}
    # A socket with a NUMA node's number has that node's memory; other sockets have none.
    numbers = [memory.number for memory in real]
    numbers += [n for n in range(2 * MOST_SOCKETS) if n not in taken][: sockets - len(numbers)]
    sizes = {memory.number: memory.size_bytes for memory in real}
    return [
        NumaCores(number, sizes.get(number, 0), share)
        for number, share in zip(sorted(numbers), _shares(cores, sockets), strict=True)
    ]


def _shares(cores: Sequence[tuple[int, ...]], count: int) -> list[tuple[tuple[int, ...], ...]]:
    """`cores` in `count` runs of equal length; leftover cores go to the first runs, one to each."""
    length, left = divmod(len(cores), count)
    starts = [share * length + min(share, left) for share in range(count + 1)]
    return [tuple(cores[a:b]) for a, b in itertools.pairwise(starts)]


def _own(cores: Sequence[tuple[int, ...]], node: int, nodes: int) -> tuple[int, ...]:
    if len(cores) // nodes >= _OWN_CORES:
        cores = _shares(cores, nodes)[node]
    return tuple(sorted(cpu for core in cores for cpu in core))
