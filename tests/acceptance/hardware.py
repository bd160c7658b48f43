"""Trees of /sys of a server, which nodes of the rack can show; see `hardware_faults`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.trees import GPU, MELLANOX, NIC, NVIDIA, SWITCH_PORT, Tree

_DEVICE = "pci0000:10/0000:10:02.0/0000:12:00.0"
PORT = f"sys/devices/{_DEVICE}/infiniband/mlx5_0/ports/1"
WIDTH = f"sys/devices/{_DEVICE}/current_link_width"
COUNTER = f"{PORT}/counters/symbol_error"
_LINK: dict[str, Any] = {"current_link_width": 16, "max_link_width": 16}
_LINK |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}


def server(root: Path, cpus: str) -> Tree:
    """A GPU on the first of two sockets, with these CPUs, and a NIC that is an RDMA device too.

    The NIC is fab0. What the tree lacks is the node's own.
    """
    tree = Tree(root)
    (root / "real").mkdir()
    host = "pci0000:10/0000:10"
    for port, name, kind, vendor in (
        ("01", "11", GPU, NVIDIA),
        ("02", "12", NIC, MELLANOX),
    ):
        bridge = f"{host}:{port}.0"
        tree.pci(bridge, SWITCH_PORT, "0x8086", **_LINK)
        tree.pci(f"{bridge}/0000:{name}:00.0", kind, vendor, 0, cpus, **_LINK)
    tree.numa({0: cpus, 1: "8188-8189"})
    tree.rdma(
        "mlx5_0",
        _DEVICE,
        {Path(COUNTER).name: 0},
        gids=[("fe80::1", "RoCE v2", "fab0")],
        link_layer="Ethernet",
    )
    tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    _show_real(root, f"devices/{_DEVICE}/net/fab0", "class/net/fab0", ("device", "subsystem"))
    tree.link(f"sys/devices/{_DEVICE}/net/fab0/device", f"sys/devices/{_DEVICE}")
    tree.link("sys/class/net/fab0", f"sys/devices/{_DEVICE}/net/fab0")
    tree.write("sys/devices/system/cpu/online", "0-8191")
    for folder in ("", "class", "class/net", "devices", "devices/system", "devices/system/cpu"):
        _show_real(root, folder, folder)
    return tree


def _show_real(root: Path, shown: str, real: str, but: Sequence[str] = ()) -> None:
    """Links to what the node's own /sys has in a folder, and the tree has not.

    Interfaces are those that a node of the rack has.
    """
    here = Path("/sys", "class/net/lo" if real.startswith("class/net/") else real)
    names = ["lo", "mgmt0"] if real == "class/net" else [path.name for path in here.iterdir()]
    (root / "sys" / shown).mkdir(parents=True, exist_ok=True)
    for name in names:
        link = root / "sys" / shown / name
        if name not in but and not os.path.lexists(link):
            link.symlink_to(root / "real" / real / name)
