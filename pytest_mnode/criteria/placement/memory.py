"""Is a rank's own memory really on the NUMA node of its accelerator?"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.criteria.placement.facts import Finding, Machine, Question, RankFacts
from pytest_mnode.criteria.placement.near import near
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Verdict

_MIB = 1 << 20


def judge_memory(machine: Machine, rank: RankFacts, least_fraction: float) -> Finding:
    """The share of its own pages (heap, stacks, anonymous) that are near, against `least_fraction`.

    Files and shared memory are left out: they lie where whoever touched them first was.
    """
    around = near(machine, rank)
    if isinstance(around, str):
        return _unknown(rank, least_fraction, "the NUMA node of its accelerator", around)
    nodes = around.memory_nodes
    expected = (
        f"at least {least_fraction:.0%} on NUMA node{'s' * (len(nodes) > 1)}"
        f" {format_cpulist(nodes)}, near {around.place}"
    )
    if not any(_has_memory(machine, n) for n in nodes):
        reason = "it is not known which NUMA node with memory is nearest"
        return _unknown(rank, least_fraction, expected, reason)
    memory = rank.memory_bytes
    total = sum(memory.values()) if memory is not None else 0
    if memory is None or not total:
        reason = rank.unknown.get("memory_bytes") or (
            "its numa_maps could not be read" if memory is None else "it has no page of its own"
        )
        return _unknown(rank, least_fraction, expected, reason)
    share = sum(size for node, size in memory.items() if node in nodes) / total
    kept = share >= least_fraction
    found = _by_node(memory)
    why = f"{rank.name}: {share:.1%} of its memory is near: {found}; expected {expected}"
    if not kept:
        why += (
            f"; start it with its memory bound, such as numactl --membind={around.numa_node}:"
            " binding within the process moves no page that it has already"
        )
    return Finding(
        question=Question.MEMORY,
        rank=rank.rank,
        node=rank.node,
        verdict=Verdict.PASS if kept else Verdict.FAIL,
        value=share,
        limit=least_fraction,
        unit="of its memory",
        found=found,
        expected=expected,
        why=why,
        culprit=f"{rank.name}: memory binding",
    )


def _has_memory(machine: Machine, number: int) -> bool:
    node = machine.numa.node(number)
    return node is not None and node.memory_bytes != 0


def _by_node(memory: Mapping[int, int]) -> str:
    return ", ".join(
        f"{size / _MIB:.1f} MiB on NUMA node {node}" for node, size in sorted(memory.items())
    )


def _unknown(rank: RankFacts, limit: float, expected: str, reason: str) -> Finding:
    return Finding(
        question=Question.MEMORY,
        rank=rank.rank,
        node=rank.node,
        verdict=Verdict.INCONCLUSIVE,
        value=None,
        limit=limit,
        unit="of its memory",
        found="not known",
        expected=expected,
        why=f"{rank.name}: not known where its memory should be or is: {reason}",
        culprit=f"{rank.name}: memory binding",
    )
