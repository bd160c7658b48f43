"""The launcher without a cluster."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.protocol.launcher_requests import PowerOff


def test_nodes_are_on_this_machine() -> None:
    local: Launcher = Local(nodes=2)
    local.start()
    assert local.nodes == (
        Node("local0", 0, "127.0.0.1", "127.0.0.1", "lo", nccl_host="local0"),
        Node("local1", 1, "127.0.0.1", "127.0.0.1", "lo", nccl_host="local1"),
    )
    assert Local(nodes=1).nodes == (Node("local0", 0, "127.0.0.1", "127.0.0.1", "lo"),)
    assert local.nodes[1].collective_env == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_HOSTID": "local1",
    }
    assert local.shared_kernel
    local.close()
    local.close()


def test_a_command_is_run_unchanged() -> None:
    local = Local(nodes=3)
    argv = ["echo", "a b", "'"]
    assert local.commands(local.nodes[1:], argv) == [argv, argv]
    assert local.agent_command(argv) == argv
    assert local.namespace_pid(local.nodes[0]) is None


def test_no_power_switch() -> None:
    with pytest.raises(ClusterError) as caught:
        Local(nodes=2).ask(PowerOff("local1"))
    assert str(caught.value) == (
        "the local launcher cannot switch nodes off; use --mnode-launcher=rack, which can"
    )


def test_zero_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="local: 0 nodes: need at least 1"):
        Local(nodes=0)
