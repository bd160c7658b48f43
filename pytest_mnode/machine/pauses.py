"""Pause frames that a node's NICs counted, by ethtool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_mnode.machine.netdev import physical_below, read_interfaces
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.machine.rdma import read_rdma

_PAUSE = re.compile(
    r"^\s*(?:"
    r"[rt]x_prio\d_pause"  # mlx5
    r"|[rt]x_pfc_ena_frames_pri\d"  # bnxt
    r"|priority_\d_x(?:on|off)_[rt]x|[rt]x_priority_\d_x(?:on|off)(?:\.nic)?"  # i40e, ice
    r"|frames_[rt]x_(?:pri)?pause"  # ionic
    r"|mac_[rt]x_(?:mac_pause_num|pfc_pri\d_pkt_num)"  # hns3
    r"|[rt]x_pause_ctrl_phy|[rt]x_pause_frames|[rt]x_global_pause"
    r"):\s*(\d+)\s*$",
    re.MULTILINE,
)
"""Source: Linux, Documentation/networking/device_drivers/ethernet, counters of mlx5; drivers bnxt,
i40e and ice, *_ethtool.c; ionic_stats.c; hns3, hclge_main.c."""


def frames_in(text: str) -> int | None:
    """The pause frames in the output of `ethtool -S`, both ways; None if it counts none."""
    counts = _PAUSE.findall(text)
    return sum(map(int, counts)) if counts else None


def pause_frames(patterns: Sequence[str], root: Path = Path("/")) -> int | str:
    """Pause frames that the fabric's NICs sent and received so far, or why they are not known."""
    known = {one.name: one for one in read_interfaces(root) or ()}
    of_rdma: Iterable[str] = (
        name
        for device in read_rdma(root) or ()
        if any(fnmatchcase(device.name, pattern) for pattern in patterns)
        for name in device.netdevs
    )
    named = {name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)}
    named |= set(of_rdma) & known.keys()
    wires = sorted({wire for name in named for wire in physical_below(known[name], known)})
    if not wires:
        return "no NIC of the fabric counts pauses"
    total = 0
    for wire in wires:
        try:
            frames = frames_in(output_of("ethtool", "-S", wire, package="ethtool"))
        except NoOutput as error:
            return str(error)
        if frames is None:
            return f"ethtool -S {wire} counts no pause frames"
        total += frames
    return total
