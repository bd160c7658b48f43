"""RDMA devices, ports and counters, compared with the rdma tool and ibv_devinfo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mnode.machine.counters import (
    CounterMeaning,
    error_increases,
    increase,
    meaning,
    port_bytes,
)
from pytest_mnode.machine.rdma import (
    UNKNOWN_GID,
    Gid,
    Port,
    RdmaDevice,
    parse_rate_gbits_s,
    parse_state,
    read_rdma,
)
from tests.recorded import NAMES, Recorded
from tests.trees import IB_NIC, MELLANOX, NIC, Tree, gpu_server


def _devices(root: Path) -> dict[str, RdmaDevice]:
    return {device.name: device for device in read_rdma(root) or ()}


def _port(root: Path, **more: Any) -> Port:
    """The port of an RDMA device, the only one of this machine."""
    tree, on = Tree(root), "pci0000:10/0000:10:01.0"
    tree.pci(on, NIC, MELLANOX)
    tree.rdma("rdma0", on, **more)
    (device,) = read_rdma(root) or ()
    return device.ports[0]


@pytest.mark.parametrize("name", NAMES)
def test_ports_are_as_the_rdma_tool_shows_them(recorded: Recorded, name: str) -> None:
    root = recorded(name)
    expected = {
        f"{link['ifname']}:{link['port']}": (
            link["state"],
            link["physical_state"].replace("_", "").lower(),
            link["netdev"],
        )
        for link in json.loads((root / "cmd/rdma-link.json").read_text())
    }
    found = {
        port.name: (port.state, (port.phys_state or "").lower(), device.netdevs[0])
        for device in _devices(root).values()
        for port in device.ports
    }
    assert found == expected


def test_soft_roce_on_two_nodes(recorded: Recorded) -> None:
    devices = _devices(recorded("numa2-virtio-aligned-rxe-up"))
    assert [*devices] == ["rxe0", "rxe1"]
    first, second = devices.values()
    assert [d.ports[0].rate_gbits_s for d in (first, second)] == [100.0, 25.0]
    assert [d.numa_node for d in (first, second)] == [0, 1]
    assert [d.pci_address for d in (first, second)] == ["0000:41:00.0", "0000:61:00.0"]
    assert (first.parent, first.netdevs, first.virtual) == ("eth1", ("eth1",), True)
    port = first.ports[0]
    assert port.active is True
    assert port.link_layer == "Ethernet"
    gids = [(g.index, g.type, g.netdev) for g in port.gids or ()]
    assert gids == [(0, "RoCE v2", "eth1"), (1, "RoCE v2", "eth1")]
    assert port.counters is None, "soft-RoCE in its shipped form has no byte counters"
    assert port_bytes(port) is None
    assert set(error_increases(port, port).values()) == {0}
    assert port.hw_counters is not None
    assert "lifespan" not in port.hw_counters, "this file is no counter"


def test_a_port_whose_interface_is_down(recorded: Recorded) -> None:
    devices = _devices(recorded("numa2-e1000e-rxe-port-down"))
    port = devices["rxe1"].ports[0]
    assert (port.active, port.state, port.phys_state) == (False, "DOWN", "Disabled")
    assert port.rate_gbits_s == 2.5
    assert devices["rxe0"].ports[0].active is True


def test_soft_iwarp_has_no_counters_and_is_found_by_its_address(recorded: Recorded) -> None:
    devices = _devices(recorded("numa2-e1000e-siw"))
    device = devices["siw0"]
    port = device.ports[0]
    assert (port.active, port.counters, port.hw_counters) == (False, None, None)
    assert (device.parent, device.netdevs, device.numa_node) == (None, ("eth1",), 0)
    assert (device.node_type, device.firmware) == ("RNIC", None)
    assert devices["siw1"].numa_node == 1


@pytest.mark.parametrize(
    ("node_type", "link_layer", "protocol"),
    [
        ("1: CA", "InfiniBand", "InfiniBand"),
        ("1: CA", "Ethernet", "RoCE"),
        ("4: RNIC", "Ethernet", "iWARP"),  # irdma and erdma as iWARP, cxgb4, soft-iWARP
        ("5: usNIC", "Ethernet", "usNIC"),
        ("6: usNIC UDP", "Ethernet", "usNIC"),
        ("7: unspecified", "Unknown", "EFA"),
        ("7: <unknown>", "Unknown", "EFA"),  # Linux before 5.2
        ("7: unspecified", "Ethernet", None),
        ("1: CA", "Unknown", None),
        ("", "InfiniBand", "InfiniBand"),  # iWARP never has it
        ("", "Ethernet", None),
        ("1: CA", "", None),
        ("9: later", "Ethernet", None),
    ],
)
def test_protocol_of_a_port(
    tmp_path: Path, node_type: str, link_layer: str, protocol: str | None
) -> None:
    gids = [("5254:0000:0001:0000:0000:0000:0000:0000", "IB/RoCE v1", "eth0")]
    port = _port(tmp_path, gids=gids, node_type=node_type, link_layer=link_layer)
    assert port.protocol == protocol


def test_protocols_of_recorded_devices(recorded: Recorded) -> None:
    for name, protocol in (("numa2-e1000e-siw", "iWARP"), ("numa2-e1000e-rxe-up", "RoCE")):
        ports = [port for device in read_rdma(recorded(name)) or () for port in device.ports]
        assert {port.protocol for port in ports} == {protocol}


@pytest.mark.parametrize(
    ("attribute", "text", "node_type"),
    [("parent", "eth0", "1: CA"), ("node_desc", "Software iWARP stack", "4: RNIC")],
)
def test_software_devices_are_virtual_though_linux_gave_them_the_device_of_their_nic(
    tmp_path: Path, attribute: str, text: str, node_type: str
) -> None:
    tree, on = Tree(tmp_path), "pci0000:10/0000:10:01.0"
    tree.pci(on, NIC, MELLANOX, 1)
    tree.interface("eth0", on)
    tree.rdma("soft0", on, node_type=node_type, link_layer="Ethernet")
    tree.write(f"sys/devices/{on}/infiniband/soft0/{attribute}", text)
    (device,) = read_rdma(tmp_path) or ()
    assert (device.virtual, device.netdevs, device.numa_node) == (True, ("eth0",), 1)


def test_soft_roce_on_veth_has_no_node(recorded: Recorded) -> None:
    device = _devices(recorded("numa1-veth-rxe"))["rxe0"]
    assert (device.numa_node, device.pci_address, device.netdevs) == (None, None, ("veth0",))
    assert device.ports[0].rate_gbits_s == 10.0


@pytest.mark.parametrize("name", ["numa1-plain", "numa2-e1000e-aligned"])
def test_a_machine_without_rdma_has_no_device(recorded: Recorded, name: str) -> None:
    assert read_rdma(recorded(name)) == ()


def test_a_missing_sys_is_unknown_not_empty(tmp_path: Path) -> None:
    assert read_rdma(tmp_path) is None


def _moved_bytes(before: Port, after: Port) -> tuple[int | None, int | None]:
    sent, received = (
        increase(port_bytes(before, sent=s), port_bytes(after, sent=s)) for s in (True, False)
    )
    return sent, received


def test_bytes_between_two_readings(recorded: Recorded) -> None:
    before = read_rdma(recorded("numa2-virtio-rxe-pma-idle"))
    after = read_rdma(recorded("numa2-virtio-rxe-pma-after-traffic"))
    assert before is not None
    assert after is not None
    ports = [(b.ports[0], a.ports[0]) for b, a in zip(before, after, strict=True)]
    assert [_moved_bytes(b, a) for b, a in ports] == [(4 * 105525466, 4 * 102694981), (0, 0)]
    one, quiet = ([(n, by) for n, by in error_increases(*pair).items() if by] for pair in ports)
    assert one == [("completer_retry_err", 96), ("duplicate_request", 2793)]
    assert quiet == []
    # In reverse order the counters decrease, as after a reset: nothing is known then.
    assert [_moved_bytes(a, b)[0] for b, a in ports] == [None, 0]
    back = error_increases(after[0].ports[0], before[0].ports[0])
    assert back["duplicate_request"] is None


_MLX5 = {"port_xmit_data": 1000, "port_rcv_data": 500, "port_xmit_wait": 7, "symbol_error": 0}
_MLX5 |= {"link_downed": 1, "port_xmit_packets": 10, "port_rcv_packets": 5, "port_rcv_errors": 0}
_MLX5_HW = {"out_of_sequence": 2, "np_cnp_sent": 4, "req_cqe_flush_error": 9, "lifespan": 10}


def _reading(
    root: Path, counters: dict[str, int], hw_counters: dict[str, int] | None = None
) -> RdmaDevice:
    root.mkdir()
    tree = Tree(root)
    on = "pci0000:10/0000:10:01.0/0000:11:00.0"
    tree.pci(on, IB_NIC, MELLANOX, 1, "4-7")
    tree.rdma("mlx5_0", on, counters, hw_counters)
    (device,) = read_rdma(root) or ()
    return device


def test_increased_counters_of_an_infiniband_port(tmp_path: Path) -> None:
    before = _reading(tmp_path / "before", _MLX5, _MLX5_HW)
    assert (before.numa_node, before.pci_address, before.virtual) == (1, "0000:11:00.0", False)
    port = before.ports[0]
    assert (port.link_layer, port.rate_gbits_s) == ("InfiniBand", 400.0)
    rose = {"port_xmit_data": 1000 + (1 << 33), "port_xmit_wait": 9, "link_downed": 2}
    rose_hw = {"out_of_sequence": 5, "np_cnp_sent": 14, "req_cqe_flush_error": 90}
    after = _reading(tmp_path / "after", _MLX5 | rose, _MLX5_HW | rose_hw)
    found = error_increases(port, after.ports[0])
    assert _moved_bytes(port, after.ports[0]) == (4 << 33, 0)
    assert {name: by for name, by in found.items() if by} == {
        "link_downed": 1,
        "out_of_sequence": 3,
    }
    assert None not in found.values()
    assert set(error_increases(port, None).values()) == {None}


def test_a_counter_saturated_at_its_largest_value_is_unknown(tmp_path: Path) -> None:
    full = {"port_xmit_data": (1 << 32) - 1, "symbol_error": 65535}
    before = _reading(tmp_path / "before", {"port_xmit_data": 5, "symbol_error": 65535})
    after = _reading(tmp_path / "after", full)
    assert _moved_bytes(before.ports[0], after.ports[0])[0] is None
    assert error_increases(before.ports[0], after.ports[0]) == {"symbol_error": None}
    risen = error_increases(
        _reading(tmp_path / "low", {"symbol_error": 1}).ports[0], after.ports[0]
    )
    assert risen == {"symbol_error": 65534}


def test_a_counter_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    before = _reading(tmp_path / "before", _MLX5)
    tree = Tree(tmp_path / "after")
    _reading(tmp_path / "later", _MLX5)
    on = "pci0000:10/0000:10:01.0/0000:11:00.0"
    tree.pci(on, IB_NIC, MELLANOX, 1, "4-7")
    tree.rdma("mlx5_0", on, _MLX5)
    folder = f"sys/devices/{on}/infiniband/mlx5_0/ports/1"
    tree.write(f"{folder}/counters/port_rcv_errors", "N/A")
    (device,) = read_rdma(tree.root) or ()
    assert device.ports[0].unreadable == ("counters/port_rcv_errors",)
    for pair in (before, device), (device, before):
        found = error_increases(*(one.ports[0] for one in pair))
        assert [name for name, by in found.items() if by is None] == ["port_rcv_errors"]
    assert _moved_bytes(before.ports[0], device.ports[0])[0] == 0


def test_gids_of_both_types_and_devices_in_numeric_order(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    zero = ":".join(["0000"] * 8)
    v4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    for number in (10, 2):
        on = f"pci0000:10/0000:10:{number:02x}.0"
        tree.pci(on, NIC, MELLANOX)
        tree.interface(f"eth{number}", on)
        gids = [(v4, "IB/RoCE v1", f"eth{number}"), (v4, "RoCE v2", f"eth{number}"), (zero, "", "")]
        tree.rdma(f"mlx5_{number}", on, gids=gids, link_layer="Ethernet")
    devices = _devices(tmp_path)
    assert [*devices] == ["mlx5_2", "mlx5_10"]
    gids_found = devices["mlx5_2"].ports[0].gids
    assert [g.type for g in gids_found or ()] == ["IB/RoCE v1", "RoCE v2"]
    assert devices["mlx5_10"].netdevs == ("eth10",)
    assert devices["mlx5_10"].numa_node is None, "−1 is unknown"


def test_rates() -> None:
    for text, rate in (("400 Gb/sec (4X NDR)", 400.0), ("2.5 Gb/sec (1X SDR)", 2.5)):
        assert parse_rate_gbits_s(text) == rate
    for none in ("0 Gb/sec (4X SDR)", "N/A", "", None):
        assert parse_rate_gbits_s(none) is None


@pytest.mark.parametrize(
    ("state", "phys_state", "active"),
    [
        ("4: ACTIVE", "5: LinkUp", True),
        ("1: DOWN", "5: LinkUp", False),  # as just after a link came up
        ("2: INIT", "5: LinkUp", False),  # no subnet manager
        ("4: ACTIVE", "3: Disabled", False),
        ("4: ACTIVE", "0: <unknown>", True),
        ("", "5: LinkUp", None),
    ],
)
def test_a_port_is_active_by_both_its_states(
    tmp_path: Path, state: str, phys_state: str, active: bool | None
) -> None:
    assert _port(tmp_path, state=state, phys_state=phys_state).active is active


def test_states() -> None:
    assert parse_state("4: ACTIVE") == "ACTIVE"
    assert parse_state("5: LinkUp\n") == "LinkUp"
    assert parse_state("0: <unknown>") is None
    assert parse_state("ACTIVE") is None


@settings(deadline=None, max_examples=60)
@given(st.text() | st.from_regex(r"\d+(\.\d+)? Gb/sec( \(\dX \w+\))?"))
def test_any_text_is_read(text: str) -> None:
    parse_rate_gbits_s(text)
    parse_state(text)
    meaning(text)


MEANINGS = {
    CounterMeaning.ERROR: """
        symbol_error ip4InDiscards link_error_recovery port_xmit_discards retry_exceeded_err
        req_remote_access_errors rx_icrc_encapsulated res_exceed_max res_length_mismatch
        res_rx_no_perm res_irrq_oflow ip4OutNoRoutes req_tx_retry_excd_err rdma_read_wr_err
        rdma_write_wr_err res_tx_pci_err unresponsive_remote_events""",
    CounterMeaning.LOSS: """
        tcpRetransSegs VL15_dropped rx_drops local_ack_timeout_err rnr_nak_retry_err rnr_naks_rcvd
        requester_oos_nak responder_oos retrans_timeout_events req_rx_pkt_seq_err
        resp_tx_pkt_seq_err resp_rx_outouf_seq tx_rdma_ack_timeout""",
    CounterMeaning.CONGESTION: """
        RxECNMrkd rp_cnp_handled np_ecn_marked_roce_packets port_xmit_wait""",
    # Also commands that a driver refused.
    CounterMeaning.OTHER: """
        resp_cqe_flush_error ack_deferred cmds_err no_completion_cmds alloc_pd_err create_qp_err
        create_cq_err reg_mr_err mmap_err alloc_ucontext_err create_ah_err qp_create_err_cnt
        mr_rereg_err_cnt rx_write_requests port_xmit_data multicast_xmit_packets""",
}


def test_the_meaning_of_a_counter_file() -> None:
    for means, counters in MEANINGS.items():
        for counter in counters.split():
            assert meaning(counter) is means, counter


@pytest.mark.parametrize(
    ("node_type", "layer", "types", "expected"),
    [
        ("CA", "Ethernet", ["IB/RoCE v1", "RoCE v2"], ("RoCE v1", "RoCE v2")),
        ("CA", "Ethernet", [None], (UNKNOWN_GID,)),
        ("CA", "InfiniBand", ["IB/RoCE v1"], ("IB",)),
        (None, "InfiniBand", [None], ("IB",)),
        ("unspecified", "Unknown", ["IB/RoCE v1"], ("IB",)),
        ("RNIC", "Ethernet", ["IB/RoCE v1"], ("iWARP",)),
        ("CA", None, ["IB/RoCE v1"], (UNKNOWN_GID,)),
        (None, "Ethernet", ["IB/RoCE v1"], (UNKNOWN_GID,)),
        ("CA", "Ethernet", [], ()),
        ("CA", "Ethernet", None, (UNKNOWN_GID,)),
    ],
)
def test_types_of_gids(
    node_type: str | None,
    layer: str | None,
    types: list[str | None] | None,
    expected: tuple[str, ...],
    tmp_path: Path,
) -> None:
    port: Port = (read_rdma(gpu_server(tmp_path).root) or ())[0].ports[0]
    gids = None
    if types is not None:
        gids = tuple(Gid(index=i, gid="fe80::1", type=t, netdev=None) for i, t in enumerate(types))
    port = replace(port, node_type=node_type, link_layer=layer, gids=gids)
    assert port.gid_types == expected
