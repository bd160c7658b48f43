"""The placement of a rank, the CPUs and NUMA nodes near its accelerator, and the measurements about
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.cpus import Cpus, format_cpulist
from pytest_mnode.machine.fabric_nics import fabric_nics, nic_of_rank
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.numa import Numa
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict, at_most, equals
from pytest_mnode.spec.devices import Near

PARTS = ("interfaces", "rdma", "pci", "cpus", "numa")
"""The parts of a machine that placement is judged on."""


class Question(Enum):
    """A question about placement: key, unit, source, and the measurement's name over all ranks."""

    CPUS = (
        *("cpus", "CPUs out of place", "numa.cpus near"),
        "ranks that may run off their accelerator's CPUs",
    )
    MEMORY = (
        *("memory", "of its memory", "numa.memory_near_fraction"),
        "memory near the accelerator, of the rank with least",
    )
    NIC = (
        *("nic", "NICs farther than the nearest", "numa.nic nearest"),
        "ranks that send over a NIC that is not the nearest",
    )
    CORES = (
        *("cores", "ranks on the same cores", "numa.cores own"),
        "ranks that share a core with another",
    )

    def __init__(self, key: str, unit: str, source: str, over_ranks: str) -> None:
        self.key, self.unit, self.source, self.over_ranks = key, unit, source, over_ranks


_NAMED = 4
_IN_PLACE = {
    Question.CPUS: "ranks beside their accelerators",
    Question.NIC: "ranks over their nearest NIC",
    Question.CORES: "ranks on cores of their own",
    Question.MEMORY: "ranks with their memory beside them",
}
"""Right ranks in words; the first question that is promised answers for the criterion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Placement of a rank, as the rank itself reads it while it works.

    accelerator: PCI address of its device; None if it has none or the address is not known.
    numa_node: of an accelerator without a PCI address, or of another device that the rank should be
    near; anchor: that device, in words. cpus: CPUs that its process may run on.
    threads: of its process; None or empty if not listed. memory_bytes: its own memory by NUMA node.
    nics: interfaces or RDMA devices (with or without port) that it sends over.
    unknown: why a field is None, by the field's name.
    """

    rank: int
    node: str
    accelerator: str | None = None
    numa_node: int | None = None
    anchor: str = "its accelerator"
    cpus: frozenset[int] | None = None
    threads: tuple[Thread, ...] | None = None
    memory_bytes: Mapping[int, int] | None = None
    nics: tuple[str, ...] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Text such as "rank 3 on node1"."""
        return f"rank {self.rank} on {self.node}"

    def answer(
        self,
        question: Question,
        value: float | None,
        *,
        found: str,
        expected: str,
        why: str,
        blamed: str,
        bound: Bound | None = None,
    ) -> Measurement:
        """The measurement that answers one question for this rank.

        found, expected: in words. why: the placement found, the one expected, and the remedy.
        blamed: the part of the placement that is wrong, such as "CPU binding".
        """
        return Measurement(
            name=question.key,
            value=value,
            unit=question.unit,
            expected=bound or at_most(0),
            source=question.source,
            culprit=Culprit(f"{self.name}: {blamed} ({found}; expected {expected})", self.node),
            note=f"{self.name}: {why}",
            where=self.name,
        )


def over_ranks(question: Question, answers: Sequence[Measurement]) -> Measurement:
    """One measurement for all ranks; inconclusive if a rank is inconclusive and none fails.

    The value is the number of ranks that fail; for memory, the lowest fraction of a rank.
    """
    wrong = [one for one in answers if one.verdict is Verdict.FAIL]
    unknown = [one for one in answers if one.verdict is Verdict.INCONCLUSIVE]
    culprits = [one.culprit for one in wrong if one.culprit]
    more = [f"and {len(wrong) - _NAMED} more ranks"] if len(wrong) > _NAMED else []
    note = "; ".join(one.note for one in (wrong or unknown)[:_NAMED])
    if question is Question.MEMORY:
        unit, bound = answers[0].unit, answers[0].expected
        value = min((one.value for one in answers if one.value is not None), default=None)
    else:
        unit, bound, value = "", equals(0), len(wrong)
        note = note or f"{len(answers)} ranks, each as expected"
    return Measurement(
        question.over_ranks,
        value if wrong or not unknown else None,
        unit,
        bound,
        question.source,
        Culprit.merged("; ".join([*culprits[:_NAMED], *more]), culprits) if culprits else None,
        note,
        headline=HeadlineMark(
            after=_IN_PLACE[question],
            of=len(answers),
            right=sum(one.passed for one in answers),
            order=list(_IN_PLACE).index(question),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """CPUs and memory near an accelerator.

    place: the accelerator, in words. numa_node: its own NUMA node, which may have no CPUs.
    """

    place: str
    numa_node: int
    cpus: frozenset[int]
    memory_nodes: frozenset[int]

    @property
    def cpus_text(self) -> str:
        """Text such as "CPUs 0-31, local to 0000:17:00.0 on NUMA node 0"."""
        return f"CPUs {format_cpulist(self.cpus)}, local to {self.place}"


def near_nodes(numa: Numa, cpus: Cpus, number: int, within: Near) -> frozenset[int]:
    """NUMA nodes with CPUs that `within` counts as near to node `number`; empty if not known.

    Of a node without CPUs (a GPU's memory) the nearest nodes with CPUs. A socket whose CPUs are not
    known is the node alone.
    """
    own = numa.nearest(number, lambda node: bool(node.cpus))
    found = frozenset(node.number for node in own)
    if within == "node":
        return found
    if within == "socket":
        here = frozenset[int]().union(*(node.cpus or () for node in own))
        sockets = [of for of in cpus.packages.values() if not of.isdisjoint(here)]
        return found | numa.nodes_of(cpu for of in sockets for cpu in of)
    far = {node.number: numa.distance(number, node.number) for node in numa.with_cpus}
    return found | {n for n, d in far.items() if d is not None and d <= within.distance}


def near(machine: Machine, rank: RankPlacement, within: Near) -> Locality | str:
    """CPUs and memory near a rank's accelerator; a str says why they are not known.

    If the accelerator's NUMA node has no CPUs or no memory, the nearest NUMA node that has some
    counts, by the firmware's distances. within: how far a NUMA node may be to count too.
    """
    number, cpus, what = rank.numa_node, None, rank.anchor
    if rank.accelerator is not None:
        what = rank.accelerator
        function = machine.pci.function(rank.accelerator)
        if function is None and number is None:
            return f"{what} is not among the PCI devices of {rank.node}"
        if function is not None and function.numa_node is not None:
            number, cpus = function.numa_node, function.local_cpus
        elif function is not None and number is None:
            return (
                f"the kernel does not know the NUMA node of {what} (numa_node is −1 or unreadable)"
            )
    if number is None:
        return rank.unknown.get("accelerator") or "it is not known which accelerator the rank has"
    node = machine.numa.node(number)
    if node is None:
        return f"{what} is on NUMA node {number}, which {rank.node} does not show"
    online = machine.cpus.online
    # Without better knowledge, firmware lists all CPUs of the machine as local to a device.
    both = bool(cpus and node.cpus)
    around = near_nodes(machine.numa, machine.cpus, number, within)
    if not cpus or (cpus & (node.cpus or cpus) and within != "node"):
        cpus = frozenset().union(*(n.cpus or () for n in machine.numa.nodes if n.number in around))
    elif node.cpus:
        cpus &= node.cpus
    if online is not None:
        cpus &= online
    if not cpus:
        return f"the CPUs of NUMA node {number} are not known" + ", or others are local" * both
    # A process does not keep its memory on a NUMA node that is a device's own memory.
    nearest = machine.numa.nearest
    memory = nearest(number, lambda other: other.memory_bytes != 0 and bool(other.cpus))
    memory = memory or nearest(number, lambda other: other.memory_bytes != 0)
    around |= {number, *(other.number for other in memory)}
    bare = {n.number for n in machine.numa.nodes if n.cpus == frozenset()}
    beside = {n for n in bare if _attached_to(machine, n) in around}
    return Locality(
        place=f"{what} on NUMA node {number}",
        numa_node=number,
        cpus=cpus,
        # A NUMA node that is the device's own memory is near too.
        memory_nodes=frozenset(around | beside),
    )


def beside_nic(
    machine: Machine,
    rank: RankPlacement,
    patterns: Sequence[str],
    local_rank: int,
    local_size: int,
) -> RankPlacement:
    """`rank`, which has no accelerator, with the NUMA node of a fabric NIC as its anchor.

    patterns: names and patterns of the fabric's interfaces. Of several NICs, the rank gets
    the one on the NUMA node where it runs; else the `local_size` ranks get them in order.
    """
    nics = fabric_nics(patterns, machine.interfaces or (), machine.rdma or ())
    runs_on = machine.numa.nodes_of(rank.cpus or ())
    at = min(runs_on) if len(runs_on) == 1 else None
    nic = nic_of_rank(nics, local_rank, local_size, at)
    if nic is not None and nic.numa_node is not None:
        return replace(rank, numa_node=nic.numa_node, anchor=f"its NIC {nic.name}")
    why = f"it has no accelerator, and {rank.node} shows no NIC of the fabric"
    if nic is not None:
        why = (
            "it has no accelerator, and the kernel does not know the NUMA node of its NIC"
            f" {nic.name} (numa_node is −1 or unreadable)"
        )
    return replace(rank, unknown={**rank.unknown, "accelerator": why})


def _attached_to(machine: Machine, number: int) -> int | None:
    """The NUMA node with CPUs nearest to one without CPUs; None if not known or not unique.

    Pages of a process move to such memory (a GPU's, on its own NUMA node) when the GPU uses them.
    """
    far = {n.number: machine.numa.distance(number, n.number) for n in machine.numa.with_cpus}
    known = {n: distance for n, distance in far.items() if distance is not None}
    least = min(known.values(), default=None)
    nearest = [n for n, distance in known.items() if distance == least]
    return nearest[0] if len(nearest) == 1 and len(known) == len(far) else None
