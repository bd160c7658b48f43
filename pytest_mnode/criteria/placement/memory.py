"""Judges whether a rank's own memory is on the NUMA node of its accelerator."""

from __future__ import annotations

from pytest_mnode.criteria.placement.near import near
from pytest_mnode.criteria.placement.rank_placement import Question, RankPlacement
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec.devices import Near

_MIB = 1 << 20


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
