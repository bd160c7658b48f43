"""The bed is a Kubernetes as others are, and leaves nothing."""

from __future__ import annotations

import sys

from pytest_mnode.launchers.rack import cgroups
from tests.engines.kubernetes.bed import SERVICE, KubernetesOnRack, is_ready

SLEEP = "exec sleep 600"


def test_pods_run_on_the_nodes_links_and_on_addresses_of_their_own(bed: KubernetesOnRack) -> None:
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


def test_nothing_of_it_is_left() -> None:
    with KubernetesOnRack(1) as bed:
        pid, directory = bed.rack.daemon_pid, bed.directory
        bed.apply(bed.pod("left", SLEEP))
        bed.await_that(lambda: is_ready(bed.get("pod", "left")), 60, "the pod is Ready")
    assert not directory.exists()
    for hierarchy in cgroups.hierarchies():
        assert list(hierarchy.glob(f"mnode-{pid}-*")) == []
