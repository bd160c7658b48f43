"""Puts each question that was promised to each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_mnode.criteria.placement.affinity import judge_cpus
from pytest_mnode.criteria.placement.cores import judge_cores
from pytest_mnode.criteria.placement.facts import Finding, Machine, RankFacts
from pytest_mnode.criteria.placement.memory import judge_memory
from pytest_mnode.criteria.placement.nics import judge_nics


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is promised of placement; what is left out is not asked.

    memory_near_fraction: the least share of a rank's own memory on the node of its accelerator.
    nics: among which the nearest is looked for, as the spec names those of the fabric; None for all
    that are up and of the kind that the rank uses, RDMA devices or interfaces.
    """

    cpus_near: bool = False
    memory_near_fraction: float | None = None
    nic_nearest: bool = False
    nics: tuple[str, ...] | None = None
    own_cores: bool = False


def judge(
    machines: Mapping[str, Machine], ranks: Iterable[RankFacts], promise: Promise
) -> tuple[Finding, ...]:
    """Findings, rank by rank, in the order of the questions.

    machines: by the name of the node. Raises KeyError for a rank of a node that is not there.
    """
    known = sorted(ranks, key=lambda rank: rank.rank)
    found: list[Finding] = []
    for rank in known:
        machine = machines[rank.node]
        if promise.cpus_near:
            found.append(judge_cpus(machine, rank))
        if promise.memory_near_fraction is not None:
            found.append(judge_memory(machine, rank, promise.memory_near_fraction))
        if promise.nic_nearest:
            found.append(judge_nics(machine, rank, promise.nics))
        if promise.own_cores:
            found.append(judge_cores(machine, rank, known))
    return tuple(found)
