"""Checks are found by file, entry point and conftest, and bring their key of the spec with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_mnode.charts import Chart
from pytest_mnode.checks import world_check
from pytest_mnode.checks.node.huge_pages import HugePagesAreAlike
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.evidence import check as evidence_check
from pytest_mnode.evidence.check import CHECKS, Check, catalogue, check
from pytest_mnode.evidence.reading import CheckRows, ReadOrder, read, read_all
from pytest_mnode.evidence.row import MeasuredRows, Row, of_rank, row
from pytest_mnode.evidence.rules import Rows, Unread, difference
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement, Verdict, at_least
from pytest_mnode.measuring import ranks
from pytest_mnode.spec import Spec, profile_spec

KEY, THP = "preflight.huge_pages", "mode of transparent huge pages"


def _rows(node: str, promise: object = "same", **by_node: object) -> Rows:
    read = {
        name: value if isinstance(value, Unread) else [row(THP, value, node=name)]  # type: ignore[arg-type]
        for name, value in by_node.items()
    }
    return Rows(node, KEY, promise, read)


@pytest.mark.parametrize(
    ("nodes", "verdicts", "blamed"),
    [
        ({"a": "always", "b": "always", "c": "never"}, ("pass", "pass", "fail"), {"c"}),
        ({"a": "always", "b": "always", "c": Unread("gone")}, ("pass", "pass", "inconclusive"), {}),
        ({"a": "always", "b": "never"}, ("fail", "fail"), {}),  # nobody knows which is wrong
        ({"a": "always"}, ("inconclusive",), {}),
        ({"a": None, "b": "never", "c": "never"}, ("inconclusive", "pass", "pass"), {}),
    ],
    ids=["odd", "unread", "tie", "alone", "unknown"],
)
def test_the_odd_node_is_named(
    nodes: dict[str, object], verdicts: tuple[str, ...], blamed: set[str]
) -> None:
    found = {n: _rows(n, **nodes).same(THP) for n in nodes}
    assert tuple(str(one.verdict) for one in found.values()) == verdicts
    sure = {name for one in found.values() if one.culprit for name in one.culprit.nodes}
    assert sure == set(blamed)


@pytest.mark.parametrize(
    ("value", "verdict"), [("never", "pass"), ("always", "fail"), (None, "inconclusive")]
)
def test_a_promised_value_is_compared(value: str | None, verdict: str) -> None:
    rows = _rows("a", "never", a=value)
    [found] = HugePagesAreAlike("never").rule(rows)
    assert found.verdict == verdict
    assert "preflight.huge_pages never" in found.source


def test_a_reading_that_fails_is_the_reason(tmp_path: Path) -> None:
    found = read(ReadOrder.of(HugePagesAreAlike, "same"), tmp_path)
    assert found.rows == ()
    assert "no such file" in found.why
    assert "transparent_hugepage" in found.why
    assert "no module 'site_checks'" in read(ReadOrder("test_x", "site_checks", "X")).why


class Hangs(Check):
    """Does it hang?"""

    promise: None
    over = Event()

    def read(self, root: Path) -> Iterator[Row]:
        self.over.wait(60)
        yield row("x", 1)


def test_a_reading_that_hangs_is_late_and_holds_up_no_other() -> None:
    orders = [ReadOrder("test_hangs", __name__, "Hangs"), ReadOrder.of(HugePagesAreAlike, "same")]
    late, other = read_all(orders, limit_s=0.5)
    Hangs.over.set()
    assert late == CheckRows("test_hangs", why="no answer within 0.5 s")
    assert (other.case, len(other.rows)) == ("test_huge_pages_are_alike", 1)


class Odd(Check):
    """Is it a number?"""

    promise: None

    def read(self, root: Path) -> Iterator[Row]:
        yield row("x", math.nan)


@pytest.mark.parametrize("odd", [row("x", "N/A"), *of_rank([row("x", math.inf)], 0, "a")])
def test_what_is_no_number_is_not_left_out(odd: Row) -> None:
    rows = Rows("a", KEY, None, {"a": [row("x", 5), odd]})
    assert rows.at_most("x", 9).verdict is Verdict.INCONCLUSIVE
    assert rows.at_most("x", 4).verdict is Verdict.FAIL
    [nan] = read(ReadOrder("test_odd", __name__, "Odd")).rows
    assert (nan.value, nan.why) == (None, "read nan")


def test_devices_above_a_bound_are_named_and_their_values_noted() -> None:
    rows = Rows("a", KEY, None, {"a": [row("x", value, device=f"d{value}") for value in (4, 5, 6)]})
    found = rows.at_most("x", 4)
    assert (found.value, found.culprit, found.note) == (6, "a d5, d6", "a: d5: 5; d6: 6")


@pytest.mark.parametrize(
    ("values", "usual", "tied"),
    [
        ({"a": "1", "b": "2", "c": "3"}, "2", True),
        ({"a": "1", "b": "2", "c": "2"}, "2", False),
        ({"a": "2", "b": "2", "c": "3"}, None, False),
    ],
)
def test_a_node_differs_from_most_or_from_all_others(
    values: dict[str, str], usual: str | None, tied: bool
) -> None:
    found = difference(values, "a")
    assert (found and (found.usual, found.tied)) == (None if usual is None else (usual, tied))


@pytest.fixture
def late() -> Iterator[type[Check]]:
    @check("preflight.late")
    class LateOne(Check):
        """Is it late?"""

        promise: int
        """How late."""

        def rule(self, rows: Rows) -> Iterator[Verdict]:  # type: ignore[override]
            return iter(())

    yield LateOne
    del CHECKS[LateOne.case()]


def test_a_check_of_a_conftest_has_its_own_key(late: type[Check]) -> None:
    assert late in catalogue("preflight")
    page = {"preflight": {"late": 3}}
    criteria = Spec.model_fields["criteria"].annotation.model_validate(page)  # type: ignore[union-attr]
    assert criteria.preflight.late == 3
    assert late.case() == "test_late_one"


@pytest.mark.parametrize(
    ("key", "doc", "words"),
    [
        ("late", "Is it late?", "accepted: preflight.NAME"),
        ("devices.late.by", "Is it late?", "on a world; accepted: preflight.NAME on a node or"),
        ("preflight.late", "It is late.", "begins with no question"),
    ],
)
def test_what_is_no_check_is_refused_in_one_line(key: str, doc: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(key)(type("Late", (Check,), {"__doc__": doc}))


def test_rows_say_what_they_have() -> None:
    assert Row(metric="x", value=3.0, unit="GB").shown == "3 GB"
    assert Row(metric="x", why="gone").shown == "gone"


class _Faulty(WorldCheck):
    """Does it hold?"""

    key = "devices.faulty"

    def measure(self, world: Any, device: Any) -> Iterator[float]:
        yield math.nan

    def rule(self, found: float) -> Iterator[Measurement]:
        if self.promise == "raise":
            raise ValueError("an error\nof two lines")
        yield Measurement("rate", found, "GB/s", at_least(1.0))

    def to_rows(self, found: float) -> Iterator[Row]:
        yield row("rate", found, "GB/s")


@pytest.mark.parametrize("promise", ["raise", "keep"])
def test_a_check_that_is_wrong_itself_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    """And NaN, which JSON lacks, does not fail the test that measured it."""
    monkeypatch.setattr(world_check, "promised", lambda *_: promise)
    monkeypatch.setattr(ranks, "of_first_rank", lambda value: value)
    world: Any = SimpleNamespace(rank=0)
    kept, charts = list[Measurement](), list[Chart]()
    measure = Measure(kept, "", charts)
    world_check.judge(_Faulty, "", world, torch.device("cpu"), profile_spec("rack"), measure)
    [found], [chart] = kept, charts
    assert found.verdict is Verdict.INCONCLUSIVE
    words = r"its rule raised ValueError: an error of two lines \(test_check.py, line \d+\)"
    assert (re.match(words, found.note) is not None) == (promise == "raise")
    assert isinstance(chart, MeasuredRows)
    assert [one.why for one in chart.rows] == ["read nan"]


def test_the_order_of_checks_does_not_depend_on_what_was_imported_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first check that fails is named as the reason why others did not run."""
    every = catalogue()
    turned = dict(reversed([item for item in CHECKS.items() if item[1] in every]))
    by_module = [one for module in dict.fromkeys(one.__module__ for one in turned.values())
                 for one in CHECKS.values() if one.__module__ == module]  # fmt: skip
    monkeypatch.setattr(evidence_check, "CHECKS", {one.case(): one for one in by_module})
    assert catalogue() == every
