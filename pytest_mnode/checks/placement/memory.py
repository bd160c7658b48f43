"""The memory of each rank: beside its accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from pytest_mnode.checks.placement_check import Here, PlacementCheck
from pytest_mnode.criteria.placement.near import Home, RankReading, near
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import RankRows, Row, row
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Bound, Measurement, at_least
from pytest_mnode.spec.fields import Fraction

_MEMORY = "memory on NUMA node"
_MIB = 1 << 20


@check("numa.memory_near_fraction")
class MemoryIsBesideTheAccelerator(PlacementCheck):
    """Is the memory of every rank beside its accelerator?

    Judged is the fraction of a rank's own pages (heap, stacks, anonymous) that is near. Files and
    shared memory do not count: they lie near the process that touched them first.
    """

    promise: Annotated[Fraction, Field(le=1)]
    """At least this part of a rank's own memory is near its accelerator."""
    counted, unit = "memory near the accelerator, of the rank with least", "of its memory"
    in_place, order = "ranks with their memory beside them", 3

    @property
    def bound(self) -> Bound:
        return at_least(self.promise).of("criteria.numa.memory_near_fraction", self.promise)

    def total(self, answers: Sequence[Measurement], wrong: int) -> float | None:  # noqa: ARG002
        return min((one.value for one in answers if one.value is not None), default=None)

    def rows(self, here: RankReading) -> Iterator[Row]:
        yield from here.home.to_rows()
        memory, unread = here.memory_bytes or {}, "its numa_maps could not be read"
        if not any(memory.values()):
            yield row(
                _MEMORY, why=unread if here.memory_bytes is None else "it has no private page"
            )
        for number, size in memory.items():
            yield row(_MEMORY, size, "B", device=str(number))

    def cannot_show(self, here: RankReading) -> str:
        if all(node.memory_bytes for node in here.machine.numa.nodes):
            return ""
        return "this machine has memory on fewer NUMA nodes than the rack shows sockets"

    def judge_rank(self, rank: RankRows, here: Here) -> Measurement:
        machine, expected = here.machine, ""

        def unknown(reason: str) -> Measurement:
            why = f"its memory placement cannot be judged: {reason}"
            return self.answer(rank, None, "; expected ".join(filter(None, [why, expected])))

        local = near(machine, Home.from_rows(rank), self.spec.criteria.numa.near)
        if isinstance(local, str):
            return unknown(local)
        nodes = local.memory_nodes
        expected = (
            f"at least {self.promise:.0%} on NUMA node{'s' * (len(nodes) > 1)}"
            f" {format_cpulist(nodes)}, near {local.place}"
        )
        near_nodes = (machine.numa.node(number) for number in nodes)
        if not any(node is not None and node.memory_bytes != 0 for node in near_nodes):
            return unknown("it is not known which NUMA node with memory is nearest")
        if why := rank.why(_MEMORY):
            return unknown(why)
        memory = {int(node): size for node, size in rank.by_device(_MEMORY).items()}
        share = sum(memory[node] for node in nodes & memory.keys()) / sum(memory.values())
        found = ", ".join(
            f"{size / _MIB:.1f} MiB on NUMA node {node}" for node, size in sorted(memory.items())
        )
        why = f"{share:.1%} of its memory is near: {found}; expected {expected}"
        if share < self.promise:
            why += (
                f"; bind its memory before it starts, such as numactl --membind={local.numa_node}:"
                " a process that binds itself does not move its existing pages"
            )
        return self.answer(rank, share, why, found, expected, "memory binding")
