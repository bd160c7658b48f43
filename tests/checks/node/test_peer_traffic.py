"""ACS and IOMMU, from made trees of /sys with the configuration space of bridges."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pytest_mnode.checks.node.peer_traffic import PeerTrafficIsDirect
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.trees import GPU, IB_NIC, MELLANOX, NVIDIA, SWITCH_PORT, Tree

ROOT, UP = "pci0000:10/0000:10:01.0", "0000:11:00.0"
PORTS = {"0000:12:00.0": "0000:13:00.0", "0000:12:01.0": "0000:14:00.0"}
"""Downstream ports of the switch, with the GPU and the NIC below them."""
SRC_VALID, REQUESTS, COMPLETIONS, UPSTREAM = 1, 4, 8, 16


def config(control: int, *, at: int = 0x148, size: int = 4096) -> bytes:
    """Configuration space with another capability at 0x100, and ACS at `at`."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | at << 20)  # AER, then ACS
    struct.pack_into("<IHH", space, at, 0x000D | 1 << 16, 0x5F, control)
    return bytes(space[:size])


def server(
    root: Path, configs: dict[str, bytes | None], iommu: str | None = "identity", flags: str = "sse"
) -> Path:
    """A GPU and a NIC below one switch, and a NIC elsewhere. configs: by bridge (SrcValid)."""
    tree = Tree(root)
    tree.write("proc/cpuinfo", f"flags\t\t: fpu {flags}")
    tree.pci(ROOT, SWITCH_PORT, MELLANOX)
    tree.pci(f"{ROOT}/{UP}", SWITCH_PORT, MELLANOX)
    kinds = {"0000:13:00.0": (GPU, NVIDIA), "0000:14:00.0": (IB_NIC, MELLANOX)}
    for port, device in PORTS.items():
        tree.pci(f"{ROOT}/{UP}/{port}", SWITCH_PORT, MELLANOX)
        tree.pci(f"{ROOT}/{UP}/{port}/{device}", *kinds[device])
    tree.pci("pci0000:40/0000:40:01.0", SWITCH_PORT, MELLANOX)
    tree.pci("pci0000:40/0000:40:01.0/0000:41:00.0", IB_NIC, MELLANOX)
    for i, address in enumerate(("0000:14:00.0", "0000:41:00.0")):
        tree.write(f"sys/class/infiniband/mlx5_{i}/fw_ver", "28.39.2048")
        tree.link(f"sys/class/infiniband/mlx5_{i}/device", f"sys/bus/pci/devices/{address}")
    for bridge in (ROOT.rpartition("/")[2], UP, *PORTS, "0000:40:01.0"):
        space = configs.get(bridge, config(SRC_VALID))
        if space is not None:
            (root / f"sys/bus/pci/devices/{bridge}/config").write_bytes(space)
    if iommu is not None:
        for i, address in enumerate((*PORTS.values(), "0000:41:00.0")):
            tree.write(f"sys/kernel/iommu_groups/{i}/type", iommu)
            place = (root / "sys/bus/pci/devices" / address).resolve().relative_to(root)
            tree.link(f"{place}/iommu_group", f"sys/kernel/iommu_groups/{i}")
    return root


PORT = "0000:12:01.0"


@pytest.mark.parametrize(
    ("configs", "verdict", "words"),
    [
        ({}, "p", ""),
        ({PORT: config(SRC_VALID | UPSTREAM)}, "p", ""),  # neither redirects by itself
        ({PORT: config(SRC_VALID | REQUESTS)}, "f", f"{PORT} (ReqRedir)"),
        ({PORT: config(0x1D)}, "f", f"{PORT} (ReqRedir CmpltRedir)"),
        ({PORT: config(0x20, at=0x100)}, "f", f"{PORT} (EgressCtrl)"),
        ({PORT: config(COMPLETIONS, at=0xFF8)}, "p", ""),  # broken: beyond the space's end
        ({"0000:10:01.0": config(0x1D), "0000:40:01.0": config(0x1D)}, "p", ""),  # root ports
        ({PORT: config(0x1D, size=64)}, "i", f"{PORT}: its extended configuration is readable"),
        ({PORT: config(0x1D, size=256)}, "i", "run as root"),
        ({PORT: None}, "i", f"{PORT}: config: no such file"),
        ({PORT: None, "0000:12:00.0": config(0x1D)}, "f", "0000:12:00.0 (ReqRedir"),
        ({PORT: struct.pack("<I", 0) * 1024}, "p", ""),  # no capability at all
        ({PORT: bytes(0x100) + struct.pack("<I", 1 | 0x100 << 20) * 100}, "p", ""),  # a loop
    ],
)
def test_a_port_of_a_switch_that_redirects_is_found(
    tmp_path: Path, configs: dict[str, bytes | None], verdict: str, words: str
) -> None:
    found = judged(PeerTrafficIsDirect, "{acs: off}", {"a": server(tmp_path, configs)})
    assert verdicts(found) == verdict
    assert words in str(found["a"][0])
    assert blamed(found) == ({"a"} if verdict == "f" else set())


@pytest.mark.parametrize(
    ("iommu", "verdict"),
    [("identity", "p"), (None, "p"), ("DMA", "f"), ("DMA-FQ", "f"), ("\0", "f"), ("", "f")],
)
def test_a_translating_iommu_is_found(tmp_path: Path, iommu: str | None, verdict: str) -> None:
    found = judged(PeerTrafficIsDirect, "{iommu: passthrough}", {"a": server(tmp_path, {}, iommu)})
    assert verdicts(found) == verdict
    if verdict == "f":
        assert found["a"][0].value == 3


@pytest.mark.parametrize(
    ("line", "verdict"), [("quiet iommu=pt", "p"), ("iommu.passthrough=1", "p"), ("quiet", "i")]
)
def test_an_old_kernel_is_believed_by_its_command_line(
    tmp_path: Path, line: str, verdict: str
) -> None:
    root = server(tmp_path, {})
    for kind in root.glob("sys/kernel/iommu_groups/*/type"):
        kind.unlink()
    (root / "proc/cmdline").write_text(line)
    found = judged(PeerTrafficIsDirect, "{iommu: passthrough}", {"a": root})
    assert verdicts(found) == verdict


def test_a_virtual_machine_shows_neither(tmp_path: Path) -> None:
    root = server(tmp_path, {PORT: config(0x1D)}, "DMA", flags="sse hypervisor lahf_lm")
    found = judged(PeerTrafficIsDirect, "{acs: off, iommu: passthrough}", {"a": root})
    assert verdicts(found) == "ii"
    assert "ATS" in found["a"][0].note


def test_without_an_accelerator_nothing_is_certified(tmp_path: Path) -> None:
    Tree(tmp_path)
    found = judged(PeerTrafficIsDirect, "{acs: off}", {"a": tmp_path})
    assert verdicts(found) == "i"


@pytest.mark.parametrize(
    ("configs", "iommu", "drafted"),
    [
        ({}, "identity", {"acs": "off", "iommu": "passthrough"}),
        ({PORT: config(0x1D)}, "DMA", None),
        ({PORT: None}, None, {"iommu": "passthrough"}),
    ],
)
def test_what_is_drafted(
    tmp_path: Path,
    configs: dict[str, bytes | None],
    iommu: str | None,
    drafted: dict[str, str] | None,
) -> None:
    rows = rows_of(PeerTrafficIsDirect, "{acs: off}", server(tmp_path, configs, iommu)).rows
    assert PeerTrafficIsDirect.draft({"a": rows}) == drafted
