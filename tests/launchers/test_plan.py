"""Names, addresses and limits of a rack, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Link, Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, SetLinkRate, SetLinkUp


def test_nodes_are_known_before_the_start() -> None:
    rack = Rack(2)
    assert list(rack.nodes) == [
        Node("node0", 0, "10.77.0.1", "10.78.0.1", "fab0"),
        Node("node1", 1, "10.77.0.2", "10.78.0.2", "fab0"),
    ]


def test_the_management_rate_is_a_tenth_of_the_fabric_rate() -> None:
    plan = Rack(1, Link("fab0", 400, mtu=9000)).plan
    assert plan.management == Link("mgmt0", 40, mtu=9000)
    assert Rack(1).plan.fabric == Link("fab0", 200, mtu=1500)


def test_hosts_have_every_name_and_its_mapped_form() -> None:
    lines = Rack(2).plan.hosts().splitlines()
    assert "127.0.0.1 localhost" in lines
    for line in ("10.77.0.2 node1", "10.78.0.2 node1-fab"):
        assert {line, f"::ffff:{line}"} <= set(lines)


def test_no_name_or_address_is_used_twice() -> None:
    plan = Rack(254).plan
    every = [(index, link.name) for index in range(254) for link in plan.links]
    for value in (plan.address, plan.mac, plan.port):
        assert len({value(index, link) for index, link in every}) == len(every)
    assert max(len(plan.port(index, link)) for index, link in every) <= 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, r"rack: 0 nodes: needs 1 to 254 \(one /24 per link\)"),
        ({"nodes": 255}, "rack: 255 nodes: needs 1 to 254"),
        ({"nodes": 1, "mode": "sudo"}, "mode 'sudo': must be one of auto, root, rootless"),
        ({"nodes": 1, "shm_bytes": 0}, "shm_bytes 0: needs 1 to"),
        ({"nodes": 1, "shm_bytes": 1 << 63}, "shm_bytes 9223372036854775808: needs 1 to"),
        ({"nodes": 1, "management": Link("fab0", 1)}, "both links are named 'fab0'"),
    ],
)
def test_errors_of_an_invalid_rack(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Rack(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (("lo", 1), "link name 'lo'"),
        (("", 1), "link name '': needs 1 to 7 letters and digits"),
        (("fabric00", 1), "link name 'fabric00': needs 1 to 7 letters and digits"),
        (("fab/0", 1), "link name 'fab/0'"),
        (("fab0", 0), "link fab0: rate 0 Mbit/s: needs 0.1 to 34000"),
        (("fab0", float("nan")), "link fab0: rate nan Mbit/s"),
        (("fab0", 40_000), "link fab0: rate 40000 Mbit/s: needs 0.1 to 34000"),
        (("fab0", 1, 100), "link fab0: mtu 100: needs 576 to 9216 bytes"),
    ],
)
def test_errors_of_an_invalid_link(link: tuple[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Link(*link)


def test_unknown_links_and_nodes_are_named() -> None:
    rack = Rack(2)
    with pytest.raises(UsageError, match=r"no link 'eth0' \(there are: mgmt0, fab0\)"):
        rack.ask(SetLinkRate("node0", "eth0", 10))
    with pytest.raises(UsageError, match=r"no link 'eth0'"):
        rack.ask(SetLinkUp("node0", "eth0", up=False))
    with pytest.raises(UsageError, match="link fab0: rate -1 Mbit/s"):
        rack.ask(SetLinkRate("node0", "fab0", -1))
    stranger = Node("node7", 7, "10.77.0.8")
    with pytest.raises(UsageError, match=r"no node 'node7' \(there are: node0 to node1\)"):
        rack.ask(PowerOff(stranger.name))


def test_a_rack_that_is_not_started_is_an_error() -> None:
    rack = Rack(1)
    with pytest.raises(ClusterError, match="node0 is unavailable: not started"):
        rack.commands(rack.nodes, ["true"])
    with pytest.raises(ClusterError, match="rack: not started"):
        rack.agent_command(["true"])
    with pytest.raises(ClusterError, match="switch nodes off: node0: the rack is not started"):
        rack.ask(PowerOff("node0"))
    rack.close()
    with pytest.raises(ClusterError, match="rack: closed"):
        rack.agent_command(["true"])
