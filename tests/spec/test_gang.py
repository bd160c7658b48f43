"""What can be promised of gangs, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mnode.errors import SpecError
from pytest_mnode.spec.gang import GangCriterion
from tests.spec.conftest import Load


def test_what_is_left_out() -> None:
    promised = GangCriterion.model_validate({})
    assert (promised.nodes, promised.among, promised.settle_s) == (None, None, None)
    assert (promised.rounds, promised.waits_s, promised.next_within_s) == (3, 30.0, 60.0)
    assert promised.node_loss is None


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
    ],
)
def test_what_is_refused(page: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GangCriterion.model_validate(page)
    assert message in str(caught.value)


def test_a_gang_needs_a_scheduler(load: Load) -> None:
    with pytest.raises(SpecError, match=r"criteria: gang: promised without a scheduler; accepted"):
        load("  mesh: {}", "  mesh: {}\n  gang: {}")
    spec = load("criteria:\n", "scheduler: {kind: slurm}\ncriteria:\n  gang: {}\n")
    assert spec.promised("gang")
