"""Rows of NICs: read of all on a node, which does not know the spec, and judged of the fabric's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine.rdma import Port, RdmaDevice, read_rdma

_NAMES = "names of a NIC"


def names_of(device: str, names: Sequence[str]) -> Row:
    """The names by which `fabric.interfaces` may mean a NIC whose rows are of `device`."""
    return row(_NAMES, " ".join(dict.fromkeys(names)), device=device)


def live_ports(root: Path, protocol: str) -> Iterator[tuple[RdmaDevice, Port]]:
    """RDMA ports of a protocol that have a cable: a spare port is nobody's fault.

    Raises OSError if /sys cannot be read.
    """
    devices = read_rdma(root)
    if devices is None:
        raise OSError("/sys/class cannot be read")
    for device in devices:
        for port in device.ports:
            if port.protocol == protocol and port.state != "DOWN":
                yield device, port


def fabric_names(rows: Rows, patterns: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """Names of the NICs that match a pattern of `fabric.interfaces`, by node and device."""
    return {
        (one.node, one.device): names
        for found in rows.by_node.values()
        for one in found
        if one.metric == _NAMES
        for names in [str(one.value).split()]
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
    }


def of_fabric(rows: Rows, patterns: Sequence[str]) -> Rows:
    """The rows of NICs that match a pattern of `fabric.interfaces`, without those of names."""
    named = fabric_names(rows, patterns)
    return rows.where(lambda one: one.metric != _NAMES and (one.node, one.device) in named)
