"""The answer to one question about where a rank runs, by the judge of that question. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_mnode.criteria.placement.binding import judge_cores, judge_cpus, judge_memory
from pytest_mnode.criteria.placement.nics import fabric_nics, judge_nics, sending_nics
from pytest_mnode.criteria.placement.rank_placement import Question, RankPlacement
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec


def answer_of(  # noqa: PLR0917  the question, then what it is judged on
    question: Question,
    promise: Any,
    machine: Machine,
    facts: RankPlacement,
    here: Sequence[RankPlacement],
    spec: Spec,
    *,
    only_ranks: bool,
) -> Measurement:
    """A rank's answer. promise: the spec's value. here: placements of all ranks of its node.
    only_ranks: a node has no accelerators but those of its ranks."""
    numa = spec.criteria.numa
    assert numa is not None  # `promise` is one of its keys
    match question:
        case Question.CPUS:
            return judge_cpus(machine, facts, numa.near)
        case Question.MEMORY:
            return judge_memory(machine, facts, promise, numa.near)
        case Question.CORES:
            return judge_cores(machine, facts, here)
        case Question.NIC:
            runs_on = machine.numa.nodes_of(facts.cpus or ())
            if facts.accelerator is None and len(runs_on) == 1:
                facts = replace(facts, numa_node=min(runs_on), anchor="where it runs")
            if facts.nics is not None:
                facts = replace(facts, nics=sending_nics(machine, facts.nics, spec))
            beside = [one.accelerator for one in here]
            if not only_ranks:
                beside += [one.address for one in machine.pci.accelerators]
            candidates = fabric_nics(machine, facts.nics or (), spec)
            return judge_nics(machine, facts, candidates, beside)
