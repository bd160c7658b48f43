"""Stored certificates: trends with their spread, repeatedly failing nodes, damaged files."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, Certificate, summary_lines
from pytest_mnode.certificate.difference import MOST_RUNS, Kind, compared, history_of
from pytest_mnode.certificate.files import json_text, parse_certificate
from pytest_mnode.certificate.history import History
from pytest_mnode.certificate.kept import earlier_runs, keep, with_history
from pytest_mnode.certificate.page import page_text
from pytest_mnode.certificate.run_facts import SpecFacts
from pytest_mnode.culprit import Culprit
from pytest_mnode.installed import Fact
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import certify

NIGHT = datetime(2026, 11, 1, 2, 6, tzinfo=UTC)
SPEC = SpecFacts("rack", "rack.yaml", "1f" * 32)


def night(day: int, rate: float | None, culprit: str = "node2") -> Certificate:
    """A run whose only rate has a bound of 100 or more."""
    measured = Measurement("rate", rate, "MB/s", at_least(100), "spec", Culprit.of(culprit))
    return named(day, measured, Measurement("nodes", 4, ""), cluster_nodes=4)


def named(day: int, *measurements: Measurement, of: str = "test_it", **more: Any) -> Certificate:
    """A run of one test with these measurements."""
    case = CaseResult(f"t/test_mesh.py::{of}", "?", "passed", measurements=measurements)
    end = NIGHT + timedelta(days=day)
    facts: dict[str, Any] = {"promised": ["mesh"], "start": end, "end": end, "spec": SPEC, **more}
    return certify(case, **facts)


def after(directory: Path, certificate: Certificate) -> Certificate:
    return with_history(certificate, earlier_runs(directory, certificate.run.spec))


def history(directory: Path, certificate: Certificate) -> History:
    found = after(directory, certificate).history
    assert found is not None
    return found


def test_an_unusual_value_is_separated_from_noise(tmp_path: Path) -> None:
    for day, rate in enumerate([190, 192, 188, 191, 189]):
        keep(tmp_path / "kept", night(day, rate))
    beyond = history(tmp_path / "kept", night(9, 170))
    [trend, steady] = history(tmp_path / "kept", night(9, 187)).trends
    assert (trend.usual, trend.changed, trend.values[-1]) == (190, False, 187)
    assert (steady.spread, steady.changed) == (0, False)
    [trend, _] = beyond.trends
    assert trend.changed
    assert str(trend) == "rate 170 MB/s (-10.5%), usually 190 ± 4.4"
    assert list(beyond.lines()) == [
        "history: 6 runs since 2026-11-01",
        "unusual: rate 170 MB/s (-10.5%), usually 190 ± 4.4",
        "since 2026-11-05 02:06: rate: 189 MB/s → 170 MB/s (-10.1%), spread 2.4%, worse",
    ]


@pytest.mark.parametrize(
    ("unit", "usual", "now", "changed"),
    [
        ("ms", 9.99, 10.0, False),
        ("ms", 10.0, 9.99, False),
        ("ms", 0.7, 0.8, False),  # 0.1, and by rounding a little more
        ("ms", 9.99, 10.1, True),
        ("MB/s", 190, 191, False),
        ("MB/s", 190, 192, True),
        ("", 4, 3, True),  # the measurement is a count
        ("", 0.25, 0.26, False),
    ],
)
def test_a_difference_in_the_last_digit_is_no_change(
    unit: str, usual: float, now: float, changed: bool
) -> None:
    runs = [
        named(day, Measurement("it", value, unit))
        for day, value in enumerate([usual, usual, usual, now])
    ]
    [trend] = history_of(runs[-1], runs[:-1]).trends
    assert trend.changed is changed
    [difference] = compared(runs[-2], replace(runs[-1], history=history_of(runs[-1], runs[:-1])))
    assert (difference.kind is Kind.CHANGE) is changed


@pytest.mark.parametrize("where", [("rank 0 on node0", "rank 1 on node1"), ("", "")])
def test_two_measurements_of_one_name_have_separate_spreads(where: tuple[str, str]) -> None:
    def run(day: int, steady: float, noisy: float) -> Certificate:
        values = zip((steady, noisy), where, strict=True)
        return named(day, *(Measurement("rate", v, "MB/s", where=w) for v, w in values))

    runs = [run(day, 100, noisy) for day, noisy in enumerate([190, 150, 230, 170])]
    now = run(9, 120, 200)
    history = history_of(now, runs)
    labels = [f"rate ({which})" for which in (where if where[0] else ("1 of 2", "2 of 2"))]
    assert [(trend.label, trend.changed) for trend in history.trends] == [
        (labels[0], True),
        (labels[1], False),
    ]
    changes = compared(runs[-1], replace(now, history=history))
    assert [one.kind for one in changes] == [Kind.CHANGE, Kind.NOISE]
    assert str(changes[0]).startswith(f"{labels[0]}: 100 MB/s → 120 MB/s")


def test_a_missing_measurement_is_not_replaced_by_its_neighbour() -> None:
    def run(day: int, *rates: float) -> Certificate:
        return named(day, *(Measurement("rate", rate, "MB/s") for rate in rates))

    runs = [run(day, 100, 200, 300) for day in range(4)]
    assert compared(runs[-1], run(9, 200, 300)) == []
    assert history_of(run(9, 200, 300), runs).trends == ()
    swapped = [
        named(day, *(Measurement("rate", int(w), "MB/s", where=w) for w in order))
        for day, order in enumerate([("100", "200"), ("200", "100")])
    ]
    assert [one.kind for one in compared(*swapped)] == [Kind.SAME, Kind.SAME]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("unit", ["MB/s", ""])
def test_a_value_that_is_not_finite_was_not_measured(
    tmp_path: Path, unit: str, value: float
) -> None:
    for day in range(4):
        keep(tmp_path, named(day, Measurement("it", 4, unit)))
    found = after(tmp_path, named(9, Measurement("it", value, unit)))
    assert found.history is not None
    assert found.history.trends == ()
    assert parse_certificate(json_text(found), "here").history == found.history


def test_a_lasting_fault_does_not_become_normal(tmp_path: Path) -> None:
    for day, rate in enumerate([190, 192, 188, 50, 51, 49, 52]):
        keep(tmp_path, night(day, rate))
    found = history(tmp_path, night(9, 50))
    [trend, _] = found.trends
    assert (trend.usual, trend.changed) == (190, True)


def test_two_earlier_runs_give_no_spread(tmp_path: Path) -> None:
    for day, rate in enumerate([190, 150]):
        keep(tmp_path, night(day, rate))
    found = history(tmp_path, night(2, 120))
    assert [(t.name, t.usual, t.changed) for t in found.trends] == [
        ("rate", None, False),
        ("nodes", None, False),
    ]


def test_repeatedly_failing_nodes_are_listed(tmp_path: Path) -> None:
    for day, (rate, culprit) in enumerate(
        [(50, "node2"), (190, ""), (60, "node1"), (40, Culprit("node2 fab0", "node2"))]
    ):
        keep(tmp_path, night(day, rate, culprit))
    certificate = after(tmp_path, night(4, 190))
    assert certificate.history is not None
    [again] = certificate.history.failing
    assert (again.node, again.failed, again.tested) == ("node2", 2, 5)
    assert again.evidence == "mesh: rate 40 MB/s"
    printed = summary_lines(certificate)
    assert "repeated failures: node2 failed in 2 of 5 runs (last: mesh: rate 40 MB/s)" in printed
    assert parse_certificate(json_text(certificate), "here") == certificate


def test_runs_of_a_node_count_even_without_a_pass(tmp_path: Path) -> None:
    def run(day: int, rate: float) -> Certificate:
        measured = Measurement("rate", rate, "MB/s", at_least(100), "spec", Culprit("node2"))
        promised = ["mesh", "fabric"]  # a criterion that does not run: no node passes it
        return named(day, measured, of="test_it[node2]", promised=promised)

    for day, rate in enumerate([190, 50, 191, 60, 189]):
        keep(tmp_path, run(day, rate))
    found = history(tmp_path, run(5, 70))
    assert [str(node) for node in found.failing] == ["node2 failed in 3 of 6 runs"]
    assert str(found.trends[0]).startswith("rate (node2) 70 MB/s")


def test_a_merged_result_is_not_a_second_failure(tmp_path: Path) -> None:
    first = night(0, 50)
    keep(tmp_path, first)
    known: dict[str, Any] = {"nodes": ("node0",), "cluster_nodes": 4, "earlier": (first.coverage,)}
    second = named(1, Measurement("rate", 190, "MB/s"), **known)
    assert second.coverage.names(first.coverage.nodes[2].state) == ("node2",)
    found = history(tmp_path, second)
    assert found.failing == ()


def test_a_run_of_the_future_is_not_the_run_before(tmp_path: Path) -> None:
    """A clock was a year ahead for one night."""
    for day, rate in ((0, 190), (365, 50), (1, 189)):
        keep(tmp_path, night(day, rate))
    found = history(tmp_path, night(2, 190))
    assert [run.date.day for run in found.runs] == [1, 2, 3]
    assert found.since == ()
    assert list(found.lines())[-1] == (
        "left out of history: 2027-11-01 02:06: it ended after this run: a wrong clock"
    )


def test_another_spec_is_another_history(tmp_path: Path) -> None:
    keep(tmp_path, night(0, 190))
    alike = SPEC.digest[:8] + "0" * 56
    other = replace(night(1, 190).run, spec=replace(SPEC, digest=alike))
    certificate = replace(night(1, 190), run=other)
    found = history(tmp_path, certificate)
    assert len(found.runs) == 1


def test_a_damaged_file_is_named_and_loses_nothing(tmp_path: Path) -> None:
    keep(tmp_path, night(0, 190))
    damaged = keep(tmp_path, night(1, 190))
    damaged.write_text(damaged.read_text()[:300])
    certificate = after(tmp_path, night(2, 190))
    assert certificate.history is not None
    assert len(certificate.history.runs) == 2
    [line] = [line for line in summary_lines(certificate) if "left out of history" in line]
    assert line.startswith(f"left out of history: {damaged}: no JSON (")


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    found = history(tmp_path / "kept", night(0, 190))
    assert list(found.lines())[1:] == [f"left out of history: {tmp_path / 'kept'}: not a directory"]
    assert earlier_runs(tmp_path / "none", SPEC).left_out == ()


def test_old_runs_are_not_modified(tmp_path: Path) -> None:
    for day in range(MOST_RUNS + 5):
        keep(tmp_path, night(day, 190))
    certificate = after(tmp_path, night(99, 190))
    assert certificate.history is not None
    assert len(certificate.history.runs) == MOST_RUNS + 1
    assert json.loads(keep(tmp_path, certificate).read_text())["history"] is None
    assert len(list(tmp_path.iterdir())) == MOST_RUNS + 6


def test_changes_since_the_previous_run_are_on_page_and_terminal(tmp_path: Path) -> None:
    """Installed software, replaced nodes, and a changed value; no value within its noise."""

    def installed(nccl: str) -> tuple[Fact, ...]:
        return (Fact("packages", "NCCL", ((nccl, "node[0-3]"),)),)

    for day, rate in enumerate([190, 192, 188]):
        one = night(day, rate)
        keep(tmp_path, replace(one, installed=installed("2.26.2")))
    now = night(3, 91)
    nodes = ("node0", "node1", "node2", "node9")
    now = replace(now, installed=installed("2.27.3"), run=replace(now.run, nodes=nodes))
    found = after(tmp_path, now)
    assert found.history is not None
    assert list(found.history.since) == [
        "nodes gone: node3",
        "nodes new: node9",
        "packages NCCL: 2.26.2 → 2.27.3",
        "rate: 188 MB/s → 91 MB/s (-51.6%), spread 4.7%, worse, pass → fail",
    ]
    assert any(
        line.startswith("since 2026-11-03 02:06: nodes gone") for line in summary_lines(found)
    )
    page = html.unescape(page_text(found))
    assert "<h3>Changed since 2026-11-03 02:06 UTC</h3>" in page
    for change in found.history.since:
        assert f"<li>{change}</li>" in page
    assert "4 runs since 2026-11-01" in page
    assert "rate: unusual" in page
    assert "rate 91 MB/s (-52.1%), usually 190 ± 8.9" in page
    steady = after(tmp_path, replace(night(3, 189), installed=installed("2.26.2")))
    assert steady.history
    assert steady.history.since == ()
    assert "Changed since" not in page_text(steady)
