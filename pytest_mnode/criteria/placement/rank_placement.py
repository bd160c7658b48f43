"""What is known of a rank's placement, and how answers about it are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Bound, Measurement, Verdict, at_most, equals

PARTS = ("interfaces", "rdma", "pci", "cpus", "numa")
"""The parts of a machine that placement is judged on."""


class Question(StrEnum):
    """What is asked of a rank's placement."""

    CPUS = "cpus"
    MEMORY = "memory"
    NIC = "nic"
    CORES = "cores"


SOURCES = {
    Question.CPUS: "numa.cpus near",
    Question.MEMORY: "numa.memory_near_fraction",
    Question.NIC: "numa.nic nearest",
    Question.CORES: "numa.cores own",
}
UNITS = {
    Question.CPUS: "CPUs out of place",
    Question.MEMORY: "of its memory",
    Question.NIC: "NICs farther than the nearest",
    Question.CORES: "ranks on the same cores",
}

_NAMES = {
    Question.CPUS: "ranks that may run off their accelerator's CPUs",
    Question.MEMORY: "memory near the accelerator, of the rank with least",
    Question.NIC: "ranks that send over a NIC that is not the nearest",
    Question.CORES: "ranks that share a core with another",
}
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """A rank, as read in the rank itself while it works.

    accelerator: PCI address of its device; None where it has none or the address is not known.
    numa_node: of an accelerator without a PCI address, or of what else the rank should be beside,
    which `anchor` is in words. cpus: those that its process may run on.
    threads: all of its process; None or empty where not listed. memory_bytes: its own memory by
    NUMA node. nics: interfaces or RDMA devices (with or without port) that it sends over.
    unknown: why a field is None, by the field's name.
    """

    rank: int
    node: str
    accelerator: str | None = None
    numa_node: int | None = None
    anchor: str = "its accelerator"
    cpus: frozenset[int] | None = None
    threads: tuple[Thread, ...] | None = None
    memory_bytes: Mapping[int, int] | None = None
    nics: tuple[str, ...] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as "rank 3 on node1"."""
        return f"rank {self.rank} on {self.node}"

    def answer(
        self,
        question: Question,
        value: float | None,
        *,
        found: str,
        expected: str,
        why: str,
        blamed: str,
        bound: Bound | None = None,
    ) -> Measurement:
        """One question, answered for this rank.

        found, expected: in words. why: what was found, what was expected, and the remedy.
        blamed: what of the rank is out of place, such as its CPU binding.
        """
        return Measurement(
            name=question.value,
            value=value,
            unit=UNITS[question],
            expected=bound or at_most(0),
            source=SOURCES[question],
            culprit=f"{self.name}: {blamed} ({found}; expected {expected})",
            note=f"{self.name}: {why}",
            where=self.name,
        )


def over_ranks(question: Question, answers: Sequence[Measurement]) -> Measurement:
    """One measurement of the answers of all ranks; a rank that is not known leaves it open.

    The number of ranks out of place; of memory, the least share.
    """
    wrong = [one for one in answers if one.verdict is Verdict.FAIL]
    unknown = [one for one in answers if one.verdict is Verdict.INCONCLUSIVE]
    culprits = [one.culprit or "" for one in wrong]
    more = [f"and {len(wrong) - _NAMED} more ranks"] if len(wrong) > _NAMED else []
    note = "; ".join(one.note for one in (wrong or unknown)[:_NAMED])
    if question is Question.MEMORY:
        unit, bound = answers[0].unit, answers[0].expected
        value = min((one.value for one in answers if one.value is not None), default=None)
    else:
        unit, bound, value = "", equals(0), len(wrong)
        note = note or f"{len(answers)} ranks, each as expected"
    return Measurement(
        _NAMES[question],
        value if wrong or not unknown else None,
        unit,
        bound,
        SOURCES[question],
        "; ".join([*culprits[:_NAMED], *more]) or None,
        note,
    )
