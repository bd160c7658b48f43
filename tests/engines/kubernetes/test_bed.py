"""The test cluster behaves like other Kubernetes clusters, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_mnode.launchers.rack import cgroups
from tests.engines.kubernetes.bed import SERVICE, KubernetesOnRack, is_ready
from tests.engines.on_rack import remove_abandoned

SLEEP = "exec sleep 600"


def test_pods_use_the_nodes_links_or_their_own_addresses(bed: KubernetesOnRack) -> None:
    bed.apply(bed.pod("links", SLEEP, hostNetwork=True, nodeName="node1"))
    bed.apply(bed.pod("own", SLEEP, nodeName="node2"))
    try:
        bed.await_that(
            lambda: all(map(is_ready, bed.get("pods", "links", "own")["items"])), 60, "pods Ready"
        )
        links = bed.kubectl("exec", "links", "--", "ip", "-br", "address")
        assert "fab0" in links
        assert "10.78.0.2/24" in links
        assert "fab0" not in bed.kubectl("exec", "own", "--", "ip", "-br", "address")
        reach = f"import socket; socket.create_connection(({SERVICE!r}, 443), 5); print('reached')"
        assert "reached" in bed.kubectl("exec", "own", "--", sys.executable, "-c", reach)
        failed = bed.run(
            "kubectl", f"--kubeconfig={bed.kubeconfig}", "exec", "own", "--", "sh", "-c", "exit 7"
        )
        assert failed.returncode == 7
    finally:
        bed.kubectl("delete", "pod", "links", "own", "--wait=false")


def test_leftovers_of_an_interrupted_run_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = time.time() - 3600
    for name in ("left", "used", "new", "other"):
        (tmp_path / f"mnode-k8s-{name}").mkdir()
        (tmp_path / f"mnode-k8s-{name}" / ("lock" if name != "other" else "file")).touch()
    for name in ("left", "used", "other"):
        os.utime(tmp_path / f"mnode-k8s-{name}", (old, old))
    with (tmp_path / "mnode-k8s-used" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned("mnode-k8s-")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("mnode-k8s-new", "mnode-k8s-other", "mnode-k8s-used"),
    ]


def test_nothing_of_it_is_left() -> None:
    with KubernetesOnRack(1) as bed:
        pid, directory = bed.rack.daemon_pid, bed.directory
        bed.apply(bed.pod("left", SLEEP))
        bed.await_that(lambda: is_ready(bed.get("pod", "left")), 60, "the pod is Ready")
    assert not directory.exists()
    for hierarchy in cgroups.hierarchies():
        assert list(hierarchy.glob(f"mnode-{pid}-*")) == []
