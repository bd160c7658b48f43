"""The placement of a rank, and the measurements about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.process import Thread
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict, at_most, equals

PARTS = ("interfaces", "rdma", "pci", "cpus", "numa")
"""The parts of a machine that placement is judged on."""


class Question(Enum):
    """A question about placement: key, unit, source, and the measurement's name over all ranks."""

    CPUS = (
        *("cpus", "CPUs out of place", "numa.cpus near"),
        "ranks that may run off their accelerator's CPUs",
    )
    MEMORY = (
        *("memory", "of its memory", "numa.memory_near_fraction"),
        "memory near the accelerator, of the rank with least",
    )
    NIC = (
        *("nic", "NICs farther than the nearest", "numa.nic nearest"),
        "ranks that send over a NIC that is not the nearest",
    )
    CORES = (
        *("cores", "ranks on the same cores", "numa.cores own"),
        "ranks that share a core with another",
    )

    def __init__(self, key: str, unit: str, source: str, over_ranks: str) -> None:
        self.key, self.unit, self.source, self.over_ranks = key, unit, source, over_ranks


_NAMED = 4
_IN_PLACE = {
    Question.CPUS: "ranks beside their accelerators",
    Question.NIC: "ranks over their nearest NIC",
    Question.CORES: "ranks on cores of their own",
    Question.MEMORY: "ranks with their memory beside them",
}
"""Right ranks in words; the first question that is promised answers for the criterion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Placement of a rank, as the rank itself reads it while it works.

    accelerator: PCI address of its device; None if it has none or the address is not known.
    numa_node: of an accelerator without a PCI address, or of another device that the rank should be
    near; anchor: that device, in words. cpus: CPUs that its process may run on.
    threads: of its process; None or empty if not listed. memory_bytes: its own memory by NUMA node.
    nics: interfaces or RDMA devices (with or without port) that it sends over.
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
        """Text such as "rank 3 on node1"."""
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
        """The measurement that answers one question for this rank.

        found, expected: in words. why: the placement found, the one expected, and the remedy.
        blamed: the part of the placement that is wrong, such as "CPU binding".
        """
        return Measurement(
            name=question.key,
            value=value,
            unit=question.unit,
            expected=bound or at_most(0),
            source=question.source,
            culprit=Culprit(f"{self.name}: {blamed} ({found}; expected {expected})", self.node),
            note=f"{self.name}: {why}",
            where=self.name,
        )


def over_ranks(question: Question, answers: Sequence[Measurement]) -> Measurement:
    """One measurement for all ranks; inconclusive if a rank is inconclusive and none fails.

    The value is the number of ranks that fail; for memory, the lowest fraction of a rank.
    """
    wrong = [one for one in answers if one.verdict is Verdict.FAIL]
    unknown = [one for one in answers if one.verdict is Verdict.INCONCLUSIVE]
    culprits = [one.culprit for one in wrong if one.culprit]
    more = [f"and {len(wrong) - _NAMED} more ranks"] if len(wrong) > _NAMED else []
    note = "; ".join(one.note for one in (wrong or unknown)[:_NAMED])
    if question is Question.MEMORY:
        unit, bound = answers[0].unit, answers[0].expected
        value = min((one.value for one in answers if one.value is not None), default=None)
    else:
        unit, bound, value = "", equals(0), len(wrong)
        note = note or f"{len(answers)} ranks, each as expected"
    return Measurement(
        question.over_ranks,
        value if wrong or not unknown else None,
        unit,
        bound,
        question.source,
        Culprit.merged("; ".join([*culprits[:_NAMED], *more]), culprits) if culprits else None,
        note,
        headline=HeadlineMark(
            after=_IN_PLACE[question],
            of=len(answers),
            right=sum(one.passed for one in answers),
            order=list(_IN_PLACE).index(question),
        ),
    )
