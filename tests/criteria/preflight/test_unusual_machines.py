"""Machines that are well in unusual ways pass, and what cannot be read of one is no pass."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight.answers import (
    LookUp,
    Rail,
    Survey,
)
from pytest_mnode.criteria.preflight.datagrams import PathProber, UdpProbe, open_socket
from pytest_mnode.criteria.preflight.judges import (
    links,
    names,
    rdma,
    reach,
    system,
)
from pytest_mnode.criteria.preflight.orders import Peer, ProbeOrder
from pytest_mnode.criteria.preflight.tcp import Listener, RailPair, connect_all
from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.rdma import Port, read_rdma
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec
from tests.criteria.preflight.made import (
    asked,
    culprits,
    devices_of,
    healthy,
    interface,
    rdma_port,
    spec_of,
    verdicts,
    with_facts,
    with_node,
    with_paths,
)
from tests.recorded import Recorded
from tests.trees import gpu_server

IB = rdma_port()
IPOIB = interface("ib0", "", mtu_bytes=4092)
ANY = "{interfaces: {}, speed: {}, rdma: {gid_types: [IB], errors_at_most: 0}, reachable: {}}"


def _everywhere(survey: Survey, *ports: Port, interfaces: tuple[Interface, ...]) -> Survey:
    """With these ports on all nodes, whose devices have these interfaces beside eth0."""
    netdevs = tuple(one.name for one in interfaces)
    devices_there = tuple(replace(one, netdevs=netdevs) for one in devices_of(*ports))
    for node in survey.nodes:
        kept = tuple(i for i in node.machine.interfaces or () if i.name == "eth0")
        survey = with_facts(survey, node.index, rdma=devices_there, interfaces=(*kept, *interfaces))
    return survey


@pytest.mark.parametrize(
    "interfaces",
    [
        (replace(IPOIB, admin_up=False, carrier=None, speed_mbits_s=None),),
        (replace(IPOIB, carrier=False, speed_mbits_s=None),),
        (replace(IPOIB, speed_mbits_s=10_000),),
        (),
    ],
    ids=["down", "without carrier", "with a speed of its own", "none"],
)
def test_infiniband_needs_no_ip_over_it(tmp_path: Path, interfaces: tuple[Interface, ...]) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    survey = _everywhere(healthy(3), IB, interfaces=interfaces)
    for question in (links.interfaces, links.speed, rdma.rdma_ports):
        assert verdicts(question, survey, spec) == {}, question
    down = with_facts(survey, 1, rdma=devices_of(replace(IB, state="INIT")))
    assert culprits(links.interfaces, down, spec) == {"gpu1": "gpu1 mlx5_0:1 is INIT"}
    by_name = spec_of(tmp_path, ANY, "infiniband", "ib0")
    if interfaces and not interfaces[0].carrier:
        assert set(verdicts(links.interfaces, survey, by_name).values()) == {"fail"}


def test_a_card_with_a_second_port_that_has_no_cable_is_well(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    second = replace(IB, number=2, state="DOWN", phys_state="Polling", gids=())
    survey = _everywhere(healthy(2), IB, second, interfaces=())
    for question in (links.interfaces, links.speed, rdma.rdma_ports):
        assert verdicts(question, survey, spec) == {}, question


@pytest.mark.parametrize(
    ("port", "verdict", "told"),
    [
        (rdma_port("RoCE"), "fail", "gpu1 mlx5_0:1 is RoCE, not InfiniBand"),
        (rdma_port(state="ARMED"), "fail", "gpu1 mlx5_0:1 ARMED"),
        (rdma_port(phys_state="Disabled"), "fail", "gpu1 mlx5_0:1 ACTIVE, Disabled"),
        (rdma_port(state=None), "inconclusive", "mlx5_0:1 does not report its state or protocol"),
        (rdma_port("unknown"), "inconclusive", "mlx5_0:1 does not report its state or protocol"),
        (
            rdma_port(gid_types=None),
            *("inconclusive", "not every GID of mlx5_0:1 has a known type"),
        ),
        (rdma_port(gid_types=()), "fail", "mlx5_0:1 has none"),
    ],
)
def test_ports_of_another_kind_and_ports_that_do_not_tell(
    tmp_path: Path, port: Port, verdict: str, told: str
) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    survey = _everywhere(healthy(2), IB, interfaces=())
    other = with_facts(survey, 1, rdma=devices_of(port))
    assert verdicts(rdma.rdma_ports, other, spec).get("gpu1", "pass") == verdict
    answers = asked(rdma.rdma_ports, other, spec)["gpu1"]
    assert told in "; ".join(f"{one.culprit} {one.note}" for one in answers)


def test_an_interface_that_does_not_tell_is_neither_up_nor_down(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{interfaces: {}, mtu: {}}")
    mute = with_facts(
        healthy(2), 1, interfaces=(interface("fab0", "", carrier=None), interface("eth0", ""))
    )
    assert verdicts(links.interfaces, mute, spec) == {"gpu1": "inconclusive"}
    spec = spec_of(tmp_path, "{interfaces: {}, mtu: {}}", interfaces="fab*")
    half = (interface("fab0", ""), interface("fab1", "", mtu_bytes=None), interface("eth0", ""))
    assert verdicts(links.interface_mtu, with_facts(healthy(2), 1, interfaces=half), spec) == {
        "gpu1": "inconclusive"
    }


def test_error_counters_that_cannot_be_read_leave_it_open(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path / "machine")
    counters = "sys/class/infiniband/mlx5_0/ports/1/counters"
    tree.write(f"{counters}/port_xmit_data", 5)
    tree.write(f"{counters}/link_downed", 0)
    tree.write(f"{counters}/symbol_error", "N/A (no PMA support)")
    partly = (read_rdma(tree.root) or ())[0].ports[0]
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_*")
    silent = rdma_port(device="mlx5_1", counters=None, hw_counters=None)

    def verdict(*ports: Port) -> str:
        survey = with_facts(healthy(2), 0, rdma=devices_of(*ports))
        last = survey.nodes[0].last
        assert last is not None
        survey = with_node(survey, 0, last=replace(last, rdma=devices_of(*ports)))
        return verdicts(rdma.rdma_errors, survey, spec).get("gpu0", "pass")

    assert verdict(IB) == "pass"
    assert verdict(partly) == "inconclusive"
    assert verdict(IB, silent) == "inconclusive"


def test_iwarp_is_not_roce(tmp_path: Path, recorded: Recorded) -> None:
    """Of the same link layer, with a GID of the name of RoCE v1; its node type tells."""
    devices_there = read_rdma(recorded("numa2-e1000e-siw")) or ()
    active = [
        replace(port, state="ACTIVE", phys_state="LinkUp")
        for d in devices_there
        for port in d.ports
    ]
    spec = spec_of(tmp_path, "{rdma: {gid_types: [RoCE v1]}}", "roce", '"siw*"')
    survey = _everywhere(healthy(2), *active, interfaces=())
    assert set(verdicts(rdma.rdma_ports, survey, spec)) == {"gpu0", "gpu1"}
    first, _ = asked(rdma.rdma_ports, survey, spec)["gpu1"]
    assert first.culprit == "gpu1 siw0:1 is iWARP, not RoCE, siw1:1 is iWARP, not RoCE"


def test_what_no_node_can_read_is_not_the_same(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{same: [code]}")

    def question(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
        return system.same(survey, spec, name, "code")

    for told in ("unreadable: Permission denied", "not there"):
        survey = healthy(3)
        for index in range(3):
            code = {"train/main.py": told, "train/more.py": "0a1b"}
            survey = with_facts(survey, index, code=code)
        assert set(verdicts(question, survey, spec).values()) == {"inconclusive"}


def _named(survey: Survey, hostnames: list[str], reverse: dict[int, str]) -> Survey:
    for node in survey.nodes:
        survey = with_facts(survey, node.index, hostname=hostnames[node.index])
    for node in survey.nodes:
        assert node.paths is not None
        look_ups = tuple(
            LookUp(to, f"10.1.0.{to + 1}", (name,), 0.001, "") for to, name in reverse.items()
        )
        survey = with_node(survey, node.index, paths=replace(node.paths, look_ups=look_ups))
    return survey


@pytest.mark.parametrize(
    ("hostnames", "reverse", "faults"),
    [
        (["a1.hall", "a2.hall"], {0: "a1", 1: "a2.hall."}, 0),
        (["a1", "a2"], {0: "a1.mgmt.hall", 1: "A2.hall"}, 0),
        (["n1.rack1", "n1.rack2"], {0: "n1.rack1", 1: "n1.rack2"}, 0),
        (["n1.rack1", "n1.rack2"], {0: "n1.rack2", 1: "n1.rack2"}, 1),
        (["n1.rack1", "n1.rack2"], {0: "n1", 1: "n1.other"}, 0),
        (["a1.hall", "a2.hall"], {0: "a2.mgmt", 1: "a2"}, 1),
        (["a1", "a2"], {0: "10-1-0-1.pods.cluster.local", 1: "ip-10-1-0-2"}, 0),
    ],
)
def test_names_with_and_without_domains(
    tmp_path: Path, hostnames: list[str], reverse: dict[int, str], faults: int
) -> None:
    spec = spec_of(tmp_path, "{names: {}}")
    survey = _named(healthy(2), hostnames, reverse)
    _, wrong = asked(names.look_ups, survey, spec)["gpu0"]
    assert wrong.value == faults, wrong.note


def test_clocks_without_a_majority_blame_nobody_alone(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{clocks: {skew: 50 ms}}")
    ahead = {2: 0.2, 3: 0.2}
    survey = with_paths(
        healthy(4),
        lambda index, path: replace(path, offset_s=ahead.get(path.to, 0.0) - ahead.get(index, 0.0)),
    )
    found = culprits(names.clocks, survey, spec)
    assert found == {
        name: f"{name} clock, or those of gpu0, gpu1: no majority says which are right"
        for name in ("gpu2", "gpu3")
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_listens_everywhere_is_reached_by_both_families(address: str) -> None:
    if ":" in address and not _has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def tried() -> tuple[bool, float | None]:
        loop = asyncio.get_running_loop()
        post, other = (UdpProbe("", None, b"a run 00", index) for index in (0, 1))
        listener = Listener(open_socket(socket.SOCK_STREAM, "", None))
        for one in (other, post):
            one.listen(loop)
        listener.start(loop)
        answered = await PathProber(post, (address, other.port)).reaches()
        rail = Rail("", address, listener.port, other.port)
        peer = Peer(1, "other", address, listener.port, other.port, {})
        order = ProbeOrder((peer,), (), {}, None, 2.0, None)
        [met], _ = await connect_all(order, [RailPair(peer, "control", Rail("", "", 0, 0), rail)])
        return answered, met.took_s

    answered, took_s = asyncio.run(tried())
    assert answered
    assert took_s is not None


def test_a_name_that_is_not_found_is_told() -> None:
    async def tried() -> str:
        order = ProbeOrder((), (), {}, ("no-such-host.invalid", 1), 2.0, None)
        _, met = await connect_all(order, [])
        assert met is not None
        assert met.took_s is None
        return met.problem

    assert "its name no-such-host.invalid is not found" in asyncio.run(tried())


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_fabric_without_ip_blames_nobody_for_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ANY, "infiniband", "mlx5_0")
    down = replace(IPOIB, admin_up=False, carrier=None)
    survey = _everywhere(healthy(3), IB, interfaces=(down,))
    for node in survey.nodes:
        assert node.facts is not None
        assert node.paths is not None
        rails = {**node.facts.rails, "fabric": ()}
        survey = with_facts(survey, node.index, rails=rails)
        kept = tuple(c for c in node.paths.connections if c.network != "fabric")
        paths = replace(node.paths, connections=kept)
        survey = with_node(survey, node.index, paths=paths)
    assert set(verdicts(reach.peers, survey, spec).values()) == {"inconclusive"}


def test_rdma_over_a_link_says_nothing_of_tcp_on_it(tmp_path: Path) -> None:
    """Soft-iWARP shows a port of 2.5 Gb/sec on whatever it is put."""
    spec = spec_of(tmp_path, "{speed: {}}")
    port = rdma_port("iWARP", device="siw0", rate_gbits_s=2.5)
    links_there = (interface("fab0", "10.2.0.1"),)
    survey = _everywhere(healthy(2), port, interfaces=links_there)
    assert verdicts(links.speed, survey, spec) == {}
    roce = spec_of(tmp_path, "{speed: {}}", "roce")
    assert set(verdicts(links.speed, survey, roce).values()) == {"fail"}


def test_addresses_of_a_node_that_does_not_tell_its_own_are_not_judged(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{names: {}}")
    mute = with_facts(healthy(2), 1, interfaces=None)
    assert verdicts(names.look_ups, mute, spec) == {}  # the control address is known
    node = mute.nodes[0]
    assert node.paths is not None
    elsewhere = (LookUp(1, "gpu1", ("10.9.0.2",), 0.001, ""),)
    other = with_node(mute, 0, paths=replace(node.paths, look_ups=elsewhere))
    assert verdicts(names.look_ups, other, spec) == {"gpu0": "inconclusive"}
    told = with_node(healthy(2), 0, paths=replace(node.paths, look_ups=elsewhere))
    assert verdicts(names.look_ups, told, spec) == {"gpu0": "fail"}
