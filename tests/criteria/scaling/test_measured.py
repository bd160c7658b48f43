"""What the controller makes of a job's output, and ranks of their records."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from pytest_mnode.criteria.scaling.facts import MARK
from pytest_mnode.criteria.scaling.measured import _ended, facts_of
from pytest_mnode.criteria.scaling.recorded import step_of
from pytest_mnode.errors import TimeLimitError, WorldError
from pytest_mnode.jobs import JobEvent, JobResult
from pytest_mnode.reference_job.records import StepRecord, Transfer
from tests.criteria.scaling import made

PARTS = {
    **{"input": 0.001, "forward": 0.1, "backward": 0.2, "exposed": 0.03, "metrics": 0.004},
    **{"optimiser": 0.005, "checkpoint": 0.0, "rest": 0.002},
}
RECORD = StepRecord(
    rank=0,
    world_size=2,
    node="node0",
    pid=1,
    incarnation="0.0",
    step=1,
    epoch=0,
    samples=(1, 2),
    loss=1.0,
    tokens=3,
    lr=0.1,
    rng="",
    began=0.0,
    ended=0.4,
    wall_s=0.342,
    parts=PARTS,
    hidden_s=0.05,
    transfers=(Transfer(100, 0.1, 0.2), Transfer(50, 0.15, 0.25), Transfer(25, 0.3, 0.33)),
)


def test_facts_are_found_in_what_the_first_node_printed() -> None:
    job = made.facts(made.plan(2))
    said = f"a warning\n\n{MARK}{job.to_json()}\n"
    assert facts_of(JobResult({"node0": 0, "node1": 0}, {"node0": said, "node1": ""})) == job


def test_a_job_that_failed_tells_its_last_words_once() -> None:
    said = "Traceback\nRuntimeError: no route to node1\nE123 ChildFailedError:"
    result = JobResult({"node0": 1, "node1": 1}, {"node0": said, "node1": said})
    with pytest.raises(WorldError) as caught:
        facts_of(result)
    text = str(caught.value)
    assert "exit codes node0 1, node1 1" in text
    cause, words = text.split("; read the traceback\n")
    assert "Python error" in cause
    assert words.count("RuntimeError: no route to node1") == 1
    assert "[node0, node1]" in text
    assert "ChildFailedError" not in text


@pytest.mark.parametrize("said", ["", "all went well", f"{MARK}{{}}", f"{MARK}{json.dumps([1])}"])
def test_a_job_that_says_nothing_of_use_is_an_error(said: str) -> None:
    with pytest.raises(WorldError, match="the scaling job"):
        facts_of(JobResult({"node0": 0}, {"node0": said}))


def test_a_step_has_the_parts_of_its_record_and_what_came_after_it() -> None:
    step = step_of(RECORD, 0.350)
    assert step.wall_s == 0.350
    assert (step.compute, step.exposed) == pytest.approx((0.3, 0.034))
    assert step.rest == pytest.approx(0.002 + 0.008)
    assert sum(step.parts) == pytest.approx(step.wall_s)
    assert step.missed == pytest.approx(0)
    assert (step.sent_s, step.hidden_s) == pytest.approx((0.18, 0.05))


def test_what_a_record_leaves_out_is_missed() -> None:
    parts = {**PARTS, "forward": 0.05}
    assert step_of(replace(RECORD, parts=parts), 0.350).missed == pytest.approx(0.05 / 0.350)


def test_transfers_that_nobody_noted_are_not_known() -> None:
    step = step_of(replace(RECORD, transfers=None, hidden_s=None), 0.35)
    assert (step.sent_s, step.hidden_s) == (None, None)


class Hanging:
    """A job one node of which has failed, or none, and the others wait."""

    nodes = ("node0", "node1")

    def __init__(self, *events: JobEvent) -> None:
        self.events = events

    def wait(self, timeout: float) -> JobResult:
        raise TimeLimitError("the job still runs on node0")

    def output(self, node: str) -> str:
        return f"Error: {node} is lost"


def test_who_waits_for_a_failed_node_is_not_waited_for() -> None:
    done = JobEvent(time.time() - 60, "ended", 0, "node0", detail="status 0")
    failed = JobEvent(time.time() - 60, "ended", 0, "node1", detail="status 1")
    with pytest.raises(WorldError, match=r"the scaling job failed on node1 \(status 1\):\n"):
        _ended(cast(Any, Hanging(done, failed)), 3600)


def test_a_job_without_end_is_ended_by_its_limit() -> None:
    with pytest.raises(TimeLimitError, match="job was not over after 0") as caught:
        _ended(cast(Any, Hanging()), 0.01)
    assert "[node1]\nError: node1 is lost" in str(caught.value)
