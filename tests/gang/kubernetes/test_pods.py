"""Records of gangs from recorded pods of Kubernetes 1.37.1 (pods.json)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.kubernetes.engine import records_of
from pytest_mnode.gang.kubernetes.pods import GANG_LABEL, GangPod, RootState, record_of

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("pods.json").read_text())
RUNS, OVER = RootState("Admitted"), RootState("Complete", over=True)


def pods(*states: str) -> list[GangPod]:
    """Pods of one gang in recorded states, each on a separate node."""
    made = []
    for number, state in enumerate(states):
        pod = copy.deepcopy(RECORDED[state])
        pod["metadata"]["name"] = f"p{number}"
        pod["metadata"]["labels"][GANG_LABEL] = "g"
        if "nodeName" in pod["spec"]:
            pod["spec"]["nodeName"] = f"n{number}"
        made.append(GangPod.read(pod))
    return made


@pytest.mark.parametrize(
    ("root", "states", "phase", "nodes"),
    [
        (RUNS, (), Phase.WAITING, ()),
        (RUNS, ("waiting", "waiting"), Phase.WAITING, ()),
        (RUNS, ("bound", "waiting"), Phase.HOLDING, ("n0",)),
        (RUNS, ("running", "bound"), Phase.HOLDING, ("n0", "n1")),
        (RUNS, ("running", "succeeded"), Phase.ENDING, ("n0",)),
        (RUNS, ("running", "terminating"), Phase.ENDING, ("n0", "n1")),
        (RUNS, ("failed", "terminating"), Phase.ENDING, ("n1",)),
        (RUNS, ("succeeded", "succeeded"), Phase.ENDING, ()),
        (OVER, ("succeeded", "succeeded"), Phase.OVER, ()),
        (OVER, ("succeeded", "terminating"), Phase.ENDING, ("n1",)),
        (None, ("running", "terminating"), Phase.ENDING, ("n0", "n1")),
        (None, ("failed",), Phase.OVER, ()),
        # A part of the gang was removed, and waits again.
        (RUNS, ("running", "terminating", "waiting"), Phase.HOLDING, ("n0",)),
        (RUNS, ("terminating", "waiting"), Phase.ENDING, ("n0",)),
        # A rank of half a gang has ended: the ranks run one after another.
        (RUNS, ("succeeded", "waiting"), Phase.WAITING, ()),
        (RUNS, ("succeeded", "running", "waiting"), Phase.HOLDING, ("n1",)),
    ],
)
def test_state_of_a_gang_from_its_pods(
    root: RootState | None, states: tuple[str, ...], phase: Phase, nodes: tuple[str, ...]
) -> None:
    record = record_of("g", root, pods(*states))
    assert record is not None
    assert (record.phase, record.nodes) == (phase, nodes)


def test_reasons_of_server_and_controllers_are_kept() -> None:
    record = record_of("g", RUNS, pods("running", "waiting", "waiting", "bound"))
    assert record is not None
    why = RECORDED["waiting"]["status"]["conditions"][0]["message"].partition(". ")[0]
    assert record.status == f"Admitted: 2 Pending + 1 Pending on a node + 1 Running ({why})"
    record = record_of("g", OVER, pods("succeeded"))
    assert record is not None
    assert record.status == "Complete"


def test_the_state_of_the_owner_object() -> None:
    failed = record_of("g", RootState("Failed", over=True, failed=True, restarts=2), [])
    assert failed is not None
    assert (failed.phase, failed.failed, failed.restarts) == (Phase.OVER, True, 2)
    blocked = record_of("g", RootState(blocked=True), [])
    assert blocked is not None
    assert blocked.blocked
    running = record_of("g", RootState(blocked=True), pods("running"))
    assert running is not None
    assert not running.blocked


def test_a_gang_without_objects() -> None:
    assert record_of("g", None, []) is None
    some = {pod.name: pod for pod in pods("running")}
    assert records_of({"g": RUNS, "h": OVER}, some).keys() == {"g", "h"}
    assert records_of({}, some)["g"].phase is Phase.ENDING
