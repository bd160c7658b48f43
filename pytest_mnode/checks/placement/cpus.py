"""The CPUs of each rank: beside its accelerator, and on cores that no other rank may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pytest_mnode.checks.placement_check import Here, PlacementCheck
from pytest_mnode.criteria.placement.near import (
    CPUS,
    THREADS,
    Home,
    Locality,
    RankReading,
    all_cpus,
    near,
    stray_threads,
)
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import RankRows, Row, of_rank, row
from pytest_mnode.machine.cpus import format_cpulist, parse_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement

_CORES, _SIBLINGS = "CPUs of its cores", "siblings of its CPUs"


@check("numa.cpus")
class RanksRunBesideTheirAccelerator(PlacementCheck):
    """Does every thread of every rank run only on CPUs beside the rank's accelerator?

    Judged is the number of CPUs allowed to a rank's process or threads that are not near. Offline
    CPUs do not count: an affinity may name them. Where all CPUs are near, as on a machine of one
    socket, any binding passes, as long as the accelerator's NUMA node is known.
    """

    promise: Literal["near"]
    """Each thread of a rank may run only on CPUs near the rank's accelerator."""
    counted = "ranks that may run off their accelerator's CPUs"
    in_place, order = "ranks beside their accelerators", 0
    has_map = True

    def rows(self, here: RankReading) -> Iterator[Row]:
        yield from here.home.to_rows()
        yield from here.cpu_rows

    def judge_rank(self, rank: RankRows, here: Here) -> Measurement:
        home, cpus, machine = Home.from_rows(rank), parse_cpulist(rank.value(CPUS)), here.machine
        found = f"CPUs {format_cpulist(cpus)}" if cpus else "not known"
        local = near(machine, home, self.spec.criteria.numa.near)
        if isinstance(local, str):
            why = f"it is not known which CPUs are local to {home.device}: {local}"
            return self.answer(rank, None, why)
        expected = f"expected {local.cpus_text}"
        if not cpus:
            return self.answer(rank, None, f"{rank.why(CPUS)}; {expected}")
        strays = [(name, its) for name, its in stray_threads(rank) if its - local.cpus]
        out = cpus.union(*(its for _, its in strays)) - local.cpus
        why = _how_bound(machine, cpus, local)
        if not out:
            unread = rank.value(THREADS) is None
            remarks = rank.why(THREADS) if unread else _remarks(machine, cpus, local)
            words = "; ".join(filter(None, [why, expected, remarks]))
            return self.answer(rank, None if unread else 0, words)
        if cpus <= local.cpus:
            named = (f"{who} may run on CPUs {format_cpulist(its)}" for who, its in strays)
            why += f", but {'; '.join(named)}"
        node = local.numa_node
        why += (
            f"; {expected}; bind it before it starts, such as numactl --cpunodebind={node}"
            f" --membind={node}, torchrun --numa-binding or srun --cpu-bind"
        )
        return self.answer(rank, len(out), why, found, local.cpus_text, "CPU binding")


@check("numa.cores")
class RanksHaveCoresOfTheirOwn(PlacementCheck):
    """Does every rank of a node have cores that no other rank may use?

    The threads of a process count with it, and hardware threads of one core count as that core.
    """

    promise: Literal["own"]
    """No two ranks of a node may run on the same core."""
    counted = "ranks that share a core with another"
    in_place, order = "ranks on cores of their own", 2

    def rows(self, here: RankReading) -> Iterator[Row]:
        found = [*here.cpu_rows]
        yield from found
        [rank] = RankRows.each(of_rank(found, 0, ""))
        if cpus := all_cpus(rank):
            known, cores = here.machine.cpus.cpus, here.machine.cpus.cores(cpus)
            yield row(_CORES, format_cpulist(frozenset().union(*cores)))
            if not cpus <= {one.number for one in known if one.siblings}:
                yield row(_SIBLINGS, why="it is not known which CPUs share a core")

    def cannot_show(self, here: RankReading) -> str:
        cpus = sum(len(node.cpus or ()) for node in here.machine.numa.nodes)
        few = f"{cpus} CPUs are too few for ranks to have cores of their own"
        return few if here.shared else ""

    def judge_rank(self, rank: RankRows, here: Here) -> Measurement:
        own, cores = all_cpus(rank), parse_cpulist(rank.value(_CORES))
        if own is None or cores is None:
            return self.answer(rank, None, rank.why(CPUS))
        found = f"CPUs {format_cpulist(own)}"
        others = [one for one in here.ranks if one is not rank]
        shared = {
            other.rank: common
            for other in others
            if (common := cores & (parse_cpulist(other.value(_CORES)) or frozenset()))
        }
        if shared:
            named = (f"rank {n} (CPUs {format_cpulist(cpus)})" for n, cpus in shared.items())
            why = (
                f"may run on {found}, shares cores with {', '.join(named)}; give each rank of a"
                " node its own CPUs, and split no core between ranks"
            )
            expected = f"cores that no other rank on {rank.node} may use"
            return self.answer(rank, len(shared), why, found, expected, "CPU binding")
        unread = [one.rank for one in (rank, *others) if one.value(THREADS) is None]
        if unknown := [other.rank for other in others if all_cpus(other) is None]:
            why = f"the CPUs of rank {format_cpulist(unknown)} beside it are not known"
        elif others and unread:
            why = f"the affinity of threads of rank {format_cpulist(unread)} could not be read"
        else:
            why = rank.why(_SIBLINGS) if others else ""
        what = why or ("shares no core" if others else "is alone on its node")
        return self.answer(rank, None if why else 0, f"may run on {found}, {what}")


def _how_bound(machine: Machine, cpus: frozenset[int], local: Locality) -> str:
    named = f"CPUs {format_cpulist(cpus)}"
    every = (machine.cpus.online or frozenset()) - (machine.cpus.isolated or frozenset())
    if every and cpus >= every and len(machine.numa.with_cpus) > 1:
        return f"is not bound: it may run on all {named}"
    nodes = machine.numa.nodes_of(cpus)
    on = f"NUMA node{'s' * (len(nodes) > 1)} {format_cpulist(nodes)}" if nodes else "no known node"
    if cpus - local.cpus and cpus & local.cpus:
        return f"may run on {named}, which span {on}"
    return f"is bound to {named} on {on}"


def _remarks(machine: Machine, cpus: frozenset[int], local: Locality) -> str:
    remarks = []
    isolated = cpus & (machine.cpus.isolated or frozenset())
    if len(isolated) > 1:
        remarks.append(
            f"CPUs {format_cpulist(isolated)} are isolated: the kernel does not spread threads"
            " over them"
        )
    if len(machine.numa.with_cpus) == 1:
        remarks.append("the machine shows one NUMA node, so there is nothing to place")
    elif machine.cpus.online and machine.cpus.online <= local.cpus:
        remarks.append("all CPUs count as near (criteria.numa.near), so there is nothing to place")
    return "; ".join(remarks)
