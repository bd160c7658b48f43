"""Judges of RDMA ports, their error counters, and GPUDirect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.gpudirect import GpudirectIsThere
from pytest_mnode.checks.node.interfaces import InterfacesAreUp, InterfacesRunAtTheirSpeed
from pytest_mnode.checks.node.mtu import InterfacesHaveTheirMtu
from pytest_mnode.checks.node.rdma import (
    RdmaDevicesCanBeOpened,
    RdmaErrorsStandStill,
    RdmaPortsAreActive,
)
from pytest_mnode.criteria.preflight.answers import LastFacts, Survey
from pytest_mnode.evidence.check import Check
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.machine.rdma import Gid, Port, VerbsDevice, read_rdma
from tests.criteria.preflight.made import (
    ANY,
    IB,
    SOFTWARE,
    asked,
    culprits,
    devices_of,
    everyone,
    everywhere,
    healthy,
    interface,
    promising,
    rdma_device,
    rdma_port,
    verdicts,
    with_facts,
    with_node,
)
from tests.recorded import Recorded
from tests.trees import gpu_server

PORT = rdma_port("RoCE", ("IB/RoCE v1", "RoCE v2"))


def _rdma(before: Port, after: Port | None = None) -> Survey:
    """Two nodes, the second with this port before and after."""
    survey = healthy(2)
    link = interface("rocep1", "10.2.0.1")
    for index, (one, then) in enumerate(((PORT, PORT), (before, after or before))):
        device = rdma_device(one, netdevs=("rocep1",))
        survey = with_facts(survey, index, rdma=(device,), interfaces=(link,))
        last = survey.nodes[index].last
        assert last is not None
        survey = with_node(survey, index, last=LastFacts(last.heard, (rdma_device(then),)))
    return survey


def _counting(**counters: int) -> Port:
    return replace(PORT, counters={**(PORT.counters or {}), **counters})


def test_rdma_ports_and_their_errors() -> None:
    spec = promising("{rdma: {gid_types: [RoCE v2], errors_at_most: 0}}", "roce", "rocep1")
    assert verdicts(RdmaPortsAreActive, _rdma(PORT), spec) == {}
    assert verdicts(RdmaErrorsStandStill, _rdma(PORT), spec) == {}
    down = _rdma(replace(PORT, state="DOWN"))
    assert culprits(RdmaPortsAreActive, down, spec) == {"gpu1": "gpu1 mlx5_0:1 DOWN"}
    first = _rdma(rdma_port("RoCE", ("IB/RoCE v1",)))
    assert culprits(RdmaPortsAreActive, first, spec) == {"gpu1": "gpu1 mlx5_0:1 has RoCE v1"}
    one_is_enough = _rdma(rdma_port("RoCE", (None, "RoCE v2")))
    assert verdicts(RdmaPortsAreActive, one_is_enough, spec) == {}
    for errors, found in ((3, {}), (40, {"gpu1": "gpu1 mlx5_0:1 symbol_error +40"})):
        late = _rdma(PORT, _counting(symbol_error=errors))
        for index, node in enumerate(late.nodes):
            assert node.last is not None
            late = with_node(late, index, last=replace(node.last, after_s=1000.0))
        assert culprits(RdmaErrorsStandStill, late, spec) == found
    rising = _rdma(PORT, _counting(symbol_error=4))
    assert culprits(RdmaErrorsStandStill, rising, spec) == {"gpu1": "gpu1 mlx5_0:1 symbol_error +4"}
    several = _rdma(PORT, _counting(symbol_error=4, link_downed=2))
    assert asked(RdmaErrorsStandStill, several, spec)["gpu1"][0].value == 6
    set_back = _rdma(_counting(link_downed=3), PORT)
    gone = _rdma(PORT, replace(PORT, device="mlx5_7"))
    for unknown in (set_back, gone):
        assert verdicts(RdmaErrorsStandStill, unknown, spec) == {"gpu1": "inconclusive"}
    assert set(culprits(RdmaPortsAreActive, healthy(2), spec)) == {"gpu0", "gpu1"}  # no GID at all
    assert set(verdicts(RdmaErrorsStandStill, healthy(2), spec).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("port", "verdict", "words"),
    [
        (rdma_port("RoCE"), "fail", "gpu1 mlx5_0:1 is RoCE, not InfiniBand"),
        (rdma_port(state="ARMED"), "fail", "gpu1 mlx5_0:1 ARMED"),
        (rdma_port(phys_state="Disabled"), "fail", "gpu1 mlx5_0:1 ACTIVE, Disabled"),
        (rdma_port(state=None), "inconclusive", "mlx5_0:1 does not report its state or protocol"),
        (rdma_port("unknown"), "inconclusive", "mlx5_0:1 does not report its state or protocol"),
        (rdma_port(gid_types=None), "inconclusive", "not every GID of mlx5_0:1 has a known type"),
        (rdma_port(gid_types=()), "fail", "mlx5_0:1 has none"),
    ],
)
def test_ports_of_another_kind_and_of_unknown_state(port: Port, verdict: str, words: str) -> None:
    spec = promising(ANY, "infiniband", "mlx5_0")
    survey = everywhere(healthy(2), IB, interfaces=())
    other = with_facts(survey, 1, rdma=devices_of(port))
    assert verdicts(RdmaPortsAreActive, other, spec).get("gpu1", "pass") == verdict
    answers = asked(RdmaPortsAreActive, other, spec)["gpu1"]
    assert words in "; ".join(f"{one.culprit} {one.note}" for one in answers)


def test_unreadable_error_counters_are_inconclusive(tmp_path: Path) -> None:
    tree = gpu_server(tmp_path / "machine")
    counters = "sys/class/infiniband/mlx5_0/ports/1/counters"
    tree.write(f"{counters}/port_xmit_data", 5)
    tree.write(f"{counters}/link_downed", 0)
    tree.write(f"{counters}/symbol_error", "N/A (no PMA support)")
    partly = (read_rdma(tree.root) or ())[0].ports[0]
    spec = promising(ANY, "infiniband", "mlx5_*")
    silent = rdma_port(device="mlx5_1", counters=None, hw_counters=None)

    def verdict(*ports: Port) -> str:
        survey = with_facts(healthy(2), 0, rdma=devices_of(*ports))
        last = survey.nodes[0].last
        assert last is not None
        survey = with_node(survey, 0, last=replace(last, rdma=devices_of(*ports)))
        return verdicts(RdmaErrorsStandStill, survey, spec).get("gpu0", "pass")

    assert verdict(IB) == "pass"
    assert verdict(partly) == "inconclusive"
    assert verdict(IB, silent) == "inconclusive"


def test_iwarp_is_not_roce(recorded: Recorded) -> None:
    """Both have the link layer Ethernet and GIDs named "RoCE v1"; only the node type differs."""
    devices = read_rdma(recorded("numa2-e1000e-siw")) or ()
    ports = [port for device in devices for port in device.ports]
    active = [replace(port, state="ACTIVE", phys_state="LinkUp") for port in ports]
    spec = promising("{rdma: {gid_types: [RoCE v1]}}", "roce", '"siw*"')
    survey = everywhere(healthy(2), *active, interfaces=())
    assert set(verdicts(RdmaPortsAreActive, survey, spec)) == {"gpu0", "gpu1"}
    first, _ = asked(RdmaPortsAreActive, survey, spec)["gpu1"]
    assert first.culprit == "gpu1 siw0:1 is iWARP, not RoCE, siw1:1 is iWARP, not RoCE"


@pytest.mark.parametrize(
    ("verbs", "verdict", "words"),
    [
        (VerbsDevice("uverbs0", "mlx5_0"), "pass", "1 ports"),
        (VerbsDevice("uverbs0", "mlx5_0", "no such file"), "fail", "mlx5_0 (uverbs0 no such file)"),
        (VerbsDevice("uverbs1", "mlx5_1"), "fail", "mlx5_0 (the kernel has no uverbs device"),
        (None, "inconclusive", "no verbs"),
    ],
)
def test_listed_devices_that_cannot_be_opened(
    verbs: VerbsDevice | None, verdict: str, words: str
) -> None:
    spec = promising("{rdma: {}}", "roce", "rocep1")
    survey = with_facts(_rdma(PORT), 0, verbs=(VerbsDevice("uverbs0", "mlx5_0"),))
    survey = with_facts(survey, 1, verbs=verbs and (verbs,))
    [found] = asked(RdmaDevicesCanBeOpened, survey, spec)["gpu1"]
    assert found.verdict == verdict
    assert words in str(found.culprit if verdict == "fail" else found.note)
    assert verdicts(RdmaDevicesCanBeOpened, survey, spec).get("gpu0") is None


def test_only_devices_with_an_active_fabric_port_count_as_opened() -> None:
    """The promised number must open; another listed device may belong to another tenant."""
    spec = promising("{rdma: {}}", "roce", '"mlx5_*"')
    shut = VerbsDevice("uverbs1", "mlx5_1", "no such file")
    other, down = replace(PORT, device="mlx5_1"), replace(PORT, state="DOWN")
    survey = everyone(healthy(2), verbs=(VerbsDevice("uverbs0", "mlx5_0"), shut))
    survey = with_facts(survey, 0, rdma=devices_of(PORT, other))
    for ports, culprit in (
        ((down, other), "gpu1 mlx5_1 (uverbs1 no such file)"),
        ((down,), "gpu1 mlx5_0:1 DOWN"),
    ):
        survey = with_facts(survey, 1, rdma=devices_of(*ports))
        assert culprits(RdmaDevicesCanBeOpened, survey, spec) == {"gpu1": culprit}


@pytest.mark.parametrize(
    ("gid", "netdev", "lacks"),
    [
        ("0000:0000:0000:0000:0000:ffff:0a02:0001", "rocep1", ""),
        ("0000:0000:0000:0000:0000:ffff:0a02:0063", "rocep1", "none"),  # same name
        ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "rocep1", "no RoCE v2 GID for 10.2.0.1"),
        ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "ens1f0", "none"),
        ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", None, ""),
        ("unreadable", "rocep1", "no RoCE v2 GID for 10.2.0.1"),
    ],
)
def test_gids_of_another_network_namespace_do_not_count(
    gid: str, netdev: str | None, lacks: str
) -> None:
    spec = promising("{rdma: {gid_types: [RoCE v2]}}", "roce", "mlx5_0")
    port = replace(PORT, gids=(Gid(index=3, gid=gid, type="RoCE v2", netdev=netdev),))
    found = culprits(RdmaPortsAreActive, _rdma(port), spec)
    assert found == ({"gpu1": f"gpu1 mlx5_0:1 has {lacks}"} if lacks else {})


@pytest.mark.parametrize(
    ("promise", "change", "words"),
    [
        ("either", {"driver_is_open": False}, "nvidia_peermem is not loaded"),
        ("peermem", {}, "nvidia_peermem is not loaded"),
        ("dma-buf", {"driver_is_open": False, "peermem": "1"}, "not the open kernel module"),
        ("either", {"driver": None, "driver_is_open": False}, "no NVIDIA driver"),
    ],
)
def test_gpudirect(promise: str, change: dict[str, Any], words: str) -> None:
    spec = promising(f"{{gpudirect: {promise}}}")
    survey = everyone(healthy(2), software=replace(SOFTWARE, peermem="550.54.15"))
    assert verdicts(GpudirectIsThere, survey, spec) == {}
    found = with_facts(survey, 1, software=replace(SOFTWARE, **change))
    [culprit] = culprits(GpudirectIsThere, found, spec).values()
    assert words in culprit


@pytest.mark.parametrize(
    ("promise", "change", "verdict"),
    [
        ("either", {"driver": "550.54.15"}, "inconclusive"),
        # Deprecated, though it works.
        (
            "either",
            {"driver": "550.54.15", "peer_clients": ("nv_mem", "nv_mem_nc")},
            "inconclusive",
        ),
        ("either", {"driver": "580.95.05", "peer_clients": ("nv_mem",)}, "inconclusive"),
        ("either", {"driver": "580.95.05", "peer_clients": ("amdkfd",)}, "inconclusive"),
        ("either", {"driver": "580.95.05", "driver_is_open": True}, None),
        ("peermem", {"driver": "575.57.08"}, None),
        ("peermem", {"driver": "580.95.05"}, "inconclusive"),
        ("peermem", {"driver": "580.95.05", "driver_is_open": True}, "inconclusive"),
        ("peermem", {"driver": "610.1", "peer_clients": ("nv_mem",)}, None),
    ],
)
def test_a_loaded_peermem_has_to_be_registered(
    promise: str, change: dict[str, Any], verdict: str | None
) -> None:
    spec = promising(f"{{gpudirect: {promise}}}")
    loaded = replace(SOFTWARE, peermem="1")
    survey = everyone(healthy(2), software=replace(loaded, peer_clients=("nv_mem",)))
    assert verdicts(GpudirectIsThere, survey, spec) == {}
    survey = with_facts(survey, 1, software=replace(loaded, **{"driver_is_open": False, **change}))
    assert verdicts(GpudirectIsThere, survey, spec) == ({"gpu1": verdict} if verdict else {})


@pytest.mark.parametrize(
    ("promise", "clients", "dmabuf", "vendor", "verdict"),
    [
        ("either", (), False, "1002", "inconclusive"),
        ("either", (), True, "1002", None),  # MI355X with NICs of AMD's, without a peermem module
        ("either", (), True, "1da3", "inconclusive"),
        ("either", ("amdkfd",), False, "1002", None),
        ("peermem", ("amdkfd",), False, "1002", None),
        ("peermem", (), True, "1002", "inconclusive"),
        ("dma-buf", ("amdkfd",), False, "1002", "inconclusive"),
        ("dma-buf", ("amdkfd",), True, "1002", None),
    ],
)
def test_gpudirect_of_other_makers(
    promise: str, clients: tuple[str, ...], dmabuf: bool, vendor: str, verdict: str | None
) -> None:
    spec = promising(f"{{gpudirect: {promise}}}")
    card = PciFunction(address="0000:05:00.0", kind="1200", vendor=vendor)
    none = replace(SOFTWARE, driver=None, driver_is_open=False)
    software = replace(none, peer_clients=clients, kernel_has_dmabuf=dmabuf)
    survey = everyone(healthy(2), software=software, pci=PciTree(functions=(card,)))
    assert verdicts(GpudirectIsThere, survey, spec) == (
        dict.fromkeys(("gpu0", "gpu1"), verdict) if verdict else {}
    )


def test_gpudirect_beside_another_makers_accelerator() -> None:
    """Such as that of a BMC or of an integrated GPU."""
    functions = tuple(
        PciFunction(address=f"0000:0{number}:00.0", kind=kind, vendor=vendor)
        for number, (kind, vendor) in enumerate((("0302", "10de"), ("1200", "1002")))
    )
    survey = everyone(healthy(2), software=SOFTWARE, pci=PciTree(functions=functions))
    assert verdicts(GpudirectIsThere, survey, promising("{gpudirect: dma-buf}")) == {}


def test_ethernet_ports_are_no_links_of_an_infiniband_fabric() -> None:
    promised = "{interfaces: {}, speed: {}, mtu: {networks: [fabric]}, rdma: {errors_at_most: 0}}"
    spec = promising(promised, "infiniband", '"mlx5_*"', nics=2)
    second = rdma_port(device="mlx5_1")
    storage = rdma_port(device="mlx5_2", counters=None, hw_counters=None)
    storage = replace(storage, link_layer="Ethernet", rate_gbits_s=25.0)
    *_, eth0 = healthy(1).nodes[0].machine.interfaces or ()
    there = (interface("ib0", "10.2.0.1"), interface("eno5", "10.4.0.1", mtu_bytes=1500), eth0)
    found = {"gpu0": "gpu0 mlx5_0:1 is INIT, mlx5_2:1 is Ethernet"}
    for first, broken in ((IB, {}), (replace(IB, state="INIT"), found)):
        ports = ((first, "ib0"), (second, ""), (storage, "eno5"))
        devices = tuple(rdma_device(port, netdevs=(name,) * bool(name)) for port, name in ports)
        survey = with_facts(healthy(1), 0, rdma=devices, interfaces=there)
        assert culprits(InterfacesAreUp, survey, spec) == broken
        for judge in (InterfacesRunAtTheirSpeed, InterfacesHaveTheirMtu):
            assert culprits(judge, survey, spec) == {}, judge
        survey = with_node(survey, 0, last=LastFacts((), devices))
        assert verdicts(RdmaErrorsStandStill, survey, spec) == {}


SIX = tuple(replace(PORT, device=f"mlx5_{number}") for number in range(6))
V1 = PORT.gids and PORT.gids[:1]


@pytest.mark.parametrize(
    ("judge", "ports", "later", "devices"),
    [
        (RdmaPortsAreActive, {"state": "DOWN"}, {}, "mlx5_{}:1"),
        (RdmaPortsAreActive, {"gids": V1}, {}, "mlx5_{}:1"),
        (RdmaDevicesCanBeOpened, {}, {}, "mlx5_{}"),
        (RdmaErrorsStandStill, {}, {"hw_counters": {"out_of_sequence": 9}}, "mlx5_{}:1"),
    ],
    ids=["state", "GID", "opened", "errors"],
)
def test_each_device_is_named_as_data_however_many(
    judge: type[Check], ports: dict[str, Any], later: dict[str, Any], devices: str
) -> None:
    """The words name four of six."""
    promise = "{rdma: {gid_types: [RoCE v2], errors_at_most: 0}}"
    spec = promising(promise, "roce", '"mlx5_*"', nics=6)
    bad = tuple(replace(port, **ports) for port in SIX)
    survey = everyone(healthy(2), rdma=devices_of(*SIX), verbs=())
    survey = with_facts(survey, 1, rdma=devices_of(*bad))
    last = survey.nodes[1].last
    assert last is not None
    after = devices_of(*(replace(port, **later) for port in bad))
    survey = with_node(survey, 1, last=replace(last, rdma=after))
    [failed] = [one for one in asked(judge, survey, spec)["gpu1"] if one.verdict == "fail"]
    assert failed.culprit is not None
    assert "and 2 more" in failed.culprit
    named = {("gpu1", devices.format(number)) for number in range(6)}
    assert set(failed.culprit.parts.devices) == named
