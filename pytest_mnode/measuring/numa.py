"""Where the very ranks of this world are placed: facts read in each, judged, the same on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_mnode.agent.accelerators import accelerator_address
from pytest_mnode.criteria.placement.facts import (
    Finding,
    Machine,
    Question,
    RankFacts,
    placed,
    read_machine,
)
from pytest_mnode.criteria.placement.judge import Promise, judge
from pytest_mnode.criteria.placement.nics import judge_nics
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.process import read_process
from pytest_mnode.machine.sysfs import SysfsView
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.carriers import nics_of_this_rank
from pytest_mnode.measuring.nearest import fabric_nics, near_somebody, sending
from pytest_mnode.rank import binding
from pytest_mnode.rank.binding import Binding
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec.devices import NumaCriterion

_WORKING_SET = 1 << 23
"""float32 values that a rank touches before its memory is looked at: 32 MiB."""
_NAMED = 4
_NAMES = {
    Question.CPUS: "ranks that may run off their accelerator's CPUs",
    Question.MEMORY: "memory near the accelerator, of the rank with least",
    Question.NIC: "ranks that send over a NIC that is not the nearest",
    Question.CORES: "ranks that share a core with another",
}
_SOURCES = {
    Question.CPUS: "numa.cpus near",
    Question.MEMORY: "numa.memory_near_fraction",
    Question.NIC: "numa.nic nearest",
    Question.CORES: "numa.cores own",
}


@dataclass(frozen=True, slots=True)
class Placed:
    """One question, answered for every rank; the same on all of them.

    bindings: how each rank came to its CPUs, in words.
    """

    question: Question
    findings: tuple[Finding, ...]
    bindings: tuple[str, ...]

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """Findings with this verdict."""
        return tuple(f for f in self.findings if f.verdict is verdict)

    def record(self, measure: Measure) -> None:
        """One measurement over all ranks. A rank that could not be judged leaves it open."""
        wrong, open_ = self.of(Verdict.FAIL), self.of(Verdict.INCONCLUSIVE)
        named = wrong or open_
        culprit = "; ".join(map(_blamed, wrong[:_NAMED])) or None
        if culprit and len(wrong) > _NAMED:
            culprit += f"; and {len(wrong) - _NAMED} more ranks"
        note = "; ".join(f.why for f in named[:_NAMED])
        if self.question is Question.MEMORY:
            shares = [f.value for f in self.findings if f.value is not None]
            value = min(shares, default=None) if wrong or not open_ else None
            measure(
                _NAMES[self.question],
                value,
                self.findings[0].unit,
                at_least=self.findings[0].limit,
                source=_SOURCES[self.question],
                culprit=culprit,
                note=note,
            )
            return
        measure(
            _NAMES[self.question],
            len(wrong) if wrong or not open_ else None,
            "",
            equals=0,
            source=_SOURCES[self.question],
            culprit=culprit,
            note=note or f"{len(self.findings)} ranks, each as expected",
        )

    def table(self) -> str:
        """A line a rank: what was found, what was expected, how it got there."""
        lines = [f"{'rank':>4} {'node':<10} {'verdict':<12} found | expected | binding"]
        for finding, bound in zip(self.findings, self.bindings, strict=True):
            lines.append(
                f"{finding.rank:>4} {finding.node:<10} {finding.verdict.value:<12} "
                f"{finding.found} | {finding.expected} | {bound}"
            )
        return "\n".join(lines)


def _blamed(finding: Finding) -> str:
    return f"{finding.culprit} ({finding.found}; expected {finding.expected})"


def placement(question: Question, world: World, device: torch.device, spec: Spec) -> Placed:
    """Put one question to every rank of the world, after a collective has run. All call this.

    Ends the test as not promised where the spec does not promise the answer, or where the rack's
    nodes cannot show what the question is about, with the reason.
    """
    promise = _promise(question, spec.criteria.numa)
    if promise is None:
        not_promised(_SOURCES[question])
    if question is Question.NIC and len(world.nodes) < 2:
        not_promised("one node sends nothing over a NIC")
    mine = binding.of_this_rank()
    # The threads of the backend, and memory of its own, are there only once it has worked.
    working_set = torch.ones(_WORKING_SET, device=device)
    dist.all_reduce(working_set[: 1 << 16])
    nics, why = nics_of_this_rank(world, device) if question is Question.NIC else (None, "")
    facts = _facts(world, device, mine, nics, why)
    machine = read_machine(Path(mine.shown.sysfs_root))
    del working_set
    machine_id = world.node if mine.shown.emulated else boot_id() or world.node
    told = (facts, mine, _cannot_show(question, machine, mine), machine_id)
    every: list[tuple[RankFacts, Binding, str, str]] = [told] * world.size
    dist.all_gather_object(every, told)
    if reason := next((reason for _, _, reason, _ in every if reason), ""):
        not_promised(reason)
    here = [replace(f, node=world.node) for f, _, _, place in every if place == machine_id]
    answer = _answer(promise, machine, facts, here, spec)
    if mine.shown.missing:
        # Not left open: the rack promises it, and on a larger machine would be judged on it.
        why = f"{facts.name}: on the rack {mine.shown.missing}"
        answer = replace(answer, verdict=Verdict.INCONCLUSIVE, value=None, why=why)
    told_of_all: list[tuple[Finding, str]] = [(answer, "")] * world.size
    dist.all_gather_object(told_of_all, (answer, f"{mine.text}; {_ran()}"))
    findings, bindings = zip(*told_of_all, strict=True)
    return Placed(question, findings, bindings)


def _ran() -> str:
    """Where the threads of this rank ran last, in words."""
    process = read_process()
    threads = process.threads if process is not None else None
    ran = {thread.last_cpu for thread in threads or () if thread.last_cpu is not None}
    return f"{len(threads or ())} threads ran last on CPUs {format_cpulist(ran) or 'not known'}"


def _promise(question: Question, criterion: NumaCriterion | None) -> Promise | None:
    if criterion is None:
        return None
    match question:
        case Question.CPUS:
            return Promise(cpus_near=True) if criterion.cpus else None
        case Question.MEMORY:
            least = criterion.memory_near_fraction
            return None if least is None else Promise(memory_near_fraction=least)
        case Question.NIC:
            return Promise(nic_nearest=True) if criterion.nic else None
        case Question.CORES:
            return Promise(own_cores=True) if criterion.cores else None


def _cannot_show(question: Question, machine: Machine, bound: Binding) -> str:
    """Why a node of the rack cannot keep the promise, whoever binds; "" where it can."""
    if not bound.shown.emulated:
        return ""
    if question is Question.MEMORY and not all(n.memory_bytes for n in machine.numa.nodes):
        return "on the rack: this machine has memory on fewer NUMA nodes than sockets are shown"
    if question is Question.CORES and bound.shared_with:
        cpus = sum(len(node.cpus or ()) for node in machine.numa.nodes)
        return f"on the rack: {cpus} CPUs are too few for ranks to have cores of their own"
    return ""


def _answer(
    promise: Promise, machine: Machine, facts: RankFacts, here: Sequence[RankFacts], spec: Spec
) -> Finding:
    """This rank's finding; `here` are all ranks of its node."""
    if not promise.nic_nearest:
        findings = judge({facts.node: machine}, here, promise)
        return next(f for f in findings if f.rank == facts.rank)
    if facts.nics is not None:
        facts = replace(facts, nics=sending(machine, facts.nics, spec))
    found = judge_nics(machine, facts, fabric_nics(machine, facts.nics or (), spec))
    beside = [f.accelerator for f in here]
    if not binding.of_this_rank().shown.emulated:
        beside += [f.address for f in machine.pci.accelerators]
    return near_somebody(machine, found, facts.nics or (), beside)


def boot_id() -> str:
    """What tells running kernels apart: nodes of the local launcher are one machine."""
    return sysfs.text(Path("/proc/sys/kernel/random/boot_id")) or ""


def address_of(world: World, device: torch.device, shown: SysfsView) -> str | None:
    """PCI address of this rank's accelerator, or of the rack's place for it; None for neither."""
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
) -> RankFacts:
    process = read_process()
    if process is not None and process.memory is not None:
        inherited = binding.inherited_areas()
        own = tuple(area for area in process.memory if area.start not in inherited)
        process = replace(process, memory=own)
    threads, memory = placed(process) if process is not None else (None, None)
    accelerator = address_of(world, device, bound.shown)
    unknown = {"nics": why} if why else {}
    if accelerator is None:
        unknown["accelerator"] = (
            "ranks compute on CPUs, so there is no accelerator to be near to"
            if device.type == "cpu"
            else f"torch does not tell where {device} is"
        )
    return RankFacts(
        rank=world.rank,
        node=world.node,
        local_rank=world.local_rank,
        accelerator=accelerator,
        cpus=None if process is None else process.cpus_allowed,
        threads=threads,
        memory_bytes=memory,
        nics=None if nics is None else tuple(nics),
        unknown=unknown,
    )
