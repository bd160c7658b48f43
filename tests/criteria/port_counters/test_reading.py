"""Counters of a node's fabric ports, from trees of /sys and /proc."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.criteria.port_counters import reading
from pytest_mnode.criteria.port_counters.reading import PortReading, read
from pytest_mnode.machine.encoding import decode
from pytest_mnode.spec import profile_spec
from tests.trees import IB_NIC, MELLANOX, NIC, Tree

ON = "pci0000:10/0000:10:01.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A RoCE NIC eth2 with its RDMA device mlx5_2, an interface eth0, and a bond over eth2."""
    tree = Tree(tmp_path)
    tree.pci(ON, NIC, MELLANOX)
    tree.interface("eth2", ON, carrier_changes=3)
    tree.write(f"sys/devices/{ON}/net/eth2/statistics/rx_crc_errors", 4)
    gid = ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth2")
    tree.rdma("mlx5_2", ON, {"symbol_error": 1}, {"out_of_sequence": 2, "broken": "x"}, [gid])  # type: ignore[dict-item]
    tree.interface("eth0", carrier_changes=9)
    tree.interface("bond0", carrier_changes=1)
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "eth2")
    tree.write("proc/sys/kernel/random/boot_id", "b-1")
    rows = "Ip: Forwarding\nIp: 1\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 500 6"
    tree.write("proc/net/snmp", rows)
    tree.write(
        "proc/net/netstat", "TcpExt: TCPOFOQueue TCPDSACKRecvSegs\nTcpExt: 7 1\nIpExt: A\nIpExt: 2"
    )
    return tree


def ports(reading: PortReading) -> set[str]:
    return reading.ports.keys() - {"TCP"}


@pytest.mark.parametrize("pattern", ["eth2", "mlx5_*"])
def test_an_interface_includes_its_rdma_device_and_vice_versa(tree: Tree, pattern: str) -> None:
    reading = read([pattern], tree.root)
    assert ports(reading) == {"eth2", "mlx5_2:1"}
    assert reading.ports["eth2"]["carrier_changes"] == 3
    assert reading.ports["eth2"]["rx_crc_errors"] == 4
    assert reading.ports["mlx5_2:1"] == {"symbol_error": 1, "out_of_sequence": 2, "broken": None}
    tcp = {"OutSegs": 500, "RetransSegs": 6, "TCPOFOQueue": 7, "TCPDSACKRecvSegs": 1}
    assert reading.ports["TCP"] == tcp
    assert reading.boot.startswith("b-1 ")


def test_ethernet_ports_beside_an_infiniband_fabric_are_left_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.write(f"sys/devices/{ON}/infiniband/mlx5_2/ports/1/link_layer", "Ethernet")
    rail = "pci0000:20/0000:20:01.0"
    tree.pci(rail, IB_NIC, MELLANOX)
    tree.rdma("mlx5_0", rail, {"symbol_error": 0}, link_layer="InfiniBand")
    assert ports(read(["mlx5_*"], tree.root)) == {"mlx5_0:1", "mlx5_2:1", "eth2"}
    monkeypatch.setattr(reading, "read", partial(read, root=tree.root))
    page = {"kind": "infiniband", "interfaces": ("mlx5_*",), "nics_per_node": 1}
    fabric = profile_spec("rack").fabric.model_copy(update=page)
    reading.main(reading.arguments_of(fabric))
    assert ports(decode(PortReading, capsys.readouterr().out)) == {"mlx5_0:1"}


def test_links_of_a_bond_are_read_too(tree: Tree) -> None:
    assert ports(read(["bond0"], tree.root)) == {"bond0", "eth2"}


def test_a_node_without_fabric_ports_has_no_reading(tmp_path: Path) -> None:
    assert read(["fab0"], tmp_path).ports == {}


def test_the_clock_is_compared_with_the_time_since_boot(tree: Tree) -> None:
    assert read(["eth2"], tree.root).clock_s is None
    tree.write("proc/uptime", "5000.25 9000.00")
    clock_s = read(["eth2"], tree.root).clock_s
    assert clock_s == pytest.approx(time.time() - 5000.25, abs=60)


def test_the_clock_is_finer_than_the_ticks_of_the_file_and_the_pauses_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file counts hundredths of a second; here every third reading is also paused for 1 s."""
    now_ms, calls = 1007, 0

    def clock() -> float:
        nonlocal now_ms, calls
        calls += 1
        now_ms += 1 if calls % 3 else 1001
        return now_ms / 1000

    there = SimpleNamespace(text=lambda _: f"{now_ms // 10 / 100:.2f} 0.00")
    monkeypatch.setattr(reading, "sysfs", there)
    monkeypatch.setattr(reading, "time", SimpleNamespace(time=clock, sleep=lambda _: None))
    assert reading._clock(Path("/")) == pytest.approx(0.001, abs=0.0015)
