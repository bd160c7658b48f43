"""The placement of a rank, as it reads it after a collective."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from pytest_mnode.criteria.placement.near import PARTS, Home, RankReading
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import Process, bytes_by_node, read_process
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.measuring.nic_counters import nics_of_this_rank
from pytest_mnode.measuring.ranks import boot_id
from pytest_mnode.rank import binding
from pytest_mnode.rank.accelerators import accelerator_address
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec

_WORKING_SET = 1 << 23
"""float32 values that a rank touches before its memory is read: 32 MiB."""


def read_placement(
    world: World,
    device: torch.device,
    spec: Spec,
    *,
    sends: bool,
) -> RankReading:
    """What this rank reads of itself after a collective. All ranks call this.

    sends: whether to find out over which NICs it sends.
    """
    bound = binding.of_this_rank()
    shown = bound.shown
    # The backend starts its threads and allocates its memory in the first collective.
    working_set = torch.ones(_WORKING_SET, device=device)
    dist.all_reduce(working_set[: 1 << 16])
    nics, why = nics_of_this_rank(world, device) if sends else (None, "")
    machine = Machine.read(Path(shown.sysfs_root), PARTS)
    address = address_of(world, device, shown)
    process = read_process() or Process(
        cpus_allowed=None, mems_allowed=None, threads=None, memory=None
    )
    del working_set
    inherited, threads = binding.inherited_areas(), process.threads or ()
    memory = [area for area in process.memory or () if area.start not in inherited]
    ran = {one.last_cpu for one in threads if one.last_cpu is not None}
    return RankReading(
        machine=machine,
        accelerator=address,
        other=None if address else _other(world, device, spec, machine, process.cpus_allowed),
        beside=(
            tuple(accelerator_address(shown, other) for other in range(world.local_size))
            if shown.emulated
            else (address, *(one.address for one in machine.pci.accelerators))
        ),
        cpus=process.cpus_allowed,
        threads=threads,
        memory_bytes=None if process.memory is None else bytes_by_node(memory),
        nics=nics,
        no_nics=why,
        machine_id=world.node if shown.emulated else boot_id() or world.node,
        bound=f"{bound.text}; {len(threads)} threads ran last on CPUs {format_cpulist(ran) or '?'}",
        emulated=shown.emulated,
        shared=bool(bound.shared_with),
        # Inconclusive: the rack promises the answer, and a larger machine would show it.
        not_shown=shown.missing and f"on the rack {shown.missing}",
    )


def address_of(world: World, device: torch.device, shown: SysfsView) -> str | None:
    """PCI address of this rank's accelerator, or of the one the rack shows; None without one."""
    if not shown.emulated and device.type != "cuda":
        return None
    local = world.local_rank if device.index is None else device.index
    return accelerator_address(shown, local)


def _other(
    world: World, device: torch.device, spec: Spec, machine: Machine, cpus: frozenset[int] | None
) -> Home:
    """Beside what a rank should be of which no accelerator is known."""
    if not spec.accelerators.per_node:
        patterns = spec.fabric.interfaces
        return Home.nic(machine, patterns, world.local_rank, world.local_size, cpus)
    if device.type == "cpu":
        return Home(why="ranks compute on CPUs, so they have no accelerator")
    return Home(why=f"torch has no PCI address of {device}")
