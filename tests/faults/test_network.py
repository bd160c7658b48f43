"""Faults of links and paths: the expected symptom alone, and none after the undo."""

from __future__ import annotations

import re
import time

import pytest

from pytest_mnode import faults
from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn, SetLinkRate
from tests.faults.talk import connection, echoes, injected, rate_mbit_s, shell
from tests.inner import need_program, need_programs_of
from tests.waiting import until


def reboot(rack: Rack, node: str) -> None:
    rack.ask(PowerOff(node))
    rack.ask(PowerOn(node))


@pytest.mark.parametrize(
    ("text", "slow", "fast"),
    [
        ("slow_link:node1:10", [(0, 1), (1, 0)], [(0, 2)]),
        ("slow_tx:node1:10", [(1, 0), (1, 2)], [(0, 1)]),
        ("slow_rx:node1:10", [(0, 1), (2, 1)], [(1, 0)]),
        ("slow_pair:node1+node2:10", [(1, 2), (2, 1)], [(0, 1), (2, 0)]),
        ("slow_path:node1+node2:10", [(1, 2)], [(2, 1), (0, 2), (1, 0)]),
    ],
)
def test_only_that_direction_is_slow(
    rack: Rack, text: str, slow: list[tuple[int, int]], fast: list[tuple[int, int]]
) -> None:
    with injected(rack, text):
        for source, target in slow:
            assert rate_mbit_s(rack, source, target) < 11, (source, target)
        for source, target in fast:
            assert rate_mbit_s(rack, source, target) > 13, (source, target)
    assert rate_mbit_s(rack, *slow[0]) > 13  # of 80 Mbit/s, if no core is busy


def test_a_slow_link_has_a_quarter_of_the_fabric_rate(rack: Rack) -> None:
    need_program("tc", "iproute2")
    with injected(rack, "slow_link:node1"):
        assert "rate 20Mbit" in on_switch(rack, ["tc", "qdisc", "show", "dev", "fab0-node1"])
    with injected(rack, "slow_rx:node1::mgmt0"):
        assert "rate 4Mbit" in on_switch(rack, ["tc", "qdisc", "show", "dev", "mgmt0-node1"])
        assert "rate 80Mbit" in on_switch(rack, ["tc", "qdisc", "show", "dev", "fab0-node1"])


def test_a_slow_pair_survives_a_reboot_and_leaves_no_trace_after_undo(rack: Rack) -> None:
    need_program("tc", "iproute2")
    show = ["tc", "qdisc", "show", "dev", "fab0-node2"]
    before = on_switch(rack, show)
    with injected(rack, "slow_path:node1+node2:10"):
        reboot(rack, "node2")
        assert rate_mbit_s(rack, 1, 2) < 11
    assert on_switch(rack, show) == before


def test_packets_are_lost(rack: Rack) -> None:
    echoes(rack, 0, 1)  # both know each other's hardware address, whose lookup may be lost too
    with injected(rack, "lossy_link:node1:50"):
        back, _ = echoes(rack, 0, 1, count=60, wait_s=0.5)
        assert 3 <= back <= 33  # a quarter survives both ways
        assert echoes(rack, 0, 2, count=60)[0] == 60
    assert echoes(rack, 0, 1, count=60)[0] == 60


def test_nodes_behind_an_uplink_share_its_rate(rack: Rack) -> None:
    need_programs_of("narrow_uplink:node1")
    with pytest.raises(UsageError, match="no node is before node0; accepted: one of node1 on"):
        faults.inject(rack, "narrow_uplink:node0")
    shaped = "tc -s qdisc show dev fab0-up; tc -s qdisc show dev fab0-down"
    with injected(rack, "narrow_uplink:node1:40"):
        sent = []
        for sender, receiver in ((0, 1), (1, 2)):
            echoes(rack, 1, 2)  # switches flood what they send to an address that they do not know
            assert echoes(rack, sender, receiver, count=60)[0] == 60
            found = on_switch(rack, ["sh", "-c", shaped])
            sent.append([int(word) for word in re.findall(r"Sent \d+ bytes (\d+) pkt", found)])
        assert found.count("rate 40Mbit") == 2
        grown = [after - before for before, after in zip(*sent, strict=True)]
        assert all(before >= 60 for before in sent[0])
        assert all(more < 30 for more in grown), f"node1 and node2 are on one switch: {sent}"
    assert echoes(rack, 0, 1, count=20)[0] == 20
    assert "fab0-" + "up" not in on_switch(rack, ["ip", "link"])


def test_packets_get_through_one_way_only(rack: Rack) -> None:
    received = "cat /sys/class/net/fab0/statistics/rx_packets"
    with injected(rack, "one_way:node0+node1"):
        before = [int(shell(rack, i, received)) for i in (0, 1)]
        assert echoes(rack, 1, 0, count=9, wait_s=0.3)[0] == 0  # packets arrive, no answers do
        after = [int(shell(rack, i, received)) for i in (0, 1)]
        assert after[0] - before[0] >= 9 > after[1] - before[1]
        assert echoes(rack, 2, 1)[0] == 1
    assert echoes(rack, 1, 0)[0] == 1


def test_a_blackhole_route_ends_with_the_fault(rack: Rack) -> None:
    routes = "ip route show type blackhole"
    with injected(rack, "refused_route:node0+node1"):
        assert shell(rack, 0, routes).split() == ["blackhole", rack.plan.address(1, "fab0")]
    assert shell(rack, 0, routes) == ""


def test_another_route_ends_with_the_fault(rack: Rack) -> None:
    routes = f"ip route show {rack.plan.address(1, 'fab0')}"
    with injected(rack, "other_route:node0+node1"):
        assert "dev mgmt0" in shell(rack, 0, routes)
    assert shell(rack, 0, routes) == ""


def test_a_second_owner_of_an_address_ends_with_the_fault(rack: Rack) -> None:
    def addresses() -> list[str]:
        return re.findall(r"inet (\S+)/", shell(rack, 0, "ip address show dev fab0"))

    own, taken = (rack.plan.address(index, "fab0") for index in (0, 1))
    with injected(rack, "same_address:node0+node1"):
        assert addresses() == [own, taken]
    assert addresses() == [own]


def test_large_packets_vanish(rack: Rack) -> None:
    headers = 28  # IP and UDP
    with injected(rack, "mtu_hole:node1"):
        assert echoes(rack, 0, 1, size=1400 - headers)[0] == 1
        assert echoes(rack, 0, 1, size=1401 - headers, wait_s=0.2)[0] == 0
        assert echoes(rack, 1, 0, size=1500 - headers, wait_s=0.2)[0] == 0
        assert echoes(rack, 0, 2, size=1500 - headers)[0] == 1
    assert echoes(rack, 0, 1, size=1500 - headers)[0] == 1


def test_connections_to_a_port_vanish(rack: Rack) -> None:
    node = rack.nodes[1]
    with injected(rack, "port_dropped:node1:7102"):
        assert connection(rack, 0, node.address, 7102) == "TimeoutError"
        assert connection(rack, 0, node.address, 7103) == "ConnectionRefusedError"
        assert connection(rack, 1, rack.nodes[0].address, 7102) == "ConnectionRefusedError"
    with injected(rack, "port_dropped:node1"):
        assert connection(rack, 2, node.address, 7103) == "TimeoutError"
        assert connection(rack, 2, node.fabric_address or "", 7103) == "ConnectionRefusedError"
    assert connection(rack, 0, node.address, 7102) == "ConnectionRefusedError"


def test_packets_are_late(rack: Rack) -> None:
    ports = ["ls", "/sys/class/net"]
    before = on_switch(rack, ports)
    with injected(rack, "delay:node1:40"):
        back, least_s = echoes(rack, 0, 1, count=5)
        assert back == 5
        assert 0.08 <= least_s < 1
        assert echoes(rack, 0, 2, count=5)[1] < 0.08
        assert rate_mbit_s(rack, 0, 1) > 3  # large segments pass unchanged, after a slow start
    assert echoes(rack, 0, 1, count=5)[1] < 0.08
    assert on_switch(rack, ports) == before


def test_a_link_has_one_relay_since_two_would_double_each_packet(rack: Rack) -> None:
    with injected(rack, "delay:node1:40,corrupt_payload:node2,delay:node1:1:1:mgmt0"):
        with pytest.raises(ClusterError, match="corrupt_payload: not ready: fab0-node1 has a rel"):
            faults.inject(rack, "corrupt_payload:node1")
        assert echoes(rack, 0, 1, count=5)[1] >= 0.08
    assert echoes(rack, 0, 1, count=5)[1] < 0.08


def test_a_delay_ends_with_a_reboot(rack: Rack) -> None:
    with injected(rack, "delay:node1:40"):
        reboot(rack, "node1")
        assert echoes(rack, 0, 1, count=5)[1] < 0.08
    assert echoes(rack, 0, 1)[0] == 1


def test_a_link_is_down(rack: Rack) -> None:
    with injected(rack, "link_down:node1"):
        assert shell(rack, 1, "cat /sys/class/net/fab0/carrier") == "0"
        assert shell(rack, 1, "cat /sys/class/net/mgmt0/carrier") == "1"
    assert shell(rack, 1, "cat /sys/class/net/fab0/carrier") == "1"
    assert echoes(rack, 0, 1)[0] == 1


def test_a_link_flaps(rack: Rack) -> None:
    def changes() -> int:
        return int(shell(rack, 1, "cat /sys/class/net/fab0/carrier_changes"))

    before = changes()
    with injected(rack, "flapping_link:node1:0.3"):
        until(lambda: changes() >= before + 4, "the link flaps")
    last = changes()
    assert shell(rack, 1, "cat /sys/class/net/fab0/carrier") == "1"
    time.sleep(0.6)
    assert changes() == last
    assert shell(rack, 0, "cat /sys/class/net/fab0/carrier_changes") == "2"


def test_a_scheduled_fault_comes_later_goes_and_comes_again(rack: Rack) -> None:
    def carrier() -> str:
        return shell(rack, 1, "cat /sys/class/net/fab0/carrier")

    with injected(rack, "link_down:node1@300ms+500ms/1s"):
        assert carrier() == "1"
        for _ in range(2):
            until(lambda: carrier() == "0", "the link goes down")
            until(lambda: carrier() == "1", "the link comes up")
    with injected(rack, "link_down:node1@50ms"):
        until(lambda: carrier() == "0", "the link goes down")
    assert carrier() == "1"


def test_an_interface_is_missing(rack: Rack) -> None:
    with injected(rack, "interface_missing:node1"):
        assert shell(rack, 1, "ls /sys/class/net").split() == ["lo", "mgmt0"]
        assert shell(rack, 0, "ls /sys/class/net").split() == ["fab0", "lo", "mgmt0"]
        reboot(rack, "node1")
        assert shell(rack, 1, "ls /sys/class/net").split() == ["lo", "mgmt0"]
        rack.ask(SetLinkRate("node1", "fab0", 40))
        rack.ask(SetLinkRate("node1", "fab0", 80))
    assert rate_mbit_s(rack, 0, 1) > 30
    assert rate_mbit_s(rack, 1, 0) > 30


def test_a_node_is_off(rack: Rack) -> None:
    with injected(rack, "powered_off:node1"):
        assert connection(rack, 0, rack.nodes[1].address, 7102) in ("TimeoutError", "OSError")
        with pytest.raises(NodeLostError, match="powered off"):
            shell(rack, 1, "true")
    assert echoes(rack, 0, 1)[0] == 1


def test_an_impossible_fault_leaves_no_other_injected(rack: Rack) -> None:
    need_program("tc", "iproute2")
    need_programs_of("lossy_link:node1")
    before = on_switch(rack, ["tc", "qdisc", "show"])
    with pytest.raises(UsageError, match="no link 'eth9'"):
        faults.inject(rack, "slow_link:node1:10,lossy_link:node2:10:eth9")
    with pytest.raises(UsageError, match="no node 'node3'; accepted: node0 to node2"):
        faults.inject(rack, "slow_link:node1:10,slow_link:node3")
    for rate in ("slow_tx:node1:80", "slow_path:node1+node2:80.5", "slow_link:node1:16:mgmt0"):
        with pytest.raises(UsageError, match=r"Mbit/s does not slow \w+, whose rate is (80|16) "):
            faults.inject(rack, rate)
    assert on_switch(rack, ["tc", "qdisc", "show"]) == before
