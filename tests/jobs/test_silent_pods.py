"""A job's pods that get no node, do not run, take no order, end or fall silent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.kubernetes import in_pod, job_pods, pod_start
from pytest_mnode.jobs.kubernetes.job_pods import JobPods
from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced, Order, PodStart
from pytest_mnode.launchers.node import CommandResult
from tests.waiting import soon


@pytest.fixture(autouse=True)
def _in_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, limits in (
        (pod_start, ("REFUSED_S", "_ORDERED_S", "_ENDED_S")),
        (job_pods, ("_OVER_S", "_PRINTED_S")),
        (in_pod, ("LINGER_S",)),
    ):
        for limit in limits:
            monkeypatch.setattr(module, limit, 0.2)
    with soon():
        yield


class Pods:
    """Pods that never change. by_node: those that have a node."""

    def __init__(self, *on: str) -> None:
        self.by_node = lambda: dict.fromkeys(on)
        self.statuses = dict
        self.refused = self.run = bool
        self._lock = threading.Condition()

    def await_that(self, holds: Callable[[], bool], limit_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(holds, limit_s)

    def problem(self) -> str:
        return "no reason"

    def run_each(self, orders: Any, *, timeout: float, given: Any) -> list[CommandResult]:
        time.sleep(timeout)
        return [CommandResult(node, None, "", "", timeout) for node in orders]

    def output(self, node: str) -> str:
        return ""

    def close(self) -> None: ...


def start(*on: str) -> PodStart:
    made: Any = PodStart.__new__(PodStart)
    made.pods, made._nodes, made._placed_s, made.what = Pods(*on), ("n1",), 0.4, "Job j"
    made._program, made._order_at, made._path = ("python",), "/order", "/path"
    made._api = SimpleNamespace(request=lambda *_: None)
    started: PodStart = made
    return started


def test_pods_that_get_no_node() -> None:
    with pytest.raises(NotPlaced, match=r"beside this run \(no reason\)"):
        start().await_placed()


def test_pods_that_never_run() -> None:
    with pytest.raises(ClusterError, match="Job j: not all pods run: no reason"):
        start("n1").await_run(0.2)


def test_a_pod_that_takes_no_order() -> None:
    with pytest.raises(ClusterError, match=r"n1: its pod took no order: not within 0\.2 s"):
        start("n1").order({"n1": Order(["true"], {}, "/")})


def test_a_pod_that_outlives_its_object() -> None:
    with pytest.raises(ClusterError, match="Job j: its pods still run on n1"):
        start("n1").close()


def test_a_pod_that_ends_after_its_object_is_awaited() -> None:
    made, looks = start("n1"), iter(({}, {"n1": 0}))
    given: Any = made.pods
    given.statuses = lambda: next(looks)
    made.close()
    assert list(looks) == []


@pytest.fixture
def pods() -> JobPods:
    """A pod on n1 that is followed and still runs."""
    made: Any = JobPods.__new__(JobPods)
    made._lock, made._silent, made._followed = threading.Condition(), set(), {"u1": None}
    state = SimpleNamespace(node="n1")
    made._pods = {"u1": SimpleNamespace(state=state, runs=True, ended=False)}
    made._texts = {"u1": ["a line\n"]}
    found: JobPods = made
    return found


def test_a_pod_that_does_not_end_explains_no_failed_command(pods: JobPods) -> None:
    assert not pods._await_end("n1")


def test_the_output_of_a_pod_whose_stream_never_ends(pods: JobPods) -> None:
    pods._pods["u1"].ended = True  # type: ignore[misc]
    assert pods.output("n1") == "a line\n"


def test_processes_beside_an_ended_command_keep_a_pod_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_child(*_: int) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitpid", no_child)
    monkeypatch.setattr(os, "listdir", lambda _: ["1", "7", "8"])
    in_pod.linger()
