"""What can be promised of a job that is killed, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mnode.spec import Spec, default_spec_path, doubts, load_spec
from pytest_mnode.spec.inventory import Storage
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


def doubtful(change: dict[str, Any], **fields: Any) -> list[str]:
    """What is doubted of the rack's page with this promise, and of nothing else."""
    promise = RestartCriterion.model_validate({"within": "60 s", **change})
    rack = load_spec(default_spec_path())
    criteria = rack.criteria.model_copy(update={"restart": promise})
    spec: Spec = rack.model_copy(update={"criteria": criteria, **fields})
    return [line for line in doubts(spec) if line.startswith("criteria.restart")]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"tolerance": 0.06}, "criteria.restart.tolerance: 0.06 is more than 0.05"),
        ({"resharded_tolerance": 0.99}, "criteria.restart.resharded_tolerance: 0.99 is more than"),
    ],
)
def test_doubts_a_tolerance_that_another_job_would_meet(change: dict[str, Any], line: str) -> None:
    [doubt] = doubtful(change)
    assert doubt.startswith(line)
    assert doubtful(dict.fromkeys(change, 0.05)) == []


@pytest.mark.parametrize(
    ("storage", "doubted"),
    [(None, True), ({"datasets": "/data"}, True), ({"checkpoints": "/shared"}, False)],
)
def test_doubts_a_restart_without_a_directory_for_checkpoints(
    storage: dict[str, str] | None, doubted: bool
) -> None:
    paths = None if storage is None else Storage.model_validate(storage)
    found = doubtful({}, storage=paths, emulated=())
    assert [line.rpartition(": ")[0] for line in found] == [
        "criteria.restart: promised, and storage.checkpoints names no directory that all nodes see"
    ] * doubted
    assert doubtful({}, storage=paths) == []  # nodes of one machine share its directories


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({}, 1),
        ({"node_loss": "fewer", "resharded_tolerance": 0.01}, 1),
        ({"node_loss": "rebooted"}, 0),
        ({"kills": ["rank", "preemption"]}, 0),  # these one node comes back from
    ],
)
def test_doubts_that_one_node_goes_on_without_it(change: dict[str, Any], count: int) -> None:
    found = doubtful(change, nodes=1)
    assert len(found) == count
    assert all("node, with node_loss" in line and "for nodes: 1" in line for line in found)
    assert doubtful(change, nodes=2) == []
