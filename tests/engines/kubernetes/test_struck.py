"""Faults of pods, kubelets and the API server while gangs are watched: named within seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_mnode.gang.window import BLIND_S
from tests.engines.kubernetes import struck
from tests.engines.kubernetes.bed import KubernetesOnRack

Act = Callable[[KubernetesOnRack, list[str]], None]


def delete(bed: KubernetesOnRack, nodes: list[str]) -> None:
    there = bed.get("pods", f"--field-selector=spec.nodeName={nodes[0]}")["items"]
    bed.kubectl("delete", "pod", *(pod["metadata"]["name"] for pod in there), "--wait=false")


def cut(bed: KubernetesOnRack, nodes: list[str]) -> None:
    bed.kill_daemon(nodes[0])
    bed.set_links(nodes[1], False)


def mend(bed: KubernetesOnRack, nodes: list[str]) -> None:
    bed.start_kubelet(nodes[0])
    bed.set_links(nodes[1], True)
    bed.await_ready()


def end_server(bed: KubernetesOnRack, nodes: list[str]) -> None:
    bed.kill_daemon("apiserver")
    time.sleep(BLIND_S)


def start_server(bed: KubernetesOnRack, nodes: list[str]) -> None:
    bed.start_api_server()
    bed.await_that(bed.answers, 60, "the API server is back")


FAULTS: dict[str, tuple[Act, Act]] = {
    "deleted": (delete, lambda *_: None),
    "server": (end_server, start_server),
    "kubelet-and-cable": (cut, mend),
}
SIGNS = {"kubelet-and-cable": 2}
"""Number of signs of a fault, if not 1: each node is reported by itself."""


@pytest.fixture(scope="module")
def found(
    bed: KubernetesOnRack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("struck")
    bed.launch(directory, hostNetwork=True)
    faults = [f"{name}={SIGNS.get(name, 1)}" for name in FAULTS]
    argv = [struck.__file__, str(directory / "pods.json"), str(directory), *faults]
    program = bed.start(sys.executable, *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def reached(name: str) -> None:
        end = time.monotonic() + 180
        while not (directory / name).exists():
            if program.poll() is not None or time.monotonic() > end:
                program.kill()
                pytest.fail(f"no {name}: {program.communicate()}")
            time.sleep(0.1)

    try:
        for name, (begin, end) in FAULTS.items():
            reached(f"begin-{name}")
            nodes = json.loads((directory / f"begin-{name}").read_text())
            begin(bed, nodes)
            try:
                (directory / f"begun-{name}").touch()
                reached(f"end-{name}")
            finally:
                end(bed, nodes)
            (directory / f"ended-{name}").touch()
        printed, errors = program.communicate(timeout=180)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    print(printed)
    yield json.loads(printed)
    kinds = "jobs.batch,pods,podgroups.scheduling.k8s.io"
    bed.await_that(lambda: bed.get(kinds)["items"] == [], 60, "no job, no pod, no PodGroup")


def test_a_deleted_pod_ends_the_whole_gang(found: dict[str, Any]) -> None:
    one = found["deleted"]
    assert "Failed (BackoffLimitExceeded)" in one["signs"], one
    assert one["verdict"] == "pass", one


def test_nodes_that_lost_their_kubelet_or_cable_are_named(found: dict[str, Any]) -> None:
    """Their ranks keep running, and their heartbeats of that time are read later."""
    one = found["kubelet-and-cable"]
    for node in one["nodes"][:2]:
        why = f"{node}: not ready: Kubelet stopped posting node status."
        assert why in one["others"], one
    assert one["heard_meanwhile"] == one["nodes"], one


def test_without_the_api_server_verdicts_are_inconclusive(found: dict[str, Any]) -> None:
    one = found["server"]
    assert one["verdict"] == "inconclusive", one
    assert "gave no answer for " in one["note"], one
    assert "was not reached" in one["note"], one
    assert one["heard_meanwhile"] == one["nodes"], one
