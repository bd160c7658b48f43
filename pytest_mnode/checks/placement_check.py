"""Base of the checks of placement: where each rank of a world runs, allocates and sends from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pytest_mnode.checks.world_check import RowsOfRanks
from pytest_mnode.criteria.placement.near import (
    RankReading,
    candidate_nics,
    machine_from_rows,
    machine_to_rows,
)
from pytest_mnode.criteria.placement.numa_map import hardware_rows, numa_map
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.row import RankRows, Row, row
from pytest_mnode.evidence.rules import UNREAD
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    Verdict,
    all_of,
    equals,
    listed,
    with_suspects,
)
from pytest_mnode.skipping import not_promised, promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World

_BOUND, _NOT_SHOWN, _MACHINE = "binding", "placement", "machine"


@dataclass(frozen=True, slots=True)
class Here:
    """Where a rank is: what `near` needs of its machine, and all ranks there, with itself."""

    machine: Machine
    ranks: Sequence[RankRows]


class PlacementCheck(RowsOfRanks):
    """A check that reads the placement of each rank, and judges one rank after the other.

    counted: name of the number of ranks that are out of place. in_place: right ranks in words.
    order: of the checks that are promised, the one of the lowest answers for the criterion.
    """

    counted: ClassVar[str]
    unit: ClassVar[str] = ""
    in_place: ClassVar[str]
    order: ClassVar[int]
    sends: ClassVar[bool] = False
    """Whether it has to be known over which NICs each rank sends."""
    has_map: ClassVar[bool] = False
    """Whether a chart of its ranks on the hardware of nodes is drawn."""
    _answered: tuple[Sequence[Row], list[RankRows], list[Measurement]] | None = None
    compared_only = frozenset(("criteria.numa.near",))

    def rows(self, here: RankReading) -> Iterator[Row]:
        """Rows of what a rank read. Pure."""
        raise NotImplementedError

    def judge_rank(self, rank: RankRows, here: Here) -> Measurement:
        """The answer for one rank, by `answer`. Pure."""
        raise NotImplementedError

    def cannot_show(self, here: RankReading) -> str:  # noqa: ARG002
        """Why a node of the rack cannot keep the promise under any binding; "" if it can."""
        return ""

    @property
    def bound(self) -> Bound:
        """The bound of each rank, and of the number of ranks that break it."""
        return equals(0)

    def read_rank(self, world: World, device: torch.device) -> Iterator[Row]:
        from pytest_mnode.measuring.numa import read_placement
        from pytest_mnode.measuring.ranks import gathered

        promised(self.spec, "numa.near")
        if self.sends and len(world.nodes) < 2:
            not_promised("one node alone sends nothing over a NIC")
        here = read_placement(world, device, self.spec, sends=self.sends)
        reasons = gathered(self.cannot_show(here) if here.emulated else "")
        if reason := next(filter(None, reasons), ""):
            not_promised(f"on the rack: {reason}")
        yield from self.rows_of_rank(here, first=world.local_rank == 0)

    def rows_of_rank(self, here: RankReading, *, first: bool) -> Iterator[Row]:
        """Rows of a rank, and of its node if it is the first there."""
        yield row(_MACHINE, here.machine_id)
        yield row(_BOUND, here.bound)
        if here.not_shown:
            yield row(_NOT_SHOWN, why=here.not_shown)
            return
        yield from self.rows(here)
        if first:
            yield from machine_to_rows(here.machine)
            nics = candidate_nics(here.machine, here.nics or (), self.spec)
            yield from hardware_rows(here.machine, nics)

    def answers(self, found: Sequence[Row]) -> tuple[list[RankRows], list[Measurement]]:
        """All ranks, and the answer for each; of the same rows, the same as before."""
        if self._answered is None or self._answered[0] is not found:
            ranks = RankRows.each(found)
            self._answered = found, ranks, self._answers(ranks)
        return self._answered[1:]

    def _answers(self, ranks: Sequence[RankRows]) -> list[Measurement]:
        machines, beside = dict[str, Machine](), dict[str, list[RankRows]]()
        for one in ranks:
            if one.node not in machines:
                machines[one.node] = machine_from_rows(one)
            beside.setdefault(one.value(_MACHINE), []).append(one)
        return [
            self.answer(one, None, why)
            if (why := one.why(_NOT_SHOWN))
            else self.judge_rank(one, Here(machines[one.node], beside[one.value(_MACHINE)]))
            for one in ranks
        ]

    def answer(  # noqa: PLR0917  the rank, then what was found about it
        self,
        rank: RankRows,
        value: float | None,
        why: str,
        found: str = "",
        expected: str = "",
        blamed: str = "",
    ) -> Measurement:
        """The measurement of one rank.

        why: the placement found, the one expected, and the remedy. found, expected: in words.
        blamed: the part of the placement that is wrong, such as "CPU binding".
        """
        words = f"{rank.name}: {blamed} ({found}; expected {expected})"
        culprit, source = Culprit.merged(words, [rank.name]), f"{self.key} {self.promise}"
        return Measurement(self.key, value, "", self.bound, source, culprit, f"{rank.name}: {why}")

    def rule(self, found: Sequence[Row]) -> list[Measurement]:
        """One measurement for all ranks; inconclusive if a rank is inconclusive and none fails."""
        _, answers = self.answers(found)
        wrong = [one for one in answers if one.verdict is Verdict.FAIL]
        unknown = [one for one in answers if one.verdict is Verdict.INCONCLUSIVE]
        note = listed(one.note for one in wrong or unknown)
        mark = HeadlineMark(
            after=self.in_place,
            of=len(answers),
            right=sum(one.passed for one in answers),
            order=self.order,
        )
        return [
            Measurement(
                self.counted,
                self.total(answers, len(wrong)) if wrong or not unknown else None,
                self.unit,
                self.bound,
                answers[0].source,
                with_suspects(
                    all_of(one.culprit for one in wrong),
                    (one.culprit for one in unknown if one.culprit),
                ),
                note or f"{len(answers)} ranks, each as expected",
                headline=mark,
            )
        ]

    def total(self, answers: Sequence[Measurement], wrong: int) -> float | None:  # noqa: ARG002
        """The value for all ranks, of which so many are wrong."""
        return wrong

    def show(self, found: Sequence[Row], measure: Measure) -> None:
        """One line per rank: verdict, found and expected values, and binding; and the chart."""
        if any(one.metric == UNREAD for one in found):
            super().show(found, measure)
            return
        ranks, answers = self.answers(found)
        for rank, answer in zip(ranks, answers, strict=True):
            print(f"{answer.verdict or '':<12} {answer.note} | {rank.value(_BOUND)}")
        if self.has_map:
            measure.chart(numa_map(ranks, answers))
