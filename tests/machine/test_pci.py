"""The PCI tree, compared with hwloc's tree, and distances compared with nvidia-smi's matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_mnode.machine.cpus import parse_cpulist as listed
from pytest_mnode.machine.pci import Distance, full_address, read_pci
from tests.recorded import NAMES, Recorded
from tests.trees import AMAZON, ASPEED, GPU, NIC, NVIDIA, SWITCH_PORT, Tree, gpu_address, gpu_server


@pytest.mark.parametrize("name", NAMES)
def test_functions_their_bridges_and_local_cpus_are_those_that_hwloc_found(
    recorded: Recorded, name: str
) -> None:
    root = recorded(name)
    expected: dict[str, tuple[tuple[str, ...], str]] = {}
    beside: dict[str, frozenset[int]] = {}

    def walk(element: ElementTree.Element, bridges: tuple[str, ...], mask: int) -> None:
        mask = int(element.get("cpuset", hex(mask)), 16)
        if address := element.get("pci_busid"):
            kind = element.attrib["pci_type"][:4]
            expected[address] = (bridges, kind)
            bridges = (*bridges, address)
            if kind.startswith("02"):
                beside[address] = frozenset(i for i in range(mask.bit_length()) if mask >> i & 1)
        for child in element.findall("object"):
            walk(child, bridges, mask)

    walk(ElementTree.parse(root / "cmd/lstopo-io-all.xml").getroot(), (), 0)
    tree = read_pci(root)
    assert {f.address: (f.bridges, f.kind) for f in tree.functions} == expected
    assert {f.address: f.local_cpus for f in tree.networks} == beside
    assert beside or name == "numa1-veth-rxe"


def test_nodes_links_and_drivers_of_a_recorded_machine(recorded: Recorded) -> None:
    tree = read_pci(recorded("numa2-e1000e-aligned"))
    nic = tree.function("0000:61:00.0")
    assert nic is not None
    assert (nic.numa_node, nic.local_cpus, nic.host) == (1, listed("2-3"), "pci0000:60")
    assert (nic.maker, nic.is_network) == ("Intel", True)
    assert (nic.link_gtransfers_s, nic.link_width) == (2.5, 1)
    port = tree.function("0000:60:00.0")
    assert port is not None
    assert (port.kind, port.max_link_gtransfers_s) == ("0604", 16.0)
    assert [f.address for f in tree.networks] == ["0000:41:00.0", "0000:61:00.0"]
    assert tree.accelerators == ()
    assert tree.distance("0000:41:00.0", "0000:61:00.0") is Distance.SYS
    assert tree.distance("0000:61:00.0", "0000:60:00.0") is Distance.PHB


def test_two_ports_of_a_host_bridge_are_phb_apart(recorded: Recorded) -> None:
    tree = read_pci(recorded("numa2-both-nics-on-node1"))
    assert tree.distance("0000:41:00.0", "0000:42:00.0") is Distance.PHB


@pytest.mark.parametrize("name", ["numa1-plain", "numa2-nics-no-affinity"])
def test_minus_one_is_unknown(recorded: Recorded, name: str) -> None:
    nic = read_pci(recorded(name)).networks[0]
    assert nic.numa_node is None
    assert nic.local_cpus == listed("0-3")


def test_distances_on_a_server_with_switches(tmp_path: Path) -> None:
    gpu_server(tmp_path)
    tree = read_pci(tmp_path)
    gpus = [gpu_address(gpu) for gpu in range(8)]
    assert [f.address for f in tree.accelerators] == gpus, "the display is no accelerator"
    nics = [f.address for f in tree.networks if f.vendor == "15b3"]

    def far(gpu: int) -> list[str | None]:
        return [tree.distance(gpus[gpu], nic) for nic in nics]

    assert far(0) == ["PIX", "PHB", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert far(5) == ["SYS", "SYS", "SYS", "SYS", "PHB", "PIX", "NODE", "NODE"]
    assert tree.distance(gpus[3], gpus[3]) is Distance.SELF
    assert tree.distance(gpus[3], "0000:ff:00.0") is None
    assert tree.distance("00000000:13:00.0", "0000:13:00.0") is Distance.SELF


def test_a_switch_below_a_switch_is_pxb(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-7"})
    up = "pci0000:10/0000:10:01.0/0000:11:00.0"
    for path in ("pci0000:10/0000:10:01.0", up, f"{up}/0000:12:00.0", f"{up}/0000:12:01.0"):
        tree.pci(path, SWITCH_PORT, "0x1000", 0, "0-7")
    gpu = tree.pci(f"{up}/0000:12:00.0/0000:13:00.0", GPU, NVIDIA, 0, "0-7")
    lower = f"{up}/0000:12:01.0/0000:14:00.0"
    for path in (lower, f"{lower}/0000:15:00.0"):
        tree.pci(path, SWITCH_PORT, "0x1000", 0, "0-7")
    nic = tree.pci(f"{lower}/0000:15:00.0/0000:16:00.0", NIC, "0x15b3", 0, "0-7")
    second = tree.pci(f"{lower}/0000:15:00.0/0000:16:00.1", NIC, "0x15b3", 0, "0-7")
    found = read_pci(tmp_path)
    assert found.distance(gpu, nic) is Distance.PXB
    assert found.distance(nic, second) is Distance.PIX


def test_unknown_numa_nodes_across_host_bridges_have_no_distance(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.numa({0: "0-7"})
    one = tree.pci("pci0000:10/0000:10:01.0", GPU, NVIDIA)
    other = tree.pci("pci0000:20/0000:20:01.0", NIC, "0x15b3", 0)
    beside = tree.pci("pci0000:10/0000:10:02.0", NIC, "0x15b3")
    found = read_pci(tmp_path)
    assert found.distance(one, other) is None
    assert found.distance(one, beside) is Distance.PHB


def test_accelerators_of_other_makers_and_long_domains(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.pci("pci0000:00/0000:00:02.0", "0x030000", "0x8086")  # built into the CPU
    vmd = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0"
    behind = tree.pci(f"{vmd}/10000:e1:00.0", "0x120000", "0x1002", 3, "8")
    tree.pci("pci0000:10/0000:10:01.0", "0x120000", "0x1da3")
    tree.pci("pci0000:10/0000:10:02.0", "0x068000", NVIDIA)  # an NVSwitch
    tree.pci("pci0000:10/0000:10:03.0", "0x038000", "0x1002")
    tree.pci("pci0000:10/0000:10:04.0", "0x020000", AMAZON)
    found = read_pci(tmp_path)
    assert [(f.address, f.maker) for f in found.accelerators] == [
        ("0000:10:01.0", "Habana"),
        ("0000:10:03.0", "AMD"),
        (behind, "AMD"),
    ]
    function = found.function(behind)
    assert function is not None
    assert (function.host, function.bridges) == ("pci10000:e0", ("10000:e0:06.0",))


def _bars(*sizes: int) -> str:
    """Text of `resource` for registers of these sizes; 0: unused."""
    zero = "0x0000000000000000 " * 2 + "0x0000000000000000"
    lines = [
        f"0x{1 << 40:016x} 0x{(1 << 40) + s - 1:016x} 0x{0:016x}" if s else zero for s in sizes
    ]
    return "\n".join(lines + [zero] * (13 - len(lines)))


@pytest.mark.parametrize(
    ("kind", "vendor", "more", "computes"),
    [
        # A GPU built into a CPU, behind an internal bridge: Raphael.
        ("0x030000", "0x1002", {"resource": _bars(256 << 20, 0, 2 << 20), "boot_vga": 0}, False),
        # One with 4 GiB of memory that also drives the console.
        ("0x030000", "0x1002", {"resource": _bars(4 << 30), "boot_vga": 1}, False),
        ("0x030000", "0x1002", {"resource": _bars(128 << 20), "boot_vga": 1}, False),  # ES1000
        ("0x030000", "0x1002", {}, False),
        ("0x030000", "0x1002", {"resource": _bars(16 << 30, 0, 2 << 20), "boot_vga": 0}, True),
        ("0x030000", "0x1002", {"resource": _bars(16 << 30)}, True),  # MI25, MI50
        ("0x038000", "0x1002", {}, True),  # MI100, MI250
        ("0x120000", "0x1002", {}, True),  # MI300X
        ("0x120000", "0x1da3", {}, True),  # Gaudi
        ("0x030200", NVIDIA, {}, True),
        ("0x030000", NVIDIA, {"resource": _bars(256 << 20), "boot_vga": 1}, True),
        ("0x120000", "0x10ee", {}, False),  # an FPGA: Alveo
        ("0x120000", "0x8086", {}, False),  # an NPU of a CPU
        ("0x030000", "0x8086", {}, True),  # behind a bridge, and so a card
        ("0x030000", ASPEED, {}, False),
    ],
)
def test_functions_that_are_accelerators(
    tmp_path: Path, kind: str, vendor: str, more: dict[str, str | int], computes: bool
) -> None:
    Tree(tmp_path).pci("pci0000:00/0000:00:08.1/0000:0b:00.0", kind, vendor, -1, "", **more)
    [found] = read_pci(tmp_path).functions
    assert found.is_accelerator is computes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (_bars(256 << 20, 0, 16 << 30), 16 << 30),
        (_bars(0, 0), None),
        ("", None),
        ("0x0 nonsense\n", None),
        # After the six registers come the ROM and the windows of bridges.
        (_bars(1 << 20, 0, 0, 0, 0, 0, 1 << 40), 1 << 20),
    ],
)
def test_how_much_memory_a_function_shows(tmp_path: Path, text: str, size: int | None) -> None:
    Tree(tmp_path).pci("pci0000:00/0000:00:01.0", GPU, NVIDIA, resource=text)
    [found] = read_pci(tmp_path).functions
    assert found.largest_bar_bytes == size


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("00000000:17:00.0", "0000:17:00.0"),
        ("17:00.0", "0000:17:00.0"),
        ("0001:AB:1F.7", "0001:ab:1f.7"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("N/A", None),
        (None, None),
    ],
)
def test_addresses_in_any_notation(written: str | None, address: str | None) -> None:
    assert full_address(written) == address


def test_a_missing_tree_has_no_functions(tmp_path: Path) -> None:
    assert read_pci(tmp_path).functions == ()


@pytest.mark.parametrize(
    ("speed", "width", "found"),
    [
        ("64.0 GT/s PCIe", "16", (64.0, 16)),
        ("8 GT/s", "32", (8.0, 32)),
        ("Unknown", "63", (None, None)),  # a removed device
        ("Unknown speed", "255", (None, None)),
        ("2.5 GT/s PCIe", "0", (2.5, None)),  # no link
    ],
)
def test_unknown_links(
    tmp_path: Path, speed: str, width: str, found: tuple[float | None, int | None]
) -> None:
    tree = Tree(tmp_path)
    link: dict[str, Any] = {"current_link_speed": speed, "current_link_width": width}
    tree.pci("pci0000:20/0000:21:00.0", "0x020000", "0x15b3", **link)
    (nic,) = read_pci(tree.root).functions
    assert (nic.link_gtransfers_s, nic.link_width) == found
