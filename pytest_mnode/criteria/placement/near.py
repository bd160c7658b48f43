"""CPUs and memory near a device, what a rank reads of itself, and the rows of both. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.evidence.row import RankRows, Row, row
from pytest_mnode.machine.cpus import Cpu, Cpus, format_cpulist, parse_cpulist
from pytest_mnode.machine.fabric_nics import fabric_nics, named_ports, nic_of_rank
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.numa import Numa, NumaNode
from pytest_mnode.machine.process import Thread
from pytest_mnode.spec import Spec
from pytest_mnode.spec.devices import Near

PARTS = ("interfaces", "rdma", "pci", "cpus", "numa")
"""The parts of a machine that placement is judged on."""
CPUS, THREADS, USED = "CPUs", "threads", "distance of NIC that it sends over"
COPIES = ("copy near", "copy far", "copy to device from near", "copy to device from far")
COPY_RATIO, BUFFERS = "copy near over far", "buffers"
_STRAY = "CPUs of threads"
_MOST_NAMED = 4
"""Limit on the names of a rank's stray threads; a process can have hundreds, and a cluster 8,192
processes."""
NO_CPUS = "its CPU affinity could not be read"
_HOME, _LOCAL = "NUMA node of its device", "CPUs local to its device"
_ONLINE, _ISOLATED, _SOCKET = "CPUs online", "CPUs isolated", "CPUs of socket"
_CPUS, _MEMORY, _FAR = (f"{what} of NUMA node" for what in ("CPUs", "memory", "distances"))


@dataclass(frozen=True, slots=True)
class Home:
    """The device beside which a rank should run: its accelerator, or a NIC.

    device: PCI address or name, or in words. cpus: those that the kernel lists as local to it.
    why: why its NUMA node is not known.
    """

    device: str = "its accelerator"
    numa_node: int | None = None
    cpus: frozenset[int] | None = None
    why: str = ""

    @classmethod
    def accelerator(
        cls, machine: Machine, address: str | None, numa_node: int | None = None
    ) -> Home:
        """An accelerator by its PCI address. numa_node: of one that PCI does not show."""
        unknown = "it is not known which accelerator the rank has" if numa_node is None else ""
        if address is None:
            return cls(numa_node=numa_node, why=unknown)
        function = machine.pci.function(address)
        if function is not None and function.numa_node is not None:
            return cls(address, function.numa_node, function.local_cpus)
        if numa_node is None:
            unknown = (
                f"{address} is not among the PCI devices of its node"
                if function is None
                else f"the kernel does not know the NUMA node of {address} (numa_node is −1 or"
                " unreadable)"
            )
        return cls(address, numa_node, why=unknown)

    @classmethod
    def nic(
        cls,
        machine: Machine,
        patterns: Sequence[str],
        local_rank: int,
        local_size: int,
        cpus: frozenset[int] | None,
    ) -> Home:
        """A NIC of the fabric, for a rank without an accelerator.

        patterns: names and patterns of the fabric's interfaces. Of several NICs, the rank gets the
        one on the NUMA node where it runs (on `cpus`); else the ranks get them in order.
        """
        nics = fabric_nics(patterns, machine.interfaces or (), machine.rdma or ())
        runs_on = machine.numa.nodes_of(cpus or ())
        at = min(runs_on) if len(runs_on) == 1 else None
        nic = nic_of_rank(nics, local_rank, local_size, at)
        if nic is None:
            return cls(why="it has no accelerator, and its node shows no NIC of the fabric")
        if nic.numa_node is not None:
            return cls(nic.name, nic.numa_node)
        why = (
            "it has no accelerator, and the kernel does not know the NUMA node of its NIC"
            f" {nic.name} (numa_node is −1 or unreadable)"
        )
        return cls(nic.name, why=why)

    def to_rows(self) -> Iterator[Row]:
        """Rows of a rank that should be beside it."""
        yield row(_HOME, self.numa_node, device=self.device, why=self.why)
        if self.cpus is not None:
            yield row(_LOCAL, format_cpulist(self.cpus), device=self.device)

    @classmethod
    def from_rows(cls, rank: RankRows) -> Home:
        """The inverse of `to_rows`; not known of a rank without such rows."""
        device = next(iter(rank.by_device(_HOME)), "its accelerator")
        return cls(device, rank.value(_HOME), parse_cpulist(rank.value(_LOCAL)), rank.why(_HOME))


def machine_to_rows(machine: Machine) -> Iterator[Row]:
    """CPUs, sockets and NUMA nodes of a machine: what says how far they are from each other."""
    for metric, cpus in ((_ONLINE, machine.cpus.online), (_ISOLATED, machine.cpus.isolated)):
        yield row(metric, cpus if cpus is None else format_cpulist(cpus))
    for package, cpus in machine.cpus.packages.items():
        yield row(_SOCKET, format_cpulist(cpus), device=str(package))
    for node in machine.numa.nodes:
        at = {"device": str(node.number)}
        yield row(_CPUS, node.cpus if node.cpus is None else format_cpulist(node.cpus), **at)
        yield row(_MEMORY, node.memory_bytes, "B", **at)
        if node.distances:
            far = (node.distances.get(other.number, 0) for other in machine.numa.nodes)
            yield row(_FAR, " ".join(map(str, far)), **at)


def machine_from_rows(rank: RankRows) -> Machine:
    """The inverse of `machine_to_rows`: these parts of a machine, of the rank that read them."""
    memory, far = rank.by_device(_MEMORY), rank.by_device(_FAR)

    def distances(name: str) -> dict[int, int]:
        found = zip(map(int, memory), map(int, far.get(name, "").split()), strict=False)
        return {other: distance for other, distance in found if distance}

    return Machine(
        cpus=Cpus(
            online=parse_cpulist(rank.value(_ONLINE)),
            isolated=parse_cpulist(rank.value(_ISOLATED)),
            cpus=tuple(
                Cpu(number=number, package=int(package), siblings=None)
                for package, numbers in rank.by_device(_SOCKET).items()
                for number in parse_cpulist(numbers) or ()
            ),
        ),
        numa=Numa(
            nodes=tuple(
                NumaNode(
                    number=int(name),
                    cpus=parse_cpulist(numbers),
                    distances=distances(name),
                    memory_bytes=memory[name],
                )
                for name, numbers in rank.by_device(_CPUS).items()
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """CPUs and memory near a device.

    place: the device, in words. numa_node: its own NUMA node, which may have no CPUs.
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

    Of a node without CPUs (a GPU's memory) the nearest nodes with CPUs; one whose CPUs could not be
    read may have some. A socket whose CPUs are not known is the node alone.
    """
    own = numa.nearest(number, lambda node: node.cpus != frozenset())
    found = frozenset(node.number for node in own)
    if within == "node":
        return found
    if within == "socket":
        here = frozenset[int]().union(*(node.cpus or () for node in own))
        sockets = [of for of in cpus.packages.values() if not of.isdisjoint(here)]
        return found | numa.nodes_of(cpu for of in sockets for cpu in of)
    far = {node.number: numa.distance(number, node.number) for node in numa.with_cpus}
    return found | {n for n, d in far.items() if d is not None and d <= within.distance}


def near(machine: Machine, home: Home, within: Near) -> Locality | str:
    """CPUs and memory near a device; a str says why they are not known.

    If the device's NUMA node has no CPUs or no memory, the nearest NUMA node that has some counts,
    by the firmware's distances. within: how far a NUMA node may be to count too.
    """
    number, cpus = home.numa_node, home.cpus
    if number is None:
        return home.why or f"the NUMA node of {home.device} is not known"
    node = machine.numa.node(number)
    if node is None:
        return f"{home.device} is on NUMA node {number}, which its node does not show"
    online = machine.cpus.online
    # Without better knowledge, firmware lists all CPUs of the machine as local to a device.
    both = bool(cpus and node.cpus)
    around = near_nodes(machine.numa, machine.cpus, number, within)
    if not cpus or (cpus & (node.cpus or cpus) and within != "node"):
        there = [n.cpus for n in machine.numa.nodes if n.number in around]
        known = [those for those in there if those is not None]
        cpus = frozenset().union(*known) if known == there else frozenset()
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
        place=f"{home.device} on NUMA node {number}",
        numa_node=number,
        cpus=cpus,
        # A NUMA node that is the device's own memory is near too.
        memory_nodes=frozenset(around | beside),
    )


def _attached_to(machine: Machine, number: int) -> int | None:
    """The NUMA node with CPUs nearest to one without CPUs; None if not known or not unique.

    Pages of a process move to such memory (a GPU's, on its own NUMA node) when the GPU uses them.
    """
    far = {n.number: machine.numa.distance(number, n.number) for n in machine.numa.with_cpus}
    known = {n: distance for n, distance in far.items() if distance is not None}
    least = min(known.values(), default=None)
    nearest = [n for n, distance in known.items() if distance == least]
    return nearest[0] if len(nearest) == 1 and len(known) == len(far) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """Placement of a rank, as the rank itself reads it while it works, on its machine.

    accelerator: PCI address of its device; None if it has none or the address is not known. other:
    the device beside which it should be then. beside: accelerators of its node. cpus: CPUs that its
    process may run on. threads: of its process; empty if not listed. memory_bytes: its own memory
    by NUMA node. nics: interfaces or RDMA devices (with or without port) that it sends over; None
    if not known, with the reason in `no_nics`. machine_id: of the machine, which several nodes may
    share. bound: how it got its CPUs, in words; shared: whether others got the same. emulated:
    whether the rack shows its sockets; not_shown: why it cannot, "" if it can.
    """

    machine: Machine
    accelerator: str | None = None
    other: Home | None = None
    beside: tuple[str | None, ...] = ()
    cpus: frozenset[int] | None = None
    threads: tuple[Thread, ...] = ()
    memory_bytes: Mapping[int, int] | None = None
    nics: tuple[str, ...] | None = None
    no_nics: str = ""
    machine_id: str = ""
    bound: str = ""
    emulated: bool = False
    shared: bool = False
    not_shown: str = ""

    @property
    def home(self) -> Home:
        """The device beside which it should be."""
        return self.other or Home.accelerator(self.machine, self.accelerator)

    def online(self, cpus: frozenset[int] | None) -> frozenset[int]:
        """The online CPUs among these: an affinity may name others too."""
        online = self.machine.cpus.online
        return (cpus or frozenset()) & (cpus or frozenset() if online is None else online)

    @property
    def cpu_rows(self) -> Iterator[Row]:
        """The CPUs of its process, and of threads that may run on others, by their names."""
        cpus, threads = self.online(self.cpus), self.threads
        yield row(CPUS, format_cpulist(cpus)) if cpus else row(CPUS, why=NO_CPUS)
        if threads and all(one.cpus_allowed is not None for one in threads):
            yield row(THREADS, len(threads))
        else:
            yield row(THREADS, why="the affinity of its threads could not be read")
        strays = dict[str, list[frozenset[int]]]()
        for one in threads:
            if cpus and not (its := self.online(one.cpus_allowed)) <= cpus:
                strays.setdefault(one.name or "?", []).append(its)
        words = (
            f"{f'{len(of)} threads' if len(of) > 1 else 'thread'} {n}" for n, of in strays.items()
        )
        named = [*zip(words, strays.values(), strict=True)]
        if others := [its for _, of in named[_MOST_NAMED:] for its in of]:
            named[_MOST_NAMED:] = [(f"{len(others)} other threads", others)]
        for who, of in named:
            yield row(_STRAY, format_cpulist(frozenset().union(*of)), device=who)


def stray_threads(rank: RankRows) -> list[tuple[str, frozenset[int]]]:
    """Threads of a rank that may run on CPUs that its process may not, in words: and their CPUs."""
    return [(one.device, parse_cpulist(str(one.value)) or frozenset()) for one in rank.of(_STRAY)]


def all_cpus(rank: RankRows) -> frozenset[int] | None:
    """The CPUs of a rank's process and of all its threads; None if not known."""
    cpus = parse_cpulist(rank.value(CPUS))
    return cpus and cpus.union(*(its for _, its in stray_threads(rank)))


def candidate_nics(machine: Machine, used: Sequence[str], spec: Spec) -> tuple[str, ...]:
    """Fabric NICs that are not known to be down: RDMA ports if `used` has some, or is empty and
    RDMA is promised; else interfaces."""
    fabric = spec.fabric
    if any(":" in name for name in used) or (not used and fabric.protocol is not None):
        named = named_ports(fabric.interfaces, machine.rdma or ())
        fit = (port for port in named if port.may_carry(fabric.protocol))
        return tuple(port.name for port in fit if port.active is not False)
    interfaces = machine.interfaces or ()
    return tuple(i.name for i in interfaces if fabric.has_interface(i.name) and i.up is not False)
