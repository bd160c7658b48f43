"""The charts of the scaling curve and of the loss show the judged values."""

from __future__ import annotations

import pytest

from pytest_mnode.charts import Bars, Lines
from pytest_mnode.criteria.scaling.table import charts
from tests.criteria.scaling import made


def test_charts_show_the_judged_curve_and_loss() -> None:
    plan = made.plan(4)
    found = made.judged(made.timings(plan, own=made.slow_on("node3", input=0.06)))
    curve, lost = charts(found)
    assert isinstance(curve, Lines)
    assert isinstance(lost, Bars)
    measured = made.measured(found)
    assert dict(curve.series[0].points) == {
        1: 1.0,
        **{n: measured[f"efficiency, {n} nodes"].value for n in (2, 4)},
    }
    assert {level.value for level in curve.levels} == {found.counts[-1].bound}
    assert lost.labels == ("2 nodes", "4 nodes")
    parts = {part.name: part.values for part in lost.parts}
    assert parts["input"][1] == measured["input, 4 nodes"].value
    total_ms = found.counts[-1].row.lost_s * 1e3
    assert sum(values[1] for values in parts.values()) == pytest.approx(total_ms, rel=0.05)
