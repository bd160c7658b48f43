"""A board as the kernel would show it under /sys: files and links, by path.

Paths are below a directory of the node's own, which readers of sysfs use as root; the node's real
/sys is not covered. Every socket has a host bridge; their bus numbers are 0x20 apart. Below a host
bridge every accelerator slot has a root port. The fabric's NIC shares the port of the first
accelerator of its socket, so that one bridge connects the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_mnode.launchers.rack.sockets import Board
from pytest_mnode.machine.cpus import format_cpulist

_BRIDGE, _ACCELERATOR, _NIC = "0x060400", "0x120000", "0x020000"
_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_NEAR, _FAR = 10, 21
"""NUMA distances as firmware reports them; 10 is the node itself."""
_REAL_NIC_FILES = (
    *("address", "carrier", "flags", "ifindex", "mtu", "operstate", "speed", "statistics"),
    *("tx_queue_len", "type"),
)


@dataclass(slots=True)
class Tree:
    """files: text by path; links: target by path, absolute ones into the node's real /sys."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def tree(board: Board, fabric: str, management: str) -> Tree:
    """Files that a node with this board shows; `fabric` and `management` are its interfaces."""
    shown = Tree()
    _show_nodes(shown, board)
    _show_cpus(shown, board)
    for socket in range(len(board.sockets)):
        _show_devices(shown, board, socket, {fabric: board.fabric, management: board.management})
    return shown


def _show_nodes(shown: Tree, board: Board) -> None:
    numbers = [socket.number for socket in board.sockets]
    with_memory = [socket.number for socket in board.sockets if socket.size_bytes]
    for name, listed in (
        ("online", numbers),
        ("possible", numbers),
        ("has_cpu", numbers),
        ("has_memory", with_memory),
        ("has_normal_memory", with_memory),
    ):
        shown.files[f"{_NODES}/{name}"] = format_cpulist(listed)
    for socket in board.sockets:
        folder = f"{_NODES}/node{socket.number}"
        distances = [_NEAR if number == socket.number else _FAR for number in numbers]
        shown.files[f"{folder}/cpulist"] = format_cpulist(socket.cpus)
        shown.files[f"{folder}/distance"] = " ".join(map(str, distances))
        size_kb = socket.size_bytes // 1024
        shown.files[f"{folder}/meminfo"] = f"Node {socket.number} MemTotal: {size_kb} kB"
        for cpu in socket.cpus:
            shown.links[f"{folder}/cpu{cpu}"] = f"../../cpu/cpu{cpu}"


def _show_cpus(shown: Tree, board: Board) -> None:
    every = [cpu for socket in board.sockets for cpu in socket.cpus]
    for name in ("online", "possible", "present"):
        shown.files[f"{_CPUS}/{name}"] = format_cpulist(every)
    for socket in board.sockets:
        package = format_cpulist(socket.cpus)
        for cpu in socket.cpus:
            folder = f"{_CPUS}/cpu{cpu}/topology"
            shown.files[f"{folder}/physical_package_id"] = str(socket.number)
            for name in ("core_siblings_list", "package_cpus_list"):
                shown.files[f"{folder}/{name}"] = package
            # Threads share cores as on this machine.
            for name in ("core_id", "thread_siblings_list", "core_cpus_list"):
                shown.links[f"{folder}/{name}"] = f"/{folder}/{name}"
            shown.links[f"{_CPUS}/cpu{cpu}/node{socket.number}"] = f"../../node/node{socket.number}"


def _show_devices(shown: Tree, board: Board, socket: int, interfaces: dict[str, int]) -> None:
    bus = socket * 0x20
    host = f"sys/devices/pci0000:{bus:02x}"
    here = [name for name, on in interfaces.items() if on == socket]
    places = [place for place, on in enumerate(board.accelerators) if on == socket]
    ports = max(len(places), 1 if here else 0)
    for port in range(ports):
        bridge = f"{host}/0000:{bus:02x}:{port + 1:02x}.0"
        _show_function(shown, board, socket, bridge, _BRIDGE)
        below = f"0000:{bus + port + 1:02x}"
        if port < len(places):
            _show_function(shown, board, socket, f"{bridge}/{below}:00.0", _ACCELERATOR)
        for slot, interface in enumerate(here if port == 0 else ()):
            folder = f"{bridge}/{below}:{slot + 1:02x}.0"
            _show_function(shown, board, socket, folder, _NIC)
            _show_interface(shown, folder, interface)


def _show_function(shown: Tree, board: Board, socket: int, folder: str, kind: str) -> None:
    on = board.sockets[socket]
    texts = {
        "class": kind,
        "vendor": "0x1b36",
        "device": "0x0001",
        "numa_node": str(on.number),
        "local_cpulist": format_cpulist(on.cpus),
    }
    for name, text in texts.items():
        shown.files[f"{folder}/{name}"] = text
    address = folder.rpartition("/")[2]
    shown.links[f"{folder}/subsystem"] = "../" * folder.count("/") + "bus/pci"
    shown.links[f"sys/bus/pci/devices/{address}"] = f"../../../{folder.removeprefix('sys/')}"


def _show_interface(shown: Tree, device: str, name: str) -> None:
    folder = f"{device}/net/{name}"
    shown.links[f"{folder}/device"] = "../.."
    for file in _REAL_NIC_FILES:
        shown.links[f"{folder}/{file}"] = f"/sys/class/net/{name}/{file}"
    shown.links[f"sys/class/net/{name}"] = f"../../{folder.removeprefix('sys/')}"


def accelerator_addresses(board: Board) -> Iterator[str]:
    """PCI address of each accelerator's slot, in slot order."""
    seen: dict[int, int] = {}
    for socket in board.accelerators:
        port = seen[socket] = seen.get(socket, 0) + 1
        yield f"0000:{socket * 0x20 + port:02x}:00.0"
