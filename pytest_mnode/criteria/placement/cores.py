"""Does every rank of a node have cores of its own?"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_mnode.criteria.placement.affinity import online
from pytest_mnode.criteria.placement.facts import Finding, Machine, Question, RankFacts
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Verdict


def judge_cores(machine: Machine, rank: RankFacts, ranks: Iterable[RankFacts]) -> Finding:
    """No other rank of the node may run on a core that this one may run on.

    Threads of the process count with it, and CPUs that are threads of one core are that core.
    """
    others = [other for other in ranks if other.node == rank.node and other.rank != rank.rank]
    own = _cpus(machine, rank)
    if own is None:
        return _finding(rank, Verdict.INCONCLUSIVE, None, "its CPU affinity could not be read")
    shared: dict[int, frozenset[int]] = {}
    unknown = [other.rank for other in others if _cpus(machine, other) is None]
    silent = [r.rank for r in (rank, *others) if not r.threads or None in _of_threads(r)]
    mine = machine.cpus.cores(own)
    for other in others:
        common = mine & machine.cpus.cores(_cpus(machine, other) or ())
        if common:
            shared[other.rank] = frozenset().union(*common)
    if shared:
        told = ", ".join(
            f"rank {number} (CPUs {format_cpulist(cpus)})" for number, cpus in shared.items()
        )
        return _finding(rank, Verdict.FAIL, own, f"shares cores with {told}", len(shared))
    if unknown:
        told = f"the CPUs of rank {format_cpulist(unknown)} beside it are not known"
        return _finding(rank, Verdict.INCONCLUSIVE, own, told)
    if others and silent:
        told = f"the affinity of threads of rank {format_cpulist(silent)} could not be read"
        return _finding(rank, Verdict.INCONCLUSIVE, own, told)
    if others and not _siblings_told(machine, own):
        told = "which CPUs share a core is not known"
        return _finding(rank, Verdict.INCONCLUSIVE, own, told)
    told = "shares no core" if others else "is alone on its node"
    return _finding(rank, Verdict.PASS, own, told)


def _cpus(machine: Machine, rank: RankFacts) -> frozenset[int] | None:
    cpus = online(machine, rank.cpus)
    if not cpus:
        return None
    for thread in rank.threads or ():
        cpus |= online(machine, thread.cpus) or frozenset()
    return cpus


def _of_threads(rank: RankFacts) -> list[frozenset[int] | None]:
    return [thread.cpus for thread in rank.threads or ()]


def _siblings_told(machine: Machine, cpus: frozenset[int]) -> bool:
    told = {cpu.number for cpu in machine.cpus.cpus if cpu.siblings}
    return cpus <= told


def _finding(
    rank: RankFacts, verdict: Verdict, cpus: frozenset[int] | None, told: str, sharing: int = 0
) -> Finding:
    found = "not known" if cpus is None else f"CPUs {format_cpulist(cpus)}"
    why = f"{rank.name}: may run on {found}, {told}" if cpus else f"{rank.name}: {told}"
    if verdict is Verdict.FAIL:
        why += "; give each rank of a node CPUs of its own, no core split between two of them"
    return Finding(
        question=Question.CORES,
        rank=rank.rank,
        node=rank.node,
        verdict=verdict,
        value=None if verdict is Verdict.INCONCLUSIVE else float(sharing),
        limit=0.0,
        unit="ranks on the same cores",
        found=found,
        expected=f"cores that no other rank on {rank.node} may use",
        why=why,
        culprit=f"{rank.name}: CPU binding",
    )
