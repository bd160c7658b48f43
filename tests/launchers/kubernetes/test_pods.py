"""Pods as the API server describes them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.launchers.kubernetes.api import refusal
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.streams import status_of
from pytest_mnode.launchers.remote.node_command import LOST


def read(status: dict[str, Any], **metadata: Any) -> PodState:
    pod = {"metadata": {"name": "p", "uid": "u", **metadata}, "spec": {"nodeName": "n1"}}
    return PodState.read({**pod, "status": status})


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "c", "state": state}]}


def test_a_running_pod() -> None:
    label = {"batch.kubernetes.io/job-completion-index": "3"}
    pod = read({"phase": "Running", "podIP": "10.1.1.1", **container(running={})}, labels=label)
    assert (pod.ready, pod.index, pod.node, pod.address) == (True, 3, "n1", "10.1.1.1")
    assert (pod.problem, pod.over, pod.hopeless) == ("", "", False)


def test_the_reason_given_by_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    pod = read({"phase": "Pending", "conditions": [condition]})
    assert (pod.ready, pod.problem, pod.hopeless) == (False, "0/4 nodes are available", False)


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [("ImagePullBackOff", False), ("ErrImageNeverPull", True), ("ContainerCreating", False)],
)
def test_the_reason_given_by_the_kubelet(reason: str, hopeless: bool) -> None:
    waiting = {"reason": reason, "message": "no such image"}
    pod = read({"phase": "Pending", **container(waiting=waiting)})
    assert pod.hopeless is hopeless
    assert pod.problem == ("" if reason == "ContainerCreating" else f"c: {reason}: no such image")


def test_a_finished_init_container_hides_no_problem() -> None:
    done = {"name": "istio-init", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    waiting = {"reason": "CreateContainerConfigError", "message": "no secret"}
    pod = read({"phase": "Pending", "initContainerStatuses": [done], **container(waiting=waiting)})
    assert (pod.problem, pod.hopeless) == ("c: CreateContainerConfigError: no secret", True)


OOM = {"reason": "OOMKilled", "exitCode": 137}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "message": "by job b"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (container(terminated=OOM), "its container was killed for memory (OOMKilled)"),
        ({"reason": "Evicted", "message": "memory"}, "its pod ended: Evicted: memory"),
        (container(terminated={"exitCode": 137}), "its pod ended with status 137 (SIGKILL)"),
        ({"phase": "Running", "conditions": [PREEMPTED]}, "its pod was disrupted: by job b"),
    ],
    ids=["memory", "evicted", "killed", "preempted"],
)
def test_the_reason_why_a_pod_ended(status: dict[str, Any], why: str) -> None:
    pod = read({"phase": "Failed", **status})
    assert (pod.over, pod.ready) == (why, False)


def beside(main: dict[str, Any], other: dict[str, Any], again: str) -> PodState:
    """A pod whose main container has another container beside it."""
    train = {"name": "train", "restartCount": 0, **main}
    daemon = {"name": "tcpx-daemon", "restartCount": 0, **other}
    pod = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"nodeName": "n1", "restartPolicy": again},
        "status": {"phase": "Running", "containerStatuses": [train, daemon]},
    }
    return PodState.read(pod, "train")


def test_containers_beside_the_main_one_neither_keep_nor_end_its_node() -> None:
    runs: dict[str, Any] = {"state": {"running": {}}}
    ended = {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    killed = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    lost = beside(ended, runs, "Never")
    assert (lost.ready, lost.over) == (False, "its container ended with status 1")
    assert beside(ended, runs, "OnFailure").over == ""
    kept = beside(runs, killed, "Never")
    assert (kept.ready, kept.over) == (True, "")
    again = beside(runs, {**runs, "restartCount": 3}, "OnFailure")
    assert (again.uid, again.ready) == (kept.uid, True)


def test_before_1_28_the_index_is_only_an_annotation() -> None:
    note = {"batch.kubernetes.io/job-completion-index": "3"}
    assert read({"phase": "Pending"}, annotations=note).index == 3


def test_a_pod_being_deleted_has_ended() -> None:
    running = {"phase": "Running", **container(running={})}
    assert read(running, deletionTimestamp="2026-01-01T00:00:00Z").over == "its pod was deleted"


def test_statuses_of_commands() -> None:
    failed = b"""{"status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 7",
                  "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}"""
    missing = b'{"status": "Failure", "message": "exec: \\"py\\": executable file not found"}'
    assert status_of(b'{"status": "Success"}') == (0, "")
    assert status_of(failed) == (7, "")
    assert status_of(missing) == (127, 'exec: "py": executable file not found')
    assert status_of(b"no JSON") == (LOST, "no JSON")


def test_refusals_are_one_line() -> None:
    body = b'{"kind": "Status", "message": "jobs.batch is forbidden:\\n no quota"}'
    assert refusal(403, body) == "jobs.batch is forbidden: no quota"
    assert refusal(502, b"<html>bad gateway</html>") == "HTTP status 502: <html>bad gateway</html>"


def test_a_restart_of_the_container_counts() -> None:
    def restarted(count: int, **ended: Any) -> PodState:
        last = {"lastState": {"terminated": ended}} if ended else {}
        status = {"name": "c", "state": {"running": {}}, "restartCount": count, **last}
        return read({"phase": "Running", "containerStatuses": [status]})

    before, after = restarted(0), restarted(1, reason="OOMKilled", exitCode=137)
    assert before.uid != after.uid
    assert (after.ready, after.over) == (True, "")
    assert after.before == "its container was killed for memory (OOMKilled), and was restarted"
    other = restarted(1, reason="Error", exitCode=143)
    assert other.before == "its container ended with status 143 (SIGTERM), and was restarted"
