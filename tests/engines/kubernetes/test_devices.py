"""Preflight in containers that get devices from a real kubelet, correctly and incorrectly.

This machine has no RDMA: /sys of the pods shows a card that we composed, the same on each node, as
if
tenants shared it. The device files that our plugin hands out are those of FUSE.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.certified import ACCEPTANCE, certificate_of
from tests.engines.inside import run_pytest
from tests.engines.kubernetes import programs
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.trees import Tree

RESOURCE = "mnode.test/rdma"
STAND_IN = "/dev/fuse"
"""Only root may open it, and a container also needs the permission of its device cgroup."""
UVERBS = "/dev/infiniband/uverbs0"
PLUGINS: Mapping[str, Sequence[str]] = {
    "node0": (STAND_IN, UVERBS, "rw"),
    "node1": (),
    "node2": (STAND_IN, UVERBS, "r"),
    "node3": (STAND_IN, UVERBS, "rw"),
}
INTERFACES = """\
case $NODE in
  node1) ip link set eth0 mtu 1400; ip link add net1 link eth0 type macvlan; ip link set net1 up;;
  node3) ;;
  *) ip link add net1 link eth0 type macvlan; ip link set net1 up;;
esac
"""
"""Does the work of Multus, except for a pod without a second interface and one with another MTU."""
PAGE = """
name: pods
accelerators: {per_node: 0}
fabric: {kind: roce, interfaces: [mlx5_0], line_rate: 400 Gbit/s, nics_per_node: 1, mtu: 1500}
management: {interfaces: [eth0, net1], line_rate: 10 Gbit/s, mtu: 1500}
criteria:
  preflight:
    interfaces: {}
    mtu: {networks: [management]}
    rdma: {gid_types: [RoCE v2]}
    limits: {shm: 1 GiB, memlock: unlimited, ipc_lock: true}
    environment: {allowed: [NCCL_IB_HCA]}
certificate: {valid_for: 1 day}
"""
IN_RANKS = "test_ranks_name_rdma_devices_that_are_there"
ASKED = (
    *("test_interfaces_are_up", "test_interfaces_have_their_mtu", "test_rdma_ports_are_active"),
    *("test_rdma_devices_can_be_opened", "test_shared_memory_suffices"),
    "test_memory_can_be_locked",
)


@pytest.fixture(scope="module")
def plugins(bed: KubernetesOnRack) -> Iterator[None]:
    """The kubelet of each node advertises a device, and hands out what its plugin returns."""
    program = str(programs.ours("device_plugin"))
    for name, exposed in PLUGINS.items():
        argv = [program, RESOURCE, "1", *exposed]
        bed.start_daemon(f"plugin-{name}", bed.node(name), argv)

    def promised() -> set[str]:
        nodes = bed.get("nodes")["items"]
        return {
            n["metadata"]["name"] for n in nodes if n["status"]["capacity"].get(RESOURCE) == "1"
        }

    bed.await_that(lambda: promised() == set(PLUGINS), 30, "devices are promised")
    yield
    for name in PLUGINS:
        bed.end_daemon(f"plugin-{name}")


def write_card(root: Path) -> Path:
    """/sys/class of a machine with an RDMA card, for a container with its own interfaces."""
    tree, device = Tree(root), "sys/class/infiniband/mlx5_0"
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        "gid_attrs/types/0": "RoCE v2",
        "gid_attrs/ndevs/0": "net1",
    }.items():
        tree.write(f"{device}/ports/1/{name}", text)
    tree.write(f"{device}/node_type", "1: CA")
    tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    (root / "sys/class/net").rmdir()
    (root / "sys/class/net").symlink_to("../devices/virtual/net")
    return root / "sys/class"


def preflight(
    bed: KubernetesOnRack, directory: Path, tests: Sequence[str], nodes: int, **container: Any
) -> Mapping[str, Any]:
    """Cases by test and node, of a run in pods that request one device each."""
    options = bed.launch(directory)
    template = directory / "pods.json"
    pod = json.loads(template.read_text())
    [main] = pod["spec"]["containers"]
    own_name = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    pod["spec"]["initContainers"] = [
        {
            **main,
            "name": "interfaces",
            "command": ["/bin/sh", "-ec", INTERFACES],
            "env": [own_name],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        }
    ]
    mounts = {"card": "/sys/class", **container.pop("mounts", {})}
    volumes = {"card": {"hostPath": {"path": str(write_card(directory / "card"))}}}
    volumes["shm"] = {"emptyDir": {"medium": "Memory"}}
    pod["spec"]["volumes"] += [{"name": name, **volumes[name]} for name in mounts]
    main["volumeMounts"] = main["volumeMounts"] + [
        {"name": name, "mountPath": path} for name, path in mounts.items()
    ]
    main.update({"resources": {"limits": {RESOURCE: 1}}, **container})
    template.write_text(json.dumps(pod))
    (directory / "spec.yaml").write_text(PAGE)
    report = directory / "report"
    args = (f"--mnode-nodes={nodes}", f"--mnode-spec={directory}/spec.yaml")
    chosen = [f"{ACCEPTANCE / 'test_preflight.py'}::{test}" for test in tests]
    run = run_pytest(bed, directory, *options, *args, f"--mnode-report={report}", *chosen)
    return certificate_of(run, report).cases("preflight")


def culprits(cases: Mapping[str, Any]) -> dict[str, set[str]]:
    """Culprits by test and node; no case is inconclusive."""
    verdicts = {name: case["verdict"] for name, case in cases.items()}
    assert set(verdicts.values()) <= {"pass", "fail"}, verdicts
    return {
        name: {m["culprit"] for m in case["measurements"] if m["verdict"] == "fail"}
        for name, case in cases.items()
        if case["verdict"] == "fail"
    }


def test_devices_missing_in_containers_are_found(
    bed: KubernetesOnRack, plugins: None, tmp_path: Path
) -> None:
    cases = preflight(
        bed,
        tmp_path,
        (*ASKED, IN_RANKS),
        4,
        mounts={"shm": "/dev/shm"},
        env=[{"name": "NCCL_IB_HCA", "value": "=mlx5_0:1"}],
        securityContext={"capabilities": {"add": ["IPC_LOCK"]}},
    )
    assert len(cases) == 4 * (len(ASKED) + 1)
    assert culprits(cases) == {
        "test_interfaces_have_their_mtu[node1]": {"node1 eth0 (MTU 1400)"},
        "test_rdma_devices_can_be_opened[node1]": {
            "node1 mlx5_0 (uverbs0 no such file or directory)"
        },
        f"{IN_RANKS}[node1]": {"node1: NCCL_IB_HCA names mlx5_0:1"},
        "test_rdma_devices_can_be_opened[node2]": {
            "node2 mlx5_0 (uverbs0 operation not permitted)"
        },
        f"{IN_RANKS}[node2]": {"node2: NCCL_IB_HCA names mlx5_0:1"},
        "test_interfaces_are_up[node3]": {"node3 net1 is not there"},
        "test_rdma_ports_are_active[node3]": {"node3 mlx5_0:1 has none"},
    }


def test_a_pod_without_shared_memory_and_capability_is_found(
    bed: KubernetesOnRack, plugins: None, tmp_path: Path
) -> None:
    cases = preflight(bed, tmp_path, ASKED[-2:], 1)
    shared, locked = cases.values()
    [size] = shared["measurements"]
    assert (size["value"], size["verdict"]) == (64 << 20, "fail")
    assert [m["verdict"] for m in locked["measurements"]] == ["fail", "fail"]
    assert "add: [IPC_LOCK]" in locked["measurements"][1]["culprit"]
