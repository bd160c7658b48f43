"""What can be promised of gangs, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import doubts
from pytest_mnode.spec.gang import GangCriterion
from tests.spec.conftest import Load


def test_what_is_left_out() -> None:
    promised = GangCriterion.model_validate({})
    assert (promised.nodes, promised.among, promised.settle_s) == (None, None, None)
    assert (promised.rounds, promised.waits_s, promised.next_within_s) == (3, 30.0, 60.0)
    assert promised.node_loss is None
    # All ranks run at once, or the test is red.
    assert promised.together_s < promised.runs_s


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"nodes": 1}, "greater than or equal to 2"),
        ({"among": ["node0"]}, "at least 2 items"),
        ({"rounds": 0}, "greater than or equal to 1"),
        ({"waits": 30}, "30 has no unit"),
        ({"settle": "0 s"}, "is zero"),
        ({"node_loss": "kept"}, "'either', 'requeued' or 'cancelled'"),
        ({"partial": True}, "not permitted"),
        ({"runs": "5 s", "together": "5 s"}, "together 5 s is no less than runs 5 s: ranks that"),
        ({"together": "1 h"}, "together 1 h is no less than runs 15 s"),
        ({"clock_skew": "1 h"}, "clock_skew 1 h is no less than runs 15 s: heartbeats would say"),
        ({"nodes": 3, "among": ["a", "b"]}, "nodes 3 is more than the 2 nodes of among; accepted"),
    ],
)
def test_what_is_refused(page: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GangCriterion.model_validate(page)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("promised", "lines"),
    [
        ("{}", []),
        ("{nodes: 3, among: [a, b, c], settle: 2 s, clock_skew: 7 s}", []),
        ("{settle: 1 d}", ["settle: 1 d is no less than runs, 15 s: half a gang that never gets"]),
        (
            "{clock_skew: 8 s}",
            ["clock_skew: 8 s either way is no less than runs, 15 s: ranks that"],
        ),
        ("{waits: 2 s}", ["clock_skew: 1 s either way is no less than waits, 2 s: ranks that run"]),
        (
            "{runs: 100 ms, together: 50 ms, clock_skew: 10 ms}",
            ["runs: 0.1 s is less than 1 s: a gang comes and goes between two looks"],
        ),
    ],
)
def test_what_would_hide_a_fault_is_doubted(load: Load, promised: str, lines: list[str]) -> None:
    spec = load("criteria:\n", f"scheduler: {{kind: slurm}}\ncriteria:\n  gang: {promised}\n")
    found = [one for one in doubts(spec) if one.startswith("criteria.gang")]
    assert len(found) == len(lines), found
    for line, begins in zip(found, lines, strict=True):
        assert line.startswith(f"criteria.gang.{begins}")


def test_a_gang_needs_a_scheduler(load: Load) -> None:
    with pytest.raises(SpecError, match=r"criteria: gang: promised without a scheduler; accepted"):
        load("  mesh: {}", "  mesh: {}\n  gang: {}")
    spec = load("criteria:\n", "scheduler: {kind: slurm}\ncriteria:\n  gang: {}\n")
    assert spec.promised("gang")


def test_a_scheduler_that_cannot_be_used_is_refused_when_the_spec_is_read(load: Load) -> None:
    with pytest.raises(SpecError) as refused:
        load("criteria:\n", "scheduler: {kind: kubernetes}\ncriteria:\n  gang: {}\n")
    assert str(refused.value).endswith("scheduler.kind: 'kubernetes'; accepted: 'slurm'")
