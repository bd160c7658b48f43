"""What Slurm says of an allocation is told once, and a Slurm that is silent says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from pytest_mnode.launchers.node import Watchers
from pytest_mnode.launchers.slurm import JobState, NodeState, Slurm, SlurmError
from pytest_mnode.launchers.slurm import allocation_state as module
from pytest_mnode.launchers.slurm.allocation import Surrounding
from pytest_mnode.launchers.slurm.allocation_state import Watch

NAMES = {"host0": "n0", "host1": "n1"}


class Told(Slurm):
    """A Slurm that says what it is given, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answer: JobState | None = JobState(7, "x", "RUNNING", nodes=("n0", "n1"))
        self.states = {name: NodeState(name, "ALLOCATED") for name in NAMES.values()}
        self.silent = False

    def job(self, job_id: int) -> JobState | None:
        self.asked += 1
        if self.silent:
            raise SlurmError("scontrol", None, "no answer in 20 s")
        return self.answer

    def nodes(self, names: object = ()) -> tuple[NodeState, ...]:
        return tuple(self.states.values())


class Ended(Surrounding):
    why: str | None = None

    def gone(self) -> str | None:
        return self.why


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return Told()


@pytest.fixture
def allocation() -> Ended:
    return Ended({})


Lost = list[tuple[str, str]]


@pytest.fixture
def watch(slurm: Told, allocation: Ended) -> Iterator[Watch]:
    watch = Watch(slurm, allocation, 7, Watchers("watch"))
    yield watch
    watch.close()


@pytest.fixture
def lost(watch: Watch) -> Lost:
    found: Lost = []
    watch._watchers.add(lambda *loss: found.append(loss))
    watch.start(NAMES)
    return found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_loss_is_told_once(slurm: Told, watch: Watch, lost: Lost) -> None:
    until(lambda: slurm.asked > 3)
    assert lost == []
    slurm.states["n1"] = NodeState("n1", "DOWN", reason="Not responding")
    until(lambda: bool(lost))
    asked = slurm.asked
    until(lambda: slurm.asked > asked + 3)
    assert lost == [("host1", "Slurm says DOWN: Not responding")]
    assert watch.why_gone("host1") == "Slurm says DOWN: Not responding"
    assert watch.why_gone("host0") is None


def test_a_silent_slurm_says_nothing(slurm: Told, lost: Lost) -> None:
    slurm.silent = True
    asked = slurm.asked
    until(lambda: slurm.asked > asked + 3)
    assert lost == []
    slurm.silent, slurm.answer = False, None
    until(lambda: len(lost) == 2)
    assert lost[0] == ("host0", "allocation 7 ended: it is unknown to Slurm")


def test_a_node_that_was_switched_off_is_no_news(slurm: Told, watch: Watch, lost: Lost) -> None:
    watch.note("host1", "powered off")
    slurm.states["n1"] = NodeState("n1", "DOWN")
    asked = slurm.asked
    until(lambda: slurm.asked > asked + 3)
    assert lost == []
    assert watch.why_gone("host1") == "powered off"
    slurm.states["n1"] = NodeState("n1", "ALLOCATED")
    watch.note("host1", None)
    assert watch.why_gone("host1") is None


def test_an_allocation_that_ended(allocation: Ended, lost: Lost) -> None:
    allocation.why = "job has been revoked"
    until(lambda: len(lost) == 2)
    assert {why for _, why in lost} == {"allocation 7 ended: job has been revoked"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (JobState(7, "x", "TIMEOUT", reason="TimeLimit"), "TIMEOUT (TimeLimit)"),
        (JobState(7, "x", "COMPLETING", reason="TimeLimit"), "COMPLETING (TimeLimit)"),
        (JobState(7, "x", "COMPLETING"), "job has been revoked"),
        (None, "job has been revoked"),
    ],
)
def test_why_an_allocation_ended_is_slurms_to_say(
    slurm: Told, allocation: Ended, watch: Watch, answer: JobState | None, why: str
) -> None:
    allocation.why = "job has been revoked"
    slurm.answer = answer
    watch._names = NAMES
    assert watch._found() == dict.fromkeys(NAMES, f"allocation 7 ended: {why}")
    slurm.silent = True
    assert watch._found() == dict.fromkeys(NAMES, "allocation 7 ended: job has been revoked")
