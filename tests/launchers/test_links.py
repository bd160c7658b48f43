"""Links are real: two networks that reach every node, at their configured rate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.launchers.rack.wiring import burst_bytes
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn, SetLinkRate, SetLinkUp
from tests.launchers.on_nodes import run_on

PYTHON = [sys.executable, "-S", "-E", "-s", "-c"]
# The first megabyte is not timed: it uses up the queues' burst allowance and opens TCP's window.
RECEIVER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 7000))
print("up", flush=True)
peer, address = server.accept()
seen, start, at_start = 0, None, 0
while data := peer.recv(1 << 16):
    seen += len(data)
    if start is None and seen >= 1 << 20:
        start, at_start = time.monotonic(), seen
end = time.monotonic()
print(address[0], (seen - at_start) * 8e-6 / (end - start) if start else 0.0)
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 5) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def mode(_rack_possible: None) -> str:
    """Links are the same in both modes, once they are there."""
    return "auto"


def transfer(
    rack: Rack, source: Node, target: Node, name: str, size_bytes: int
) -> tuple[str, float]:
    """The sender's address seen by the receiver, and Mbit/s of payload."""
    (receive,) = rack.commands([target], [*PYTHON, RECEIVER, name])
    (send,) = rack.commands([source], [*PYTHON, SENDER, name, str(size_bytes)])
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        try:
            assert receiver.stdout.readline() == "up\n"
            subprocess.run(send, check=True, timeout=20)
            address, rate = receiver.stdout.read().split()
        finally:
            receiver.terminate()
    return address, float(rate)


def keeps_rate(
    rack: Rack, ends: tuple[int, int], name: str, link_mbit_s: float, size_bytes: int
) -> None:
    """Retries: a receiver without CPU time finds much data waiting and looks fast now and then."""
    source, target = (rack.nodes[end] for end in ends)
    rates: list[float] = []
    while len(rates) < 3 and not any(0.7 * link_mbit_s < r < 1.1 * link_mbit_s for r in rates):
        rates.append(transfer(rack, source, target, name, size_bytes)[1])
    assert 0.7 * link_mbit_s < rates[-1] < 1.1 * link_mbit_s, rates


@pytest.mark.parametrize(
    ("rate_mbit_s", "size_bytes"), [(1, 68_000), (100, 125_000), (200, 250_000), (1000, 256_000)]
)
def test_the_burst_of_a_slow_link_is_small(rate_mbit_s: float, size_bytes: int) -> None:
    assert burst_bytes(rate_mbit_s) == size_bytes


def test_both_networks_reach_every_node(rack: Rack) -> None:
    one, other, third = rack.nodes
    assert transfer(rack, one, other, "node1", 10)[0] == one.address
    assert transfer(rack, one, third, "node2-fab", 10)[0] == one.fabric_address
    assert transfer(rack, other, one, "node0-fab", 10)[0] == other.fabric_address


def test_the_transfer_rate_is_that_of_the_link(rack: Rack) -> None:
    keeps_rate(rack, (0, 1), "node1-fab", 80, 6 << 20)
    keeps_rate(rack, (0, 1), "node1", 16, 3 << 20)


def test_a_changed_rate_applies_in_both_directions_and_outlives_a_reboot(rack: Rack) -> None:
    node = rack.nodes[1]
    rack.ask(SetLinkRate(node.name, "fab0", 20))
    try:
        keeps_rate(rack, (0, 1), "node1-fab", 20, 3 << 20)
        keeps_rate(rack, (1, 0), "node0-fab", 20, 3 << 20)
        rack.ask(PowerOff(node.name))
        rack.ask(PowerOn(node.name))
        keeps_rate(rack, (0, 1), "node1-fab", 20, 3 << 20)
        rack.ask(PowerOff(node.name))
        rack.ask(SetLinkRate(node.name, "fab0", 80))
        rack.ask(PowerOn(node.name))
        assert transfer(rack, rack.nodes[0], node, "node1-fab", 4 << 20)[1] > 40
    finally:
        rack.ask(SetLinkRate(node.name, "fab0", 80))
        rack.ask(PowerOn(node.name))


def test_a_port_that_is_down_removes_the_carrier(rack: Rack) -> None:
    node = rack.nodes[1]
    carrier = ["cat", "/sys/class/net/fab0/carrier"]
    assert run_on(rack, node, carrier).stdout == "1\n"
    rack.ask(SetLinkUp(node.name, "fab0", up=False))
    try:
        assert run_on(rack, node, carrier).stdout == "0\n"
        assert transfer(rack, rack.nodes[0], node, "node1", 10)[0] == rack.nodes[0].address
        rack.ask(PowerOff(node.name))
        rack.ask(PowerOn(node.name))
        assert run_on(rack, node, carrier).stdout == "0\n"
    finally:
        rack.ask(SetLinkUp(node.name, "fab0", up=True))
    assert run_on(rack, node, carrier).stdout == "1\n"
    assert transfer(rack, rack.nodes[0], node, "node1-fab", 10)[0] == rack.nodes[0].fabric_address


def test_a_node_reaches_only_the_rack(rack: Rack) -> None:
    script = (
        "import socket\n"
        "try: socket.create_connection(('192.0.2.1', 80), 2); print('reached')\n"
        "except OSError as error: print(error.strerror)"
    )
    done = run_on(rack, rack.nodes[0], [*PYTHON, script])
    assert done.stdout == "Network is unreachable\n"


def test_idle_links_carry_no_packets(rack: Rack) -> None:
    files = [f"/sys/class/net/fab0/statistics/{way}_packets" for way in ("tx", "rx")]
    before = run_on(rack, rack.nodes[2], ["cat", *files]).stdout
    run_on(rack, rack.nodes[2], ["sleep", "0.5"])
    assert run_on(rack, rack.nodes[2], ["cat", *files]).stdout == before


def test_only_ipv4_on_links(rack: Rack) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    done = run_on(rack, rack.nodes[0], ["cat", "/proc/net/if_inet6"])
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["lo"]
