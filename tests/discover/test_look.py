"""What the look at a node tells: of recorded machines, of made-up ones, and of this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight.facts import decode, encode
from pytest_mnode.discover.draft import draft
from pytest_mnode.discover.facts import NodeLook, Seen, SharedMount, Sight
from pytest_mnode.discover.look import look, nics
from pytest_mnode.discover.mounts import shared_mounts
from pytest_mnode.discover.verbs import parse_active_mtus
from tests.recorded import NAMES, Recorded
from tests.trees import GPU, NIC, NVIDIA, Tree


@pytest.mark.parametrize("name", NAMES)
def test_a_look_at_any_recorded_machine_travels_and_makes_a_page(
    recorded: Recorded, name: str
) -> None:
    seen = look(recorded(name), running=False)
    assert decode(NodeLook, encode(seen)) == seen
    assert seen.nics is not None
    assert seen.rdma is not None
    assert seen.numa_nodes == int(name[4])
    assert seen.shm_bytes is None  # that is of this machine, not of the recorded one
    shown = Sight((Seen("node0", "10.0.0.1", seen),), "ssh", "", "2026-11-21 16:00 UTC")
    assert "criteria:" in draft(shown).text()


def test_recorded_nics_and_ports(recorded: Recorded) -> None:
    root = recorded("numa2-virtio-aligned-rxe-up")
    seen = look(root, running=False)
    assert seen.nics is not None
    rates = {one.name: (one.rate_mbits_s, one.up, one.numa_node) for one in seen.nics}
    assert rates == {"eth0": (25_000, True, 1), "eth1": (100_000, True, 0)}
    assert seen.rdma is not None
    assert all(port.virtual for port in seen.rdma)
    assert {port.device: port.rate_gbits_s for port in seen.rdma} == {"rxe0": 100, "rxe1": 25}
    assert all(port.nearest is None for port in seen.rdma)  # there is no accelerator


def test_veth_tells_no_rate_of_its_own(recorded: Recorded) -> None:
    seen = look(recorded("numa1-veth-rxe"), running=False)
    assert seen.nics is not None
    assert {one.rate_mbits_s for one in seen.nics if one.kind == "virtual"} == {None}
    [shaped] = [n for n in nics(recorded("numa1-veth-rxe"), {}, {"veth0": 200.0}) if n.shaped]
    assert (shaped.name, shaped.rate_mbits_s) == ("veth0", 200)


def test_what_is_made_of_a_nic_tells_of_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for i, name in enumerate(("eth0", "eth1")):
        path = f"pci0000:00/0000:00:0{i + 1}.0"
        tree.pci(path, NIC, "0x15b3", 0, "0")
        tree.interface(name, path, speed=100000)
    for name in ("eth1.100", "vlan300"):
        tree.interface(name, speed=100000)
        tree.link(f"sys/devices/virtual/net/{name}/lower_eth1", "sys/class/net/eth1")
    addresses = {
        "eth0": ("10.1.0.1",),
        "eth1.100": ("10.2.0.1",),
        "vlan300": ("10.3.0.1",),
    }
    found = nics(tmp_path, addresses, {})
    assert {one.name: one.wires for one in found} == {
        "eth0": ("eth0",),
        **dict.fromkeys(("eth1", "eth1.100", "vlan300"), ("eth1",)),
    }


def test_how_many_of_nvidia_pci_shows(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for i in (1, 2):
        tree.pci(f"pci0000:10/0000:10:0{i}.0", GPU, NVIDIA)
    tree.pci("pci0000:10/0000:10:03.0", "0x120000", "0x1002")
    tree.pci("pci0000:10/0000:10:04.0", GPU, NVIDIA)
    tree.link("sys/devices/pci0000:10/0000:10:04.0/physfn", "sys/bus/pci/devices/0000:10:01.0")
    found = look(tmp_path, running=False).accelerators
    assert found is not None
    assert (found.on_pci, found.nvidia_on_pci) == (4, 2)


def test_recorded_machines_side_by_side_differ(recorded: Recorded) -> None:
    up, down = (
        look(recorded(f"numa2-e1000e-rxe-{state}"), running=False) for state in ("up", "port-down")
    )
    nodes = (Seen("up", "10.0.0.1", up), Seen("down", "10.0.0.2", down))
    page = draft(Sight(nodes, "ssh", "", "2026-11-21 16:00 UTC"))
    assert page.missing  # no address was recorded, so that no link can be told
    assert {"fabric.kind", "fabric.line_rate"} <= set(page.missing)


def test_a_recorded_machine_with_addresses_is_a_node(recorded: Recorded) -> None:
    root = recorded("numa2-virtio-aligned-rxe-up")

    def node(index: int) -> Seen:
        bare = look(root, running=False)
        addresses = {"eth0": (f"10.1.0.{index}",), "eth1": (f"10.2.0.{index}",)}
        fields = {name: getattr(bare, name) for name in NodeLook.__dataclass_fields__}
        return Seen(
            f"node{index}",
            f"10.1.0.{index}",
            NodeLook(**{**fields, "nics": nics(root, addresses, {})}),
        )

    page = draft(Sight((node(1), node(2)), "ssh", "", "2026-11-21 16:00 UTC"))
    text = page.text()
    assert page.missing == ()
    assert page.differences == ()
    assert "interfaces: [eth1]" in text
    assert "line_rate: 100 Gbit/s" in text
    assert "interfaces: [eth0]" in text
    assert "line_rate: 25 Gbit/s" in text


def test_recorded_active_mtus(recorded: Recorded) -> None:
    told = (recorded("numa2-e1000e-rxe-up") / "cmd/ibv_devinfo-v.txt").read_text()
    assert parse_active_mtus(told) == {("rxe0", 1): 1024, ("rxe1", 1): 1024}


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("", {}),
        ("No IB devices found\n", {}),
        ("hca_id:\tmlx5_0\n\tport:\t1\n\t\tactive_mtu:\t\t4096 (5)\n", {("mlx5_0", 1): 4096}),
        ("\tport:\t1\n\t\tactive_mtu:\t\t4096 (5)\n", {}),
        ("hca_id:\tmlx5_0\n\t\tactive_mtu:\t\t4096 (5)\n", {}),
        ("hca_id: a\n port: 1\n active_mtu: invalid MTU (0)\nhca_id: b\n active_mtu: 256 (1)", {}),
        ("hca_id: a\n port: 2\n max_mtu: 4096 (5)\n active_mtu: 256 (1)", {("a", 2): 256}),
    ],
)
def test_active_mtus(told: str, found: dict[tuple[str, int], int]) -> None:
    assert parse_active_mtus(told) == found


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
41 22 0:36 / /data rw,relatime shared:9 - nfs4 filer:/export/data rw,vers=4.2
42 22 0:37 / /a\\040place ro,relatime - lustre 10.0.0.1@tcp:/fs rw
43 22 0:38 / /sys rw - sysfs sysfs rw
cut short
44 22
"""


def test_shared_mounts() -> None:
    assert shared_mounts(MOUNTS) == (
        SharedMount("/a place", "lustre", "10.0.0.1@tcp:/fs", False),
        SharedMount("/data", "nfs4", "filer:/export/data", True),
    )
    assert shared_mounts("") == ()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("fuse.ceph-fuse", "ceph-fuse"),
        ("fuse.daos", "dfuse"),
        ("smb3", "//srv/home"),
        ("virtiofs", "shared"),
        ("beegfs", "beegfs_nodev"),
    ],
)
def test_shared_mounts_by_the_names_that_the_kernel_writes(kind: str, source: str) -> None:
    [found] = shared_mounts(f"36 22 0:36 / /x rw,nosuid shared:9 - {kind} {source} rw\n")
    assert (found.path, found.kind, found.source) == ("/x", kind, source)


def test_an_empty_root_tells_what_cannot_be_read(tmp_path: Path) -> None:
    seen = look(tmp_path, running=False)
    assert seen.nics is None
    assert seen.rdma is None
    assert seen.numa_nodes is None
    assert set(seen.unread) == {"interfaces", "rdma", "mounts"}
    assert "/sys/class/net cannot be listed" in seen.unread["interfaces"]


def test_the_program_tells_of_this_machine_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest_mnode.discover.look"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    seen = decode(NodeLook, line)
    assert seen.cpus
    assert seen.shm_bytes
    assert "torch" not in json.dumps(sorted(seen.unread))
