"""A node can be lost, switched off and booted; every listener gets its name and the reason."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
from collections.abc import Iterator

import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from tests.inner import need_program
from tests.launchers.on_nodes import run_on
from tests.waiting import until

HANGS_S = 60.0
Losses = queue.SimpleQueue[tuple[str, str]]


def losses_of(rack: Rack) -> Losses:
    losses: Losses = queue.SimpleQueue()
    rack.watch(lambda node, reason: losses.put((node, reason)))
    return losses


@pytest.fixture(scope="module")
def losses(rack: Rack) -> Losses:
    return losses_of(rack)


@pytest.fixture(autouse=True)
def _all_on(rack: Rack, losses: Losses) -> Iterator[None]:
    yield
    for node in rack.nodes:
        rack.ask(PowerOn(node.name))
    while not losses.empty():
        losses.get()


def test_power_off_kills_everything_on_the_node_and_nothing_else(rack: Rack) -> None:
    need_program("ps", "procps")
    sleepers = [
        subprocess.Popen(command) for command in rack.commands(rack.nodes[:2], ["sleep", "300"])
    ]
    ps = ["ps", "ax", "-o", "comm"]
    until(lambda: on_switch(rack, ps).split().count("sleep") == 2, "both sleep", HANGS_S)
    rack.ask(PowerOff("node1"))
    assert sleepers[1].wait(HANGS_S) == 137
    assert sleepers[0].poll() is None
    sleepers[0].terminate()
    assert sleepers[0].wait(HANGS_S) == 143


def test_a_node_that_is_off_is_named(rack: Rack, losses: Losses) -> None:
    node = rack.nodes[1]
    rack.ask(PowerOff(node.name))
    assert losses.get(timeout=HANGS_S) == ("node1", "powered off")
    with pytest.raises(NodeLostError, match="node1 is unavailable: powered off") as caught:
        rack.commands(rack.nodes, ["true"])
    assert caught.value.node == "node1"
    with pytest.raises(NodeLostError, match="node1 is unavailable: powered off"):
        rack.namespace_pid(node)
    assert rack.commands(rack.nodes[:1], ["true"])


def test_boot_gives_a_new_node_of_the_same_name(rack: Rack) -> None:
    node = rack.nodes[1]
    old = rack.namespace_pid(node)
    run_on(rack, node, ["touch", "/dev/shm/trace"])
    rack.ask(PowerOff(node.name))
    rack.ask(PowerOn(node.name))
    assert rack.namespace_pid(node) != old
    script = "uname -n; ls /dev/shm; cat /sys/class/net/fab0/address"
    done = run_on(rack, node, ["sh", "-c", script])
    assert done.stdout == f"node1\n{rack.plan.mac(1, 'fab0')}\n"


def test_off_and_on_may_be_repeated(rack: Rack, losses: Losses) -> None:
    node = rack.nodes[0]
    rack.ask(PowerOn(node.name))
    rack.ask(PowerOff(node.name))
    rack.ask(PowerOff(node.name))
    rack.ask(PowerOn(node.name))
    assert losses.get(timeout=HANGS_S) == ("node0", "powered off")
    assert losses.empty()


def test_a_node_that_dies_by_itself_is_reported(rack: Rack, losses: Losses) -> None:
    node = rack.nodes[2]
    (command,) = rack.commands([node], ["true"])
    place = next(index for index, word in enumerate(command) if word.endswith("enter.py"))
    os.kill(int(command[place + 1]), signal.SIGKILL)
    assert losses.get(timeout=HANGS_S) == ("node2", "its first process ended (SIGKILL)")
    with pytest.raises(NodeLostError, match=r"node2 is unavailable: its first process ended"):
        rack.namespace_pid(node)
    rack.ask(PowerOn(node.name))
    assert run_on(rack, node, ["uname", "-n"]).stdout == "node2\n"


def test_a_loss_handler_may_use_the_rack(rack: Rack) -> None:
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def boot_again(node: str, _: str) -> None:
        if node == "node1" and done.empty():
            rack.ask(PowerOn("node1"))
            done.put(rack.namespace_pid(rack.nodes[1]))

    rack.watch(boot_again)
    rack.ask(PowerOff("node1"))
    assert done.get(timeout=HANGS_S) == rack.namespace_pid(rack.nodes[1])
    done.put(0)  # later losses are ignored


def test_a_boot_that_fails_names_node_and_step(rack: Rack, mode: str) -> None:
    if mode == "root":
        pytest.skip("its limits are the host's")
    limit = "/proc/sys/user/max_uts_namespaces"
    before = on_switch(rack, ["cat", limit]).strip()
    rack.ask(PowerOff("node1"))
    on_switch(rack, ["sh", "-c", f"echo 0 > {limit}"])
    try:
        with pytest.raises(ClusterError, match=r"node1 did not boot: failed at namespaces: .*sp"):
            rack.ask(PowerOn("node1"))
    finally:
        on_switch(rack, ["sh", "-c", f"echo {before} > {limit}"])
    assert rack.commands([rack.nodes[0]], ["true"])


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_the_end_of_the_daemon_is_the_end_of_all_nodes(
    one_node: Rack, number: signal.Signals, why: str
) -> None:
    losses = losses_of(one_node)
    sleeper = subprocess.Popen(one_node.agent_command(["sleep", "300"]))
    assert one_node.daemon_pid is not None
    os.kill(one_node.daemon_pid, number)
    how = f"the rack's first process ended: cleanup process {why}"
    assert losses.get(timeout=HANGS_S) == ("node0", how)
    assert one_node.why_ended() == how
    assert sleeper.wait(HANGS_S) in (125, 137)
    with pytest.raises(ClusterError, match=f"node0 is unavailable: {how}"):
        one_node.commands(one_node.nodes, ["true"])
    with pytest.raises(ClusterError, match="cannot switch nodes on: node0: the rack is down"):
        one_node.ask(PowerOn("node0"))


def test_the_end_of_the_first_process_is_the_end_of_all_nodes(one_node: Rack) -> None:
    losses = losses_of(one_node)
    assert one_node.daemon_pid is not None
    assert one_node.why_ended() == ""
    [first] = processes.children(one_node.daemon_pid)
    os.kill(first, signal.SIGKILL)
    assert losses.get(timeout=20) == ("node0", "the rack's first process ended")
    assert one_node.why_ended() == "the rack's first process ended"
