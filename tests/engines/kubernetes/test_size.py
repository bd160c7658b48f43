"""Many pods on fake nodes (kwok): requests, memory and messages of a run and of the gang engine.

MNODE_TEST_PODS=512 tries the promised size; the default is an eighth of it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.kubernetes import sized
from tests.engines.kubernetes.bed import KubernetesOnRack, is_ready
from tests.engines.kubernetes.gang_engines import certificates
from tests.engines.kubernetes.programs import KWOK, ours, source, unavailable

NODES = int(os.environ.get("MNODE_TEST_PODS", "64"))
GANG_SIZE = NODES * 3 // 5
"""Two gangs of this size do not fit."""
FAKE = {"kwok.x-k8s.io/node": "fake"}
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
LOCAL = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "ClusterExec",
    "metadata": {"name": "local"},
    "spec": {"execs": [{"local": {}}]},
}
"""Commands in pods run on the host of kwok."""
STAGES = ("node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete")
POD: dict[str, Any] = {
    "kind": "PodTemplate",
    "template": {
        "spec": {
            "nodeSelector": FAKE,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "node", "image": "none"}],
        }
    },
}
GANG = """
import json, os, sys, time
from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.gang.engine import GangRequest, Phase
from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
from pytest_mnode.options import Settings
from pytest_mnode.spec import Scheduler

size = int(sys.argv[1])
engine = KubernetesEngine(
    Scheduler(kind="kubernetes", engine="native"),
    Settings(),
    json.loads(sys.argv[2]),
    leftovers=KubernetesBackend().leftovers,
)
try:
    capacity = engine.capacity()
    jobs = [engine.submit(GangRequest(n, size, 60, 300, capacity.free))[0] for n in "AB"]
    looks, end = 0, time.monotonic() + 120
    while time.monotonic() < end:
        records = engine.observe().records or {}
        whole = [j for j in jobs if j in records and len(records[j].nodes) == size]
        looks += bool(whole)
        if looks == 2:  # what comes after a look is seen by the next
            break
        time.sleep(0.2)
    waiting = next(j for j in jobs if j not in whole)
    figures = {"free": len(capacity.free), "whole": len(whole), "status": records[waiting].status}
    figures["waiting"] = records[waiting].phase == Phase.WAITING
    status = open("/proc/self/status").read().split()
    figures["threads"] = int(status[status.index("Threads:") + 1])
finally:
    engine.close()
print(json.dumps(figures))
"""


@pytest.fixture(scope="module")
def fakes(bed: KubernetesOnRack) -> Iterator[None]:
    assert unavailable([KWOK]) is None
    stages = [source(KWOK) / "kustomize/stage" / f"{name}.yaml" for name in STAGES]
    config = bed.directory / "kwok.yaml"
    config.write_text("---\n".join([*(s.read_text() for s in stages), json.dumps(LOCAL)]))
    own, _ = certificates(bed, "kwok")
    argv = [
        *("kwok", f"--kubeconfig={bed.kubeconfig}", f"--config={config}", "--cidr=10.64.0.1/16"),
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        *(f"--node-ip={bed.login.address}", "--node-port=10250"),
        *(f"--tls-cert-file={own}/tls.crt", f"--tls-private-key-file={own}/tls.key"),
    ]
    bed.end_daemon("controllers")
    bed.start_controllers(silent_s=3600)  # heartbeats at the usual rate would be most of the work
    bed.start_daemon("kwok", bed.login, argv)
    room = {"cpu": "64", "memory": "256Gi", "pods": "10"}
    names = [f"fake-{number}" for number in range(NODES)]
    marked = {"annotations": FAKE, "labels": FAKE}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": n, **marked, "labels": {**FAKE, "kubernetes.io/hostname": n}},
            "spec": {"taints": [TAINT]},
            "status": {"allocatable": room, "capacity": room},
        }
        for n in names
    ]
    path = bed.directory / "fakes.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    label = "kwok.x-k8s.io/node=fake"
    bed.kubectl("create", "-f", str(path), limit_s=120)

    def ready() -> bool:
        found = bed.get("nodes", "-l", label)["items"]
        return len(found) == NODES and all(map(is_ready, found))

    bed.await_that(ready, 120, "fake nodes are Ready")
    # kwok makes its address pool for the first pod, and two pools for two pods at once.
    metadata = {"name": "first", "namespace": "default"}
    bed.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **POD["template"]})
    bed.await_that(lambda: "podIP" in bed.get("pod", "first")["status"], 60, "it has an address")
    bed.kubectl("delete", "pod", "first", limit_s=60)
    yield
    bed.kubectl("delete", "nodes", "-l", label, "--wait=false", limit_s=120)
    bed.await_that(lambda: not bed.get("nodes", "-l", label)["items"], 60, "fake nodes are gone")
    bed.end_daemon("kwok")
    bed.end_daemon("controllers")
    bed.start_controllers()


def lists(bed: KubernetesOnRack) -> int:
    """Number of pod lists requested so far, by all clients."""
    text = bed.kubectl("get", "--raw", "/metrics")
    found = re.findall(r'apiserver_request_total\{.*resource="pods".*verb="LIST".*\} (\d+)', text)
    return sum(map(int, found))


def test_a_run_of_many_pods(bed: KubernetesOnRack, fakes: None, tmp_path: Path) -> None:
    """Its commands, one stream that hangs, and one that ends."""
    python, template = tmp_path / "python", tmp_path / "pods.json"
    python.symlink_to(ours("stand_in"))
    template.write_text(json.dumps(POD))
    before, argv = lists(bed), (sized.__file__, str(NODES), str(template), str(python))
    done = bed.run(sys.executable, *argv, limit_s=500)
    assert done.returncode == 0, done.stderr
    figures, asked = json.loads(done.stdout), lists(bed) - before
    print(figures, f"{asked} lists of pods by all clients")
    assert figures["streams"] == NODES
    assert figures["processes"] == {"bridge": 1, "queue_cleanup": 1, "other": 1}  # none per pod
    assert max(figures["threads"]) < 24  # no thread per pod
    assert asked < 30
    assert figures["bridge_mib"] < 100 + NODES
    assert "the connection was lost: no data for 6 s" in figures["hung"]
    assert figures["ended"].startswith("the connection was lost"), figures
    bed.await_that(lambda: not bed.get("jobs,pods")["items"], 120, "no job, no pod")


def test_two_gangs_of_which_one_fits(bed: KubernetesOnRack, fakes: None) -> None:
    done = bed.run(sys.executable, "-c", GANG, str(GANG_SIZE), json.dumps(POD), limit_s=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["free"] == NODES
    assert (figures["whole"], figures["waiting"]) == (1, True), figures
    assert len(figures["status"]) < 1000
    assert figures["threads"] < 64  # no thread per pod
    bed.await_that(lambda: not bed.get("jobs,pods")["items"], 120, "no job, no pod")
