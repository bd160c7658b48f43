"""Checks that all ranks of a world measure together, and the tests that are made of them.

    @check("devices.memory_copy")
    class CopiesAreFast(WorldCheck):
        "Does every rank copy as fast as the others?"

        promise: CopyPromise

        def measure(self, world: World, device: torch.device) -> Iterator[Comparison]: …
        def rule(self, found: Comparison) -> Iterable[Measurement]: …

Modules of checks are imported where torch is not: only `measure` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.criteria.devices import comparisons, judge_rates
from pytest_mnode.evidence.check import Check, catalogue, findings, on_late_check, raised
from pytest_mnode.evidence.row import MeasuredRows, RankRows, Row, finite, of_rank, row
from pytest_mnode.evidence.rules import UNREAD
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, Comparison
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measure import Measure
    from pytest_mnode.options import Settings
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

_HOW = ", how"


class WorldCheck(Check):
    """Base of these checks. spec: the whole spec."""

    spec: Any
    on = "world"
    read_by = frozenset(("*",))

    @property
    def comparisons(self) -> int:
        """Number of its comparisons of ranks, which share the false alarms of a certificate."""
        return 0

    @property
    def family(self) -> int:
        """Comparisons of ranks of all devices' promises together."""
        return comparisons(self.spec)

    @property
    def duration_s(self) -> float:
        """Seconds for which its promise makes it go on."""
        return 0.0

    @property
    def limit_s(self) -> float:
        """Seconds that it may take beyond the limit of any test."""
        return self.duration_s

    def measure(self, world: World, device: torch.device) -> Iterable[Any]:
        """What ranks found, the same on all. All ranks call this, over the default group."""
        raise NotImplementedError

    def rule(self, found: Any) -> Iterable[Measurement]:
        """Judge one of what `measure` gives. Pure."""
        raise NotImplementedError

    def by_rule(self, found: Any) -> Iterable[Measurement]:
        """Findings of its rule, or why there is nothing to judge. Pure."""
        return self.rule(found)

    def show(self, found: Any, measure: Measure) -> None:  # noqa: ARG002
        """Print, and record as charts, what a reader wants beside the findings. By one rank."""
        if (table := getattr(found, "table", None)) is not None:
            print(table())

    def to_rows(self, found: Any) -> Iterable[Row]:  # noqa: ARG002
        """Rows of one of what `measure` gives, for the evidence of the run."""
        return ()

    def from_rows(self, rows: Sequence[Row]) -> Iterable[Any]:  # noqa: ARG002
        """What `measure` gave, by the promise of this; nothing where rows do not tell."""
        return ()


class RowsOfRanks(WorldCheck):
    """A check of what each rank reads by itself. Its rule is over the rows of all ranks, which
    `RankRows.each` divides by rank; they are the evidence, which `judge` judges anew."""

    def read_rank(self, world: World, device: torch.device) -> Iterable[Row]:
        """Rows of this rank; its number and its node are added. All ranks call this. What it raises
        is the reason why nothing is known."""
        raise NotImplementedError

    def measure(self, world: World, device: torch.device) -> Iterator[tuple[Row, ...]]:
        from pytest_mnode.measuring.ranks import gathered

        try:
            read = [*self.read_rank(world, device)]
        except Exception as error:  # the other ranks wait for what this one gives
            read = [row(UNREAD, why=raised("reading", error))]
        mine = of_rank(read, world.rank, world.node)
        yield tuple(chain.from_iterable(gathered(mine)))

    def by_rule(self, found: Sequence[Row]) -> Iterable[Measurement]:
        if why := [f"rank {r.rank} on {r.node}: {r.why}" for r in found if r.metric == UNREAD]:
            return [Measurement.unknown(self.key, listed(why))]
        return self.rule(found)

    def to_rows(self, found: tuple[Row, ...]) -> Iterable[Row]:
        return found

    def from_rows(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        yield rows

    def show(self, found: Sequence[Row], measure: Measure) -> None:  # noqa: ARG002
        """One line per rank: its rows."""
        for rank in RankRows.each(found):
            parts = (f"{one.metric} {one.device}".strip() + f": {one.shown}" for one in rank.rows)
            print(rank.name, *parts, sep=" | ")


class ComparedRates(WorldCheck):
    """A check of rates: that no rank is much slower than the others. It measures comparisons."""

    @property
    def comparisons(self) -> int:
        return 1

    compared_only = frozenset(
        ("at_least_fraction", "at_most_spreads", "at_least_gbytes_s", "alone_at_least_gbytes_s")
    )

    def rule(self, found: Comparison) -> list[Measurement]:
        return judge_rates(found)

    def to_rows(self, found: Comparison) -> Iterator[Row]:
        return found.to_rows()

    def floor(self, name: str) -> float | None:  # noqa: ARG002
        """The rate that is promised of each in any case. name: of the comparison."""
        floor: float | None = getattr(self.promise, "at_least_gbytes_s", None)
        return floor

    def from_rows(self, rows: Sequence[Row]) -> Iterator[Comparison]:
        names = [one.metric.removesuffix(_HOW) for one in rows if one.metric.endswith(_HOW)]
        if len(names) < self.comparisons:
            raise ValueError(f"{len(names)} of {self.comparisons} comparisons")
        share = FALSE_ALARM / self.family
        for name in names:
            yield Comparison.from_rows(name, rows, self.promise, self.floor(name), share)


def case_of(one: type[WorldCheck], file: str) -> Callable[..., None]:
    """The test of a check, in every rank: a function that pytest collects in this file."""

    def case(world: World, device: torch.device, spec: Spec, measure: Measure) -> None:
        judge(one, "", world, device, spec, measure)

    def case_of_part(
        part: str, world: World, device: torch.device, spec: Spec, measure: Measure
    ) -> None:
        judge(one, part, world, device, spec, measure)

    made: Callable[..., None] = case_of_part if one.each else case
    case_named(one, made, file)
    made = pytest.mark.parametrize("part", one.each)(made) if one.each else made
    made = pytest.mark.mnode(timeout=limit_of(one))(pytest.mark.usefixtures("process_group")(made))
    return pytest.mark.stops(*one.stops)(made) if one.stops else made


def case_named(one: type[Check], case: Callable[..., None], file: str) -> None:
    """Give a function the name and the question of a check's test, in this file."""
    case.__name__ = case.__qualname__ = one.case()
    case.__doc__ = one.__doc__
    # The place of a test names its criterion, where pytest's ids have no file (--pyargs).
    case.__code__ = case.__code__.replace(co_filename=file, co_firstlineno=1)


def add_cases(module: dict[str, Any], criterion: str) -> None:
    """Add the tests of all checks of a criterion to the names of a module.

    Also those of checks that are entered later: ranks are forked from a process that has imported
    the module, and import conftest.py themselves.
    """

    def add(one: type[Check]) -> None:
        if issubclass(one, WorldCheck) and one.key.partition(".")[0] == criterion:
            module[one.case()] = case_of(one, module["__file__"])

    for one in catalogue(criterion):
        add(one)
    on_late_check(add)


def judge(  # noqa: PLR0917  the fixtures of a test
    one: type[WorldCheck],
    part: str,
    world: World,
    device: torch.device,
    spec: Spec,
    measure: Measure,
) -> None:
    """Measure, and record what the rule says of it, worked out by the first rank."""
    from pytest_mnode.measuring.ranks import of_first_rank

    made, rows = one(promised(spec, one.key.format(part=part)), spec, part), list[Row]()
    is_first = world.rank == 0  # all have measured the same, and a rule over 8,192 ranks takes long
    for found in made.measure(world, device):
        measure.record(of_first_rank(findings(made, made.by_rule, found) if is_first else []))
        if is_first:
            made.show(found, measure)
            rows += map(finite, made.to_rows(found))
    if rows:
        measure.chart(MeasuredRows(tuple(rows)))


def limit_of(one: type[WorldCheck]) -> Callable[[Spec, Settings, int, int], float]:
    """The limit of the test of a check: the usual one, and what its promise takes beyond it."""

    def limit_s(spec: Spec, settings: Settings, _nodes: int, _ranks_per_node: int) -> float:
        criterion: Any = getattr(spec.criteria, one.key.partition(".")[0])
        asked = criterion.asked() if criterion is not None else ()
        return settings.timeout_s + max((x.limit_s for x in asked if type(x) is one), default=0.0)

    return limit_s
