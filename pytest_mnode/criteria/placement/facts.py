"""What placement is judged on: a machine, its ranks, and the findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pytest_mnode.machine.cpus import Cpus, read_cpus
from pytest_mnode.machine.netdev import Interface, read_interfaces
from pytest_mnode.machine.numa import Numa, read_numa
from pytest_mnode.machine.pci import PciTree, read_pci
from pytest_mnode.machine.process import Process, bytes_by_node
from pytest_mnode.machine.rdma import RdmaDevice, read_rdma
from pytest_mnode.measurement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node's hardware. interfaces, rdma: None where they could not be listed."""

    cpus: Cpus
    numa: Numa
    pci: PciTree
    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[RdmaDevice, ...] | None = None


def read_machine(root: Path = Path("/")) -> Machine:
    """All that placement needs of the machine below `root`/sys."""
    return Machine(
        cpus=read_cpus(root),
        numa=read_numa(root),
        pci=read_pci(root),
        interfaces=read_interfaces(root),
        rdma=read_rdma(root),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFacts:
    """One thread of a rank's process, by the name that the kernel shows of it."""

    tid: int
    name: str | None
    cpus: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What a rank tells of itself, read in the rank while it works.

    accelerator: PCI address of its device; None where it has none or does not know. numa_node: of
    an accelerator that has no PCI address, such as one that the rack only plays. cpus: those that
    its process may run on. threads: all of its process; None or empty where not
    listed. memory_bytes: its own memory by NUMA node; None where it could not be read. nics:
    interfaces or RDMA devices (with or without port) that it sends over; None where not known.
    unknown: why something is None, by the field's name.
    """

    rank: int
    node: str
    local_rank: int
    accelerator: str | None = None
    numa_node: int | None = None
    cpus: frozenset[int] | None = None
    threads: tuple[ThreadFacts, ...] | None = None
    memory_bytes: Mapping[int, int] | None = None
    nics: tuple[str, ...] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as "rank 3 on node1"."""
        return f"rank {self.rank} on {self.node}"


def placed(process: Process) -> tuple[tuple[ThreadFacts, ...] | None, Mapping[int, int] | None]:
    """Threads and own memory of a process, as `RankFacts` takes them."""
    threads = process.threads
    return (
        None
        if threads is None
        else tuple(ThreadFacts(tid=t.tid, name=t.name, cpus=t.cpus_allowed) for t in threads),
        None if process.memory is None else bytes_by_node(process.memory),
    )


class Question(StrEnum):
    """What is asked of a rank's placement."""

    CPUS = "cpus"
    MEMORY = "memory"
    NIC = "nic"
    CORES = "cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question for one rank.

    value, limit: numbers to measure by, in `unit`: CPUs out of place (at most 0), the share of
    memory that is near (at least the promise), NICs that are not nearest (at most 0), ranks that
    share a core (at most 0); value is None where inconclusive. found, expected: the same in words.
    why: one sentence with the rank, what was found, what was expected, and the remedy. culprit: to
    blame where the promise is broken.
    """

    question: Question
    rank: int
    node: str
    verdict: Verdict
    value: float | None
    limit: float
    unit: str
    found: str
    expected: str
    why: str
    culprit: str
