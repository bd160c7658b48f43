"""When a node that was switched on is available again: values in place of Slurm and its nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import JobState, NodeState, SlurmError
from pytest_mnode.launchers.slurm.launcher import Slurm

RUNS = JobState(7, "x", "RUNNING", nodes=("n1",))


def _silent(*_: object) -> Any:
    raise SlurmError("scontrol", 1, "Unable to contact slurm controller")


def back(
    state: str,
    flags: tuple[str, ...] = (),
    job: Callable[[int], JobState] = lambda _: RUNS,
    looks: dict[str, str] | None = None,
) -> str | None:
    """The node's problem; `looks`: reports of a step on the node."""
    made = Slurm.__new__(Slurm)
    made.job_id = 7
    node = NodeState("n1", state, frozenset(flags), "fan")
    made.slurm = SimpleNamespace(job=job, nodes=lambda _: (node,))  # type: ignore[assignment]
    seen = {"n1": "host1"} if looks is None else looks
    found = {name: SimpleNamespace(hostname=host) for name, host in seen.items()}
    made._gone, made._lock = {}, threading.Lock()
    made._open = lambda *_: {}  # type: ignore[method-assign]
    made._reports = lambda _: (found, {"n1": "no step"})  # type: ignore[method-assign, assignment, return-value]
    made._hosts_by_name = {"host1": "n1"}
    return made._problem_with(SimpleNamespace(name="host1"), 1.0)  # type: ignore[arg-type]


def test_a_node_that_runs_steps_is_available() -> None:
    assert back("ALLOCATED") is None
    assert back("ALLOCATED", ("DRAIN",)) is None, "its allocation continues"
    assert back("ALLOCATED", looks={}) == "no step"
    assert back("ALLOCATED", looks={"n1": "other"}) == "its host name is now other"


@pytest.mark.parametrize(
    ("state", "flag"), [("ALLOCATED", "NOT_RESPONDING"), ("DOWN", "DRAIN"), ("UNKNOWN", "")]
)
def test_a_node_that_is_silent_to_slurm_is_not_available(state: str, flag: str) -> None:
    reason = back(state, tuple(filter(None, [flag])))
    assert str(reason).startswith(f"Slurm says {state}")


def test_a_query_without_an_answer_is_repeated() -> None:
    assert back("ALLOCATED", job=_silent) == "scontrol: Unable to contact slurm controller"


def test_a_node_removed_from_the_allocation_never_returns() -> None:
    out = JobState(7, "x", "RUNNING", nodes=("n0",))
    with pytest.raises(ClusterError, match="removed it from allocation 7"):
        back("ALLOCATED", job=lambda _: out)


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JobState(7, "x", "CONFIGURING", reason="Prolog"), "; Slurm says CONFIGURING (Prolog)"),
        (
            JobState(7, "x", "CONFIGURING"),
            "; Slurm says CONFIGURING (no reason given)",
        ),
        (RUNS, ""),
        (None, ""),
    ],
    ids=["Prolog", "boots", "runs", "unknown"],
)
def test_a_start_that_takes_too_long_says_what_slurm_waits_for(
    job: JobState | None, text: str
) -> None:
    made = Slurm.__new__(Slurm)
    made.job_id = 7
    made.slurm = SimpleNamespace(job=lambda _: job)  # type: ignore[assignment]
    assert made._waits_for() == text
    made.slurm = SimpleNamespace(job=_silent)  # type: ignore[assignment]
    assert made._waits_for() == ""


@pytest.mark.parametrize(
    ("event", "starts", "slurm_says", "lost"),
    [
        ({"lost": "n1", "why": "cut"}, {}, "", {}),
        (
            {"lost": "n1", "why": "cut"},
            {"n1": "no"},
            "",
            {"host1": "cut; a new step did not start: no"},
        ),
        ({"lost": "n1", "why": "cut"}, {"n1": "no"}, "DOWN", {"host1": "DOWN"}),
        ({"ended": "killed"}, {}, "", {"host1": "the connection to the nodes ended: killed"}),
    ],
    ids=["started-again", "not-started", "reason-of-slurm", "bridge-ended"],
)
def test_a_step_that_ends(
    event: dict[str, str], starts: dict[str, str], slurm_says: str, lost: dict[str, str]
) -> None:
    """It is started again; the node is lost if that fails, and all nodes are with the bridge."""
    made, found = Slurm.__new__(Slurm), dict[str, str]()
    made._gone, made._lock, made._closed = {}, threading.Lock(), False
    made._hosts_by_name, made._starting = {"host1": "n1"}, {}
    made._watchers = SimpleNamespace(lost=found.__setitem__)  # type: ignore[assignment]

    def look() -> None:
        if slurm_says:
            made._slurm_lost("host1", slurm_says)

    made._watch = SimpleNamespace(look=look)  # type: ignore[assignment]
    made._open = lambda *_: starts  # type: ignore[method-assign]
    made._hear(event)
    node: Any = SimpleNamespace(name="host1")
    assert made._why_gone(node) == lost.get("host1"), "a command waits for the new step"
    assert found == lost
