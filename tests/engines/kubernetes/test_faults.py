"""Pods and nodes that fail in the middle of a run: named, and recovered where possible."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.inside import start_pytest
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.inner import InnerRun, write_files

LATE_S = 30.0
"""Heartbeats time out after 6 s; the API server needs time to delete a pod."""
REPORTED = """
    from pathlib import Path

    def pytest_runtest_logreport(report):
        if report.when == "call":
            Path(f"over-{report.nodeid.rpartition('::')[2]}").touch()
"""
TESTS = """
    import time
    from pathlib import Path
    import pytest

    @pytest.mark.parametrize("fault", FAULTS)
    def test_hangs(world, fault):
        if world.rank == 0:
            Path(f"begun-test_hangs[{fault}]").touch()
        time.sleep(120)

    def test_memory(world):
        if world.rank == 1:
            eaten = b"x" * (2 << 30)

    def test_in_the_end(world):
        assert world.size == 4
"""


def pod_on(bed: KubernetesOnRack, node: str) -> str:
    pods = bed.get("pods", f"--field-selector=spec.nodeName={node}")["items"]
    [name] = [p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"]
    return str(name)


def delete(bed: KubernetesOnRack) -> None:
    bed.kubectl("delete", "pod", pod_on(bed, "node1"), "--wait=false")


def evict(bed: KubernetesOnRack) -> None:
    name = pod_on(bed, "node2")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    bed.kubectl("create", "--raw", path, "-f", "-", stdin=None, input=json.dumps(eviction))


FAULTS: dict[str, tuple[Callable[[KubernetesOnRack], None], Callable[[KubernetesOnRack], None]]] = {
    "cable": (lambda bed: bed.set_links("node3", False), lambda bed: bed.set_links("node3", True)),
    "deleted": (delete, lambda _: None),
    "evicted": (evict, lambda _: None),
    "kubelet": (lambda bed: bed.kill_daemon("node0"), lambda bed: bed.start_kubelet("node0")),
    # A second failure on one node would delay its pod by 20 s.
    "power": (lambda bed: bed.power_off("node3"), lambda bed: bed.power_on("node3")),
    "api server": (lambda bed: bed.kill_daemon("apiserver"), lambda bed: bed.start_api_server()),
}
"""Faults in this order."""
FAILURES = {
    "test_hangs[cable]": "node3 is lost: the connection was lost: no data for 6 s",
    "test_hangs[deleted]": "node1 is lost: its pod was deleted",
    "test_hangs[evicted]": "node2 is lost: its pod was disrupted: Eviction API: evicting",
    "test_hangs[kubelet]": "node0 is lost: ",
    "test_hangs[power]": "node3 is lost: the connection was lost: no data for 6 s",
    "test_hangs[api server]": "the API server closed the exec stream",
    "test_memory": "killed by SIGKILL by the kernel: out of memory",
}
"""What is reported of each."""


def test_each_fault_is_named_and_the_run_goes_on(bed: KubernetesOnRack, tmp_path: Path) -> None:
    text = TESTS.replace("FAULTS", repr(list(FAULTS)))
    write_files(tmp_path, conftest=REPORTED, test_faults=text)
    options = bed.launch(tmp_path, hostNetwork=True)
    manifest: Any = json.loads((tmp_path / "pods.json").read_text())
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    (tmp_path / "pods.json").write_text(json.dumps(manifest))
    program = start_pytest(bed, tmp_path, "-v", "--mnode-nodes=4", *options)

    def reached(name: str, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not (tmp_path / name).exists():
            if program.poll() is not None or time.monotonic() > end:
                program.terminate()
                pytest.fail(f"no {name}:\n{program.communicate()[0]}")
            time.sleep(0.1)

    try:
        for name, (begin, end) in FAULTS.items():
            reached(f"begun-test_hangs[{name}]", 90)
            begin(bed)
            try:
                reached(f"over-test_hangs[{name}]", LATE_S)
            finally:
                end(bed)
        output, _ = program.communicate(timeout=90)
    finally:
        program.kill()
    run = InnerRun(program.returncode, output, tmp_path / "junit.xml")
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 30, "no job, no pod")
    failures = {
        name: "".join(str(failure.text) for failure in case.iter("failure"))
        for name, case in run.cases().items()
    }
    for test, message in FAILURES.items():
        assert message in failures[test], run.output
    assert set(failures) - set(FAILURES) == {"test_in_the_end"}
    assert run.outcomes()["test_in_the_end"] == "passed", run.output
