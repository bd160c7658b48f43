"""Placement of a world's ranks: facts read in each rank and judged; the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_mnode.charts import Map
from pytest_mnode.criteria.placement.answering import answer_of
from pytest_mnode.criteria.placement.nics import fabric_nics
from pytest_mnode.criteria.placement.numa_map import numa_map, on_map
from pytest_mnode.criteria.placement.rank_placement import (
    PARTS,
    Question,
    RankPlacement,
    beside_nic,
    over_ranks,
)
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import bytes_by_node, read_process
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.nic_counters import nics_of_this_rank
from pytest_mnode.measuring.ranks import boot_id, gathered
from pytest_mnode.rank import binding
from pytest_mnode.rank.accelerators import accelerator_address
from pytest_mnode.rank.binding import Binding
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised, promised
from pytest_mnode.spec import Spec

_WORKING_SET = 1 << 23
"""float32 values that a rank touches before its memory is read: 32 MiB."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Answers of every rank to one question; the same on every rank.

    bindings: how each rank got its CPUs, in words. map: places of all ranks and devices.
    """

    question: Question
    answers: tuple[Measurement, ...]
    bindings: tuple[str, ...]
    map: Map

    @property
    def over_ranks(self) -> Measurement:
        """One measurement that sums up all ranks."""
        return over_ranks(self.question, self.answers)

    def table(self) -> str:
        """One line per rank: verdict, found and expected values, and binding."""
        return "\n".join(
            f"{answer.verdict or '':<12} {answer.note} | {bound}"
            for answer, bound in zip(self.answers, self.bindings, strict=True)
        )


def placement(question: Question, world: World, device: torch.device, spec: Spec) -> Placed:
    """Answer one question for every rank of the world, after a collective has run. All call this.

    Ends the test as not promised, with the reason, if the spec promises no answer, or if the rack's
    nodes cannot show it.
    """
    promise = promised(spec, question.source.split()[0])
    if question is Question.NIC and len(world.nodes) < 2:
        not_promised("one node alone sends nothing over a NIC")
    mine = binding.of_this_rank()
    # The backend starts its threads and allocates its memory in the first collective.
    working_set = torch.ones(_WORKING_SET, device=device)
    dist.all_reduce(working_set[: 1 << 16])
    nics, why = nics_of_this_rank(world, device) if question is Question.NIC else (None, "")
    machine = Machine.read(Path(mine.shown.sysfs_root), PARTS)
    facts = _facts(world, device, mine, nics, why)
    if facts.accelerator is None and not (mine.shown.emulated or spec.accelerators.per_node):
        patterns = spec.fabric.interfaces
        facts = beside_nic(machine, facts, patterns, world.local_rank, world.local_size)
    del working_set
    machine_id = world.node if mine.shown.emulated else boot_id() or world.node
    known = (facts, _cannot_show(question, machine, mine), machine_id)
    every = gathered(known)
    if reason := next((reason for _, reason, _ in every if reason), ""):
        not_promised(reason)
    here = [replace(f, node=world.node) for f, _, place in every if place == machine_id]
    own = mine.shown.emulated
    answer = answer_of(question, promise, machine, facts, here, spec, only_ranks=own)
    if mine.shown.missing:
        # Inconclusive: the rack promises the answer, and on a larger machine it would be judged.
        note = f"{facts.name}: on the rack {mine.shown.missing}"
        answer = replace(answer, value=None, note=note)
    nics_there = fabric_nics(machine, facts.nics or (), spec)
    on = on_map(machine, facts, world.local_rank, nics_there, answer)
    found, bindings, ranks = zip(*gathered((answer, f"{mine.text}; {_ran()}", on)), strict=True)
    return Placed(question, found, bindings, numa_map(ranks))


def _ran() -> str:
    """CPUs on which the threads of this rank ran last, in words."""
    process = read_process()
    threads = process.threads if process is not None else None
    ran = {thread.last_cpu for thread in threads or () if thread.last_cpu is not None}
    return f"{len(threads or ())} threads ran last on CPUs {format_cpulist(ran) or 'unknown'}"


def _cannot_show(question: Question, machine: Machine, bound: Binding) -> str:
    """Why a node of the rack cannot keep the promise under any binding; "" if it can."""
    if not bound.shown.emulated:
        return ""
    if question is Question.MEMORY and not all(n.memory_bytes for n in machine.numa.nodes):
        return (
            "on the rack: this machine has memory on fewer NUMA nodes than the rack shows sockets"
        )
    if question is Question.CORES and bound.shared_with:
        cpus = sum(len(node.cpus or ()) for node in machine.numa.nodes)
        return f"on the rack: {cpus} CPUs are too few for ranks to have cores of their own"
    return ""


def address_of(world: World, device: torch.device, shown: SysfsView) -> str | None:
    """PCI address of this rank's accelerator, or of the one the rack shows; None without one."""
    if not shown.emulated and device.type != "cuda":
        return None
    local = world.local_rank if device.index is None else device.index
    return accelerator_address(shown, local)


def _facts(
    world: World,
    device: torch.device,
    bound: Binding,
    nics: Sequence[str] | None,
    why: str,
) -> RankPlacement:
    process = read_process()
    memory = None if process is None else process.memory
    if memory is not None:
        inherited = binding.inherited_areas()
        memory = tuple(area for area in memory if area.start not in inherited)
    accelerator = address_of(world, device, bound.shown)
    unknown = {"nics": why} if why else {}
    if accelerator is None:
        unknown["accelerator"] = (
            "ranks compute on CPUs, so they have no accelerator"
            if device.type == "cpu"
            else f"torch has no PCI address of {device}"
        )
    return RankPlacement(
        rank=world.rank,
        node=world.node,
        accelerator=accelerator,
        cpus=None if process is None else process.cpus_allowed,
        threads=None if process is None else process.threads,
        memory_bytes=None if memory is None else bytes_by_node(memory),
        nics=None if nics is None else tuple(nics),
        unknown=unknown,
    )
