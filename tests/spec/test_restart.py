"""What can be promised of a job that is killed, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mnode.spec.restart import KILLS, RestartCriterion


def test_what_is_left_out() -> None:
    promised = RestartCriterion.model_validate({"within": "60 s"})
    assert promised.kills == KILLS
    assert (promised.within_s, promised.grace_s, promised.tolerance) == (60.0, 30.0, 0.0)
    assert promised.node_loss == "spare"
    assert promised.resharded_tolerance is None
    assert promised.checkpoint_within_s is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"within": 60}, "60 has no unit"),
        ({"kills": []}, "at least 1 item"),
        ({"kills": ["rank", "rank"]}, "kills names one twice; accepted: each of rank, node,"),
        ({"kills": ["power"]}, "'rank', 'node', 'preemption' or 'checkpoint'"),
        ({"node_loss": "none"}, "'spare', 'fewer' or 'rebooted'"),
        ({"node_loss": "fewer"}, "accepted: with resharded_tolerance, such as 0.01"),
        ({"tolerance": 1.0}, "less than 1"),
        ({"tolerance": -0.1}, "greater than or equal to 0"),
        ({"resharded_tolerance": 0}, "greater than 0"),
        ({"steps": 17}, "greater than or equal to 18"),
        ({"width": 30}, "width 30; accepted: a multiple of 4"),
        ({"checkpoints": 1}, "not permitted"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RestartCriterion.model_validate({"within": "60 s", **change})
    assert message in str(caught.value)


def test_fewer_nodes_go_with_a_tolerance() -> None:
    page = {"within": "60 s", "node_loss": "fewer", "resharded_tolerance": 0.001}
    assert RestartCriterion.model_validate(page).node_loss == "fewer"
    # Where no node is lost, nothing is resharded.
    page = {"within": "60 s", "node_loss": "fewer", "kills": ["rank"]}
    assert RestartCriterion.model_validate(page).kills == ("rank",)
