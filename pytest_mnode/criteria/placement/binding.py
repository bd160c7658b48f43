"""Judges the CPUs of a rank, local to its accelerator and shared with no other, and its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_mnode.criteria.placement.rank_placement import Locality, Question, RankPlacement, near
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec.devices import Near

_CPU_BINDING = "CPU binding"
_MOST_NAMED = 4
"""Limit on the groups of stray threads that a message names; a process can have hundreds."""
_MIB = 1 << 20


def judge_cpus(machine: Machine, rank: RankPlacement, within: Near = "socket") -> Measurement:
    """Number of CPUs allowed to a rank's process or threads that are not near its accelerator.

    Offline CPUs do not count: an affinity may name them. Where all CPUs are near, as on a machine
    of one socket, any binding passes, as long as the accelerator's NUMA node is known.
    """
    local = near(machine, rank, within)
    if isinstance(local, str):
        why = f"it is not known which CPUs are local to {rank.anchor}: {local}"
        return _cpus_answer(rank, None, None, online(machine, rank.cpus), why)
    cpus = online(machine, rank.cpus)
    if not cpus:
        why = rank.unknown.get("cpus") or "its CPU affinity could not be read"
        return _cpus_answer(rank, None, local, None, why)
    strays = [t for t in rank.threads or () if _of_thread(machine, t, cpus) - local.cpus]
    out = cpus.union(*(_of_thread(machine, t, cpus) for t in strays)) - local.cpus
    why = _how_bound(machine, cpus, local)
    if out:
        if cpus <= local.cpus:
            why += f", but {_named(machine, strays)}"
        return _cpus_answer(rank, len(out), local, cpus, why)
    if not rank.threads or any(t.cpus_allowed is None for t in rank.threads):
        note = rank.unknown.get("threads") or "the affinity of its threads could not be read"
        return _cpus_answer(rank, None, local, cpus, why, note)
    return _cpus_answer(rank, 0, local, cpus, why, _remarks(machine, cpus, local))


def judge_cores(
    machine: Machine, rank: RankPlacement, ranks: Iterable[RankPlacement]
) -> Measurement:
    """Number of other ranks of the node (among `ranks`) that may run on a core of this rank.

    The threads of a process count with it, and hardware threads of one core count as that core.
    """
    others = [other for other in ranks if other.node == rank.node and other.rank != rank.rank]
    own = _with_threads(machine, rank)
    if own is None:
        return _cores_answer(rank, None, own, "its CPU affinity could not be read")
    cores = machine.cpus.cores(own)
    shared = {
        other.rank: frozenset().union(*common)
        for other in others
        if (common := cores & machine.cpus.cores(_with_threads(machine, other) or ()))
    }
    if shared:
        with_ = ", ".join(f"rank {n} (CPUs {format_cpulist(cpus)})" for n, cpus in shared.items())
        return _cores_answer(rank, len(shared), own, f"shares cores with {with_}")
    if unknown := [other.rank for other in others if _with_threads(machine, other) is None]:
        why = f"the CPUs of rank {format_cpulist(unknown)} beside it are not known"
        return _cores_answer(rank, None, own, why)
    unread = [
        r.rank
        for r in (rank, *others)
        if not r.threads or any(t.cpus_allowed is None for t in r.threads)
    ]
    if others and unread:
        why = f"the affinity of threads of rank {format_cpulist(unread)} could not be read"
        return _cores_answer(rank, None, own, why)
    if others and not own <= {cpu.number for cpu in machine.cpus.cpus if cpu.siblings}:
        return _cores_answer(rank, None, own, "it is not known which CPUs share a core")
    return _cores_answer(rank, 0, own, "shares no core" if others else "is alone on its node")


def online(machine: Machine, cpus: frozenset[int] | None) -> frozenset[int] | None:
    """The online CPUs among `cpus`; all of `cpus` if it is not known which are online."""
    if cpus is None or machine.cpus.online is None:
        return cpus
    return cpus & machine.cpus.online


def _of_thread(machine: Machine, thread: Thread, process: frozenset[int]) -> frozenset[int]:
    """CPUs allowed to a thread; those of its process if not known."""
    return online(machine, thread.cpus_allowed) or process


def _with_threads(machine: Machine, rank: RankPlacement) -> frozenset[int] | None:
    cpus = online(machine, rank.cpus)
    if not cpus:
        return None
    return cpus.union(*(_of_thread(machine, thread, cpus) for thread in rank.threads or ()))


def _how_bound(machine: Machine, cpus: frozenset[int], local: Locality) -> str:
    listed = f"CPUs {format_cpulist(cpus)}"
    every = (machine.cpus.online or frozenset()) - (machine.cpus.isolated or frozenset())
    if every and cpus >= every and len(machine.numa.with_cpus) > 1:
        return f"is not bound: it may run on all {listed}"
    nodes = machine.numa.nodes_of(cpus)
    on = f"NUMA node{'s' * (len(nodes) > 1)} {format_cpulist(nodes)}" if nodes else "no known node"
    if cpus - local.cpus and cpus & local.cpus:
        return f"may run on {listed}, which span {on}"
    return f"is bound to {listed} on {on}"


def _named(machine: Machine, strays: Sequence[Thread]) -> str:
    groups: dict[tuple[str, frozenset[int] | None], list[int]] = {}
    for thread in strays:
        key = (thread.name or "?", online(machine, thread.cpus_allowed))
        groups.setdefault(key, []).append(thread.tid)
    named = [
        f"thread {name} ({', '.join(map(str, tids[:3]))}{', …' * (len(tids) > 3)}) may run on"
        f" CPUs {format_cpulist(cpus or ())}"
        for (name, cpus), tids in list(groups.items())[:_MOST_NAMED]
    ]
    more = len(groups) - _MOST_NAMED
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


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


def _cpus_answer(  # noqa: PLR0917  the answer, then what it rests on
    rank: RankPlacement,
    out: int | None,
    local: Locality | None,
    cpus: frozenset[int] | None,
    why: str,
    note: str = "",
) -> Measurement:
    expected = local.cpus_text if local else f"CPUs local to {rank.anchor}"
    parts = [why]
    if local is not None:
        parts.append(f"expected {expected}")
        if out:
            node = local.numa_node
            parts.append(
                f"bind it before it starts, such as numactl --cpunodebind={node}"
                f" --membind={node}, torchrun --numa-binding or srun --cpu-bind"
            )
    return rank.answer(
        Question.CPUS,
        out,
        found=f"CPUs {format_cpulist(cpus)}" if cpus else "not known",
        expected=expected,
        why="; ".join([*parts, *([note] if note else [])]),
        blamed=_CPU_BINDING,
    )


def _cores_answer(
    rank: RankPlacement, sharing: int | None, cpus: frozenset[int] | None, what: str
) -> Measurement:
    found = f"CPUs {format_cpulist(cpus)}" if cpus else "not known"
    why = f"may run on {found}, {what}" if cpus else what
    if sharing:
        why += "; give each rank of a node its own CPUs, and split no core between ranks"
    return rank.answer(
        Question.CORES,
        sharing,
        found=found,
        expected=f"cores that no other rank on {rank.node} may use",
        why=why,
        blamed=_CPU_BINDING,
    )


def judge_memory(
    machine: Machine, rank: RankPlacement, least_fraction: float, within: Near = "socket"
) -> Measurement:
    """The fraction of a rank's own pages (heap, stacks, anonymous) that is near its accelerator.

    Files and shared memory do not count: they lie near the process that touched them first.
    """
    expected = f"the NUMA node of {rank.anchor}"

    def answer(share: float | None, found: str, why: str) -> Measurement:
        return rank.answer(
            Question.MEMORY,
            share,
            found=found,
            expected=expected,
            why=why,
            blamed="memory binding",
            bound=at_least(least_fraction).of("criteria.numa.memory_near_fraction", least_fraction),
        )

    def unknown(reason: str) -> Measurement:
        why = f"its memory placement cannot be judged: {reason}; expected {expected}"
        return answer(None, "not known", why)

    local = near(machine, rank, within)
    if isinstance(local, str):
        return unknown(local)
    nodes = local.memory_nodes
    expected = (
        f"at least {least_fraction:.0%} on NUMA node{'s' * (len(nodes) > 1)}"
        f" {format_cpulist(nodes)}, near {local.place}"
    )
    near_nodes = (machine.numa.node(number) for number in nodes)
    if not any(node is not None and node.memory_bytes != 0 for node in near_nodes):
        return unknown("it is not known which NUMA node with memory is nearest")
    memory = rank.memory_bytes
    if memory is None:
        return unknown(rank.unknown.get("memory_bytes") or "its numa_maps could not be read")
    total = sum(memory.values())
    if not total:
        return unknown(rank.unknown.get("memory_bytes") or "it has no private page")
    share = sum(size for node, size in memory.items() if node in nodes) / total
    found = ", ".join(
        f"{size / _MIB:.1f} MiB on NUMA node {node}" for node, size in sorted(memory.items())
    )
    why = f"{share:.1%} of its memory is near: {found}; expected {expected}"
    if share < least_fraction:
        why += (
            f"; bind its memory before it starts, such as numactl --membind={local.numa_node}:"
            " a process that binds itself does not move its existing pages"
        )
    return answer(share, found, why)
