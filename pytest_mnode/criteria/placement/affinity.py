"""May a rank's process, and each of its threads, run only on CPUs local to its accelerator?"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.criteria.placement.facts import Finding, Machine, Question, RankFacts, ThreadFacts
from pytest_mnode.criteria.placement.near import Near, near
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Verdict

_MOST_NAMED = 4
"""Groups of stray threads that are named; a process can have hundreds."""


def judge_cpus(machine: Machine, rank: RankFacts) -> Finding:
    """Subset of the local CPUs: pass. Unbound, spanning nodes or elsewhere, or a thread so: fail.

    CPUs that are offline do not count: an affinity may name them. On a machine that shows one NUMA
    node the promise is kept by whatever binding, as long as the accelerator is known to be on it.
    """
    around = near(machine, rank)
    if isinstance(around, str):
        told = f"not known which CPUs are local to its accelerator: {around}"
        return _finding(rank, Verdict.INCONCLUSIVE, cpus=rank.cpus, told=told)
    cpus = online(machine, rank.cpus)
    if not cpus:
        told = rank.unknown.get("cpus") or "its CPU affinity could not be read"
        return _finding(rank, Verdict.INCONCLUSIVE, around=around, told=told)
    strays = [t for t in rank.threads or () if (online(machine, t.cpus) or cpus) - around.cpus]
    out = cpus.union(*(online(machine, t.cpus) or cpus for t in strays)) - around.cpus
    if out:
        told = _how(machine, cpus, around)
        if not cpus - around.cpus:
            told += f", but {_named(machine, strays)}"
        return _finding(rank, Verdict.FAIL, around=around, cpus=cpus, told=told, out=out)
    told = _how(machine, cpus, around)
    if not rank.threads or any(t.cpus is None for t in rank.threads):
        note = rank.unknown.get("threads") or "the affinity of its threads could not be read"
        verdict = Verdict.INCONCLUSIVE
        return _finding(rank, verdict, around=around, cpus=cpus, told=told, note=note)
    note = _note(machine, cpus)
    return _finding(rank, Verdict.PASS, around=around, cpus=cpus, told=told, note=note)


def online(machine: Machine, cpus: frozenset[int] | None) -> frozenset[int] | None:
    """Those of the CPUs that are online; all where it is not known which are."""
    if cpus is None or machine.cpus.online is None:
        return cpus
    return cpus & machine.cpus.online


def is_unbound(machine: Machine, cpus: frozenset[int]) -> bool:
    """Whether these are all CPUs of a machine of several nodes, but for isolated ones."""
    every = (machine.cpus.online or frozenset()) - (machine.cpus.isolated or frozenset())
    return bool(every) and cpus >= every and len(machine.numa.with_cpus) > 1


def _how(machine: Machine, cpus: frozenset[int], around: Near) -> str:
    listed = f"CPUs {format_cpulist(cpus)}"
    if is_unbound(machine, cpus):
        return f"is not bound: it may run on all {listed}"
    nodes = machine.numa.nodes_of(cpus)
    on = f"NUMA node{'s' * (len(nodes) > 1)} {format_cpulist(nodes)}" if nodes else "no known node"
    if cpus - around.cpus and cpus & around.cpus:
        return f"may run on {listed}, which span {on}"
    return f"is bound to {listed} on {on}"


def _named(machine: Machine, strays: Sequence[ThreadFacts]) -> str:
    groups: dict[tuple[str, frozenset[int] | None], list[int]] = {}
    for thread in strays:
        groups.setdefault((thread.name or "?", online(machine, thread.cpus)), []).append(thread.tid)
    named = [
        f"thread {name} ({', '.join(map(str, tids[:3]))}{', …' * (len(tids) > 3)}) may run on"
        f" CPUs {format_cpulist(cpus or ())}"
        for (name, cpus), tids in list(groups.items())[:_MOST_NAMED]
    ]
    more = len(groups) - _MOST_NAMED
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def _note(machine: Machine, cpus: frozenset[int]) -> str:
    notes = []
    isolated = cpus & (machine.cpus.isolated or frozenset())
    if len(isolated) > 1:
        notes.append(
            f"CPUs {format_cpulist(isolated)} are isolated: the kernel does not spread threads"
            " over them"
        )
    if len(machine.numa.with_cpus) == 1:
        notes.append("the machine shows one NUMA node, so there is nothing to place")
    return "; ".join(notes)


def _finding(
    rank: RankFacts,
    verdict: Verdict,
    *,
    around: Near | None = None,
    cpus: frozenset[int] | None = None,
    told: str,
    note: str = "",
    out: frozenset[int] = frozenset(),
) -> Finding:
    expected = around.cpus_text if around else "CPUs local to its accelerator"
    why = f"{rank.name}: {told}"
    if around is not None:
        why += f"; expected {expected}"
    if verdict is Verdict.FAIL and around is not None:
        why += (
            f"; bind it before it starts, such as numactl --cpunodebind={around.numa_node}"
            f" --membind={around.numa_node}, torchrun --numa-binding or srun --cpu-bind"
        )
    if note:
        why += f"; {note}"
    return Finding(
        question=Question.CPUS,
        rank=rank.rank,
        node=rank.node,
        verdict=verdict,
        value=None if verdict is Verdict.INCONCLUSIVE else float(len(out)),
        limit=0.0,
        unit="CPUs out of place",
        found=f"CPUs {format_cpulist(cpus)}" if cpus else "not known",
        expected=expected,
        why=why,
        culprit=f"{rank.name}: CPU binding",
    )
