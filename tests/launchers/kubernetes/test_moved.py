"""A replacement pod that starts on another node: its old node is not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.kubernetes import launcher as module
from pytest_mnode.launchers.kubernetes.launcher import Kubernetes
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.run_pods import RunPods
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.inventory import Power
from tests.launchers.kubernetes.test_run_pods import pod

MOVED = (
    "^n1 has no pod any more: its new pod c is on n3; "
    "nodeAffinity in the template keeps pods on their nodes$"
)
FIRST = pod("a", "n1", index=0)
ASTRAY = pod("c", "n3", index=0)


class Run:
    """A launcher of two nodes, n1 and n2, and the reports of the bridge to it."""

    def __init__(self, directory: Path) -> None:
        spec = profile_spec("rack")
        on = f"touch {directory}/on-{{node}}"
        section = Power.model_validate({"switch_off": "true {node}", "switch_on": on})
        spec = spec.model_copy(update={"power": section})
        options = RemoteOptions(str(directory), directory)
        self.launcher = Kubernetes(
            2, spec, options, Settings(k8s_image="i"), leftovers=KubernetesBackend().leftovers
        )
        self.launcher._hosts_by_name = {"n1": "0", "n2": "1"}
        self.launcher.nodes = (Node("n1", 0, "at-n1"), Node("n2", 1, "at-n2"))
        self.pods = RunPods(2)
        for one in (FIRST, pod("b", "n2", index=1)):
            self.hear(one)

    def hear(self, pod: PodState, *, deleted: bool = False) -> None:
        for event in self.pods.heard(pod, deleted=deleted):
            self.launcher._hear(event)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def instead_of_waiting(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Actions that replace the launcher's wait, after which it must not wait again."""
    left = list(steps)

    def wait(_: float) -> None:
        assert left, "the launcher waits although nothing will change"
        left.pop(0)()

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=wait)
    monkeypatch.setattr(module, "time", clock)


def test_a_moved_pod_is_named_at_once_with_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.hear(FIRST, deleted=True)
    instead_of_waiting(monkeypatch, lambda: run.hear(ASTRAY))
    with pytest.raises(ClusterError, match=MOVED):
        run.launcher.ask(PowerOn("n1"))
    with pytest.raises(ClusterError, match=MOVED):
        run.launcher.ask(PowerOn("n1"))
    with pytest.raises(NodeLostError, match=r"^n1 is unavailable: its new pod c is on n3$"):
        run.launcher.commands(run.launcher.nodes, ["true"])


def test_a_node_that_was_switched_off_is_switched_on(run: Run, tmp_path: Path) -> None:
    run.launcher.ask(PowerOff("n1"))
    run.hear(FIRST, deleted=True)
    run.hear(ASTRAY)
    with pytest.raises(ClusterError, match=MOVED):
        run.launcher.ask(PowerOn("n1"))
    assert (tmp_path / "on-n1").exists()


def test_a_pod_that_returns_to_its_node_is_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.hear(FIRST, deleted=True)
    run.hear(ASTRAY)
    run.hear(ASTRAY, deleted=True)
    instead_of_waiting(monkeypatch, lambda: run.hear(pod("d", "n1", index=0)))
    monkeypatch.setattr(run.launcher, "_reports", lambda _: ({"0": SimpleNamespace()}, {}))
    monkeypatch.setattr(run.launcher, "_open", lambda *_: {})
    run.launcher.ask(PowerOn("n1"))
    assert run.launcher.commands(run.launcher.nodes, ["true"])


@pytest.mark.parametrize("event", ["lost", "broken"])
def test_nothing_is_started_in_a_pod_that_is_lost(run: Run, event: str) -> None:
    told: list[tuple[str, str]] = []
    run.launcher.watch(lambda *lost: told.append(lost))
    for _ in range(2):
        run.launcher._hear({event: "0", "why": "OOMKilled"})
    with pytest.raises(NodeLostError, match="OOMKilled"):
        run.launcher.commands(run.launcher.nodes, ["true"])
    run.launcher._watchers.close()
    run.launcher._watchers._run()
    assert told == [("n1", "OOMKilled")]


def test_the_first_reason_of_a_lost_pod_counts_until_it_is_back(run: Run) -> None:
    [n1, _] = run.launcher.nodes
    back = {"back": "0", "node": "n1", "pod": "d", "address": "at-n1"}
    found = []
    for events in (["OOMKilled", "deleted"], ["evicted"]):
        for why in events:
            run.launcher._hear({"lost": "0", "why": why})
        found.append(run.launcher._problem_with(n1, 0.0))
        run.launcher._hear(back)
    assert found == ["OOMKilled", "evicted"]
