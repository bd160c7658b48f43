"""Binds ranks to the CPUs and the memory near their accelerator, before any thread exists.

A process forked later inherits the binding, but a thread started earlier would not, so each rank
binds itself right after the fork. The binding depends on the node:

- a node of the rack binds each of its ranks to its own cores, as a scheduler would have done;
- elsewhere ranks are bound likewise, unless torch binds them by its own default or nobody should
  (`none`), so that the binding of a launcher or scheduler is judged. `node` and `exclusive` have
  the meaning of torchrun's --numa-binding, and torch applies them if it can (CUDA devices, one per
  rank).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.fabric_nics import nic_of_rank, read_fabric_nics
from pytest_mnode.machine.numa import numa_cores, read_numa
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.protocol.messages import BindingOrder
from pytest_mnode.rank import mempolicy
from pytest_mnode.rank.accelerators import homes_of

Core = tuple[int, ...]
"""CPUs that are hardware threads of one core."""


@dataclass(frozen=True, slots=True)
class Binding:
    """How this rank was bound.

    by: "pytest-mnode", "torch", or "" if it was not bound, with the reason in `why`.
    usable: CPUs that the rank was allowed to use. cpus: CPUs that it may use now. numa_node: its
    accelerator's. shared_with: local ranks that got the same CPUs because there are too few.
    """

    by: str
    usable: tuple[int, ...]
    cpus: tuple[int, ...]
    shown: SysfsView
    numa_node: int | None = None
    shared_with: tuple[int, ...] = ()
    why: str = ""

    @property
    def text(self) -> str:
        """A text such as "CPUs 0-3 of NUMA node 0, bound by pytest-mnode"."""
        where = "" if self.numa_node is None else f" of NUMA node {self.numa_node}"
        shared = ", ".join(map(str, self.shared_with))
        return "".join(
            (
                f"CPUs {format_cpulist(self.cpus)}{where}, ",
                f"bound by {self.by}" if self.by else f"not bound: {self.why}",
                f", shared with local rank {shared}" if shared else "",
            )
        )


_current: Binding | None = None
_inherited: frozenset[int] = frozenset()


def inherited_areas() -> frozenset[int]:
    """Start addresses of the memory areas that this rank inherited through the fork.

    They are shared with the process that imported torch, and lie on that process's NUMA node. Empty
    on a machine with one NUMA node, where they do not matter.
    """
    return _inherited


def of_this_rank() -> Binding:
    """The binding of this process. Raises RuntimeError outside of ranks."""
    if _current is None:
        raise RuntimeError("this process is not a rank and has no binding")
    return _current


def bind(order: BindingOrder, local_rank: int, local_size: int, by_torch: bool) -> Binding:
    """Bind this process, which must be a rank without threads, and keep the binding."""
    global _current, _inherited  # noqa: PLW0603  one process, one rank
    now = tuple(sorted(os.sched_getaffinity(0)))
    if len(memories()) > 1:
        _inherited = frozenset(_areas())
    if by_torch:
        _current = Binding("torch", now, now, order.shown)
    elif why := _why_not(order):
        _current = Binding("", now, now, order.shown, why=why)
    else:
        _current = _bind(order, local_rank, local_size, now)
    return _current


def _why_not(order: BindingOrder) -> str:
    if order.mode == "none":
        return "--mnode-numa-bind=none"
    if order.mode == "auto" and not order.shown.emulated and order.start.cpus is None:
        return order.shown.missing
    return ""


def _bind(
    order: BindingOrder, local_rank: int, local_size: int, usable: tuple[int, ...]
) -> Binding:
    root = Path(order.shown.sysfs_root)
    numa = read_numa(root)
    cores = {memory.number: memory.cores for memory in numa_cores(root, usable)}
    what, homes = "accelerator", homes_of(order.shown, local_size)
    if order.nics and not any(home is not None for home in homes):
        nics = read_fabric_nics(order.nics)
        ours = [nic_of_rank(nics, rank, local_size) for rank in range(local_size)]
        what, homes = "NIC", [None if nic is None else nic.numa_node for nic in ours]
    # The memory of a GPU may be a NUMA node of its own, without CPUs.
    homes = [
        next((n.number for n in numa.nearest(home, lambda n: bool(n.cpus))), home)
        if home is not None
        else None
        for home in homes
    ]
    if order.start.cpus is None:
        share = shares(homes, cores, exclusive=order.mode != "node", what=what)[local_rank]
    else:
        share = _given(order.start.cpus[local_rank % len(order.start.cpus)], cores)
    if share.cpus:
        os.sched_setaffinity(0, share.cpus)
        if share.numa_node in memories() and len(memories()) > 1:
            mempolicy.prefer(share.numa_node)
    return Binding(
        "pytest-mnode" if share.cpus else "",
        usable,
        share.cpus or usable,
        order.shown,
        homes[local_rank],
        share.shared_with,
        share.why,
    )


def _given(cpus: tuple[int, ...], cores: Mapping[int, tuple[Core, ...]]) -> Share:
    """The share of a rank that its launcher binds."""
    if not cpus:
        return Share((), None, why="the launcher binds no ranks on this node")
    numa_nodes = [number for number, of in cores.items() for core in of if cpus[0] in core]
    return Share(cpus, numa_nodes[0] if numa_nodes else None)


@functools.cache
def memories() -> frozenset[int]:
    """NUMA nodes of this machine that have memory; read once, before ranks are forked."""
    return frozenset(node.number for node in read_numa().nodes if node.memory_bytes)


def _areas() -> Iterator[int]:
    with Path("/proc/self/maps").open(encoding="ascii", errors="replace") as file:
        for line in file:
            yield int(line.partition("-")[0], 16)


@dataclass(frozen=True, slots=True)
class Share:
    """The CPUs of one rank. If empty, the rank is not bound, for the reason `why`.

    numa_node: its accelerator's; None if not known.
    shared_with: local ranks that get the same CPUs because there are too few.
    """

    cpus: tuple[int, ...]
    numa_node: int | None
    shared_with: tuple[int, ...] = ()
    why: str = ""


def shares(
    homes: Sequence[int | None],
    cores: Mapping[int, Sequence[Core]],
    exclusive: bool,
    what: str = "accelerator",
) -> list[Share]:
    """The share of each local rank.

    homes: NUMA node of each rank's `what`. cores: the usable cores of each NUMA node. exclusive:
    ranks with the same NUMA node divide its cores; otherwise each gets all of them. what: the
    device that ranks are bound near.
    """
    every = []
    for rank, home in enumerate(homes):
        near = cores.get(home, ()) if home is not None else ()
        if home is None:
            every.append(Share((), None, why=f"the NUMA node of its {what} is not known"))
        elif not near:
            why = f"this rank may use no CPU of NUMA node {home}, where its {what} is"
            every.append(Share((), home, why=why))
        else:
            beside = [other for other, node in enumerate(homes) if node == home]
            mine = _part(near, beside.index(rank), len(beside)) if exclusive else near
            with_me = [
                other
                for number, other in enumerate(beside)
                if other != rank and exclusive and set(_part(near, number, len(beside))) & set(mine)
            ]
            every.append(
                Share(tuple(sorted(cpu for core in mine for cpu in core)), home, tuple(with_me))
            )
    return every


def _part(cores: Sequence[Core], number: int, of: int) -> Sequence[Core]:
    """Part `number` of cores divided among `of` ranks; if there are too few, one core in turn."""
    if len(cores) < of:
        return [cores[number % len(cores)]]
    length, left = divmod(len(cores), of)
    start = number * length + min(number, left)
    return cores[start : start + length + (number < left)]
