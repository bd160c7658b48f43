"""Faults of what one node reads: files, file systems, host names and the clock."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.registry import Parameter, Program, Undo, fault, path, size, whole, word
from pytest_mnode.faults.tools import INSIDE, all_undone, inside, nodes_of, on_node, undone_inside
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.launchers.rack.plan import MAX_NODES

FULL_BYTES = 1 << 20
SMALL_SHM_BYTES = 64 << 20
LOOPBACK = "127.0.1.1"
"""Address that a hosts file often gives for the machine's own name."""
PRELOAD, OFFSET = "/etc/ld.so.preload", "/etc/faketimerc"
FAKETIME_DIRS = (
    Path("/usr/lib/faketime"),
    Path("/usr/lib64/faketime"),
    Path("/usr/local/lib/faketime"),
)


@fault(size("SIZE", "64 MiB, as containers often have"))
def small_shm(rack: Rack, node: Node, size_bytes: int | None) -> Undo:
    """A node's /dev/shm is small."""
    inside(rack, node, "resize", "/dev/shm", str(size_bytes or SMALL_SHM_BYTES))
    full_bytes = str(rack.plan.shm_bytes)
    return undone_inside(rack, node, "resize", "/dev/shm", full_bytes)


@fault(path("PATH"))
def read_only_path(rack: Rack, node: Node, where: str) -> Undo:
    """A node cannot write to a directory or file that the others can write to."""
    if not Path(where).exists():
        raise UsageError(f"no such path: {where}")
    return _mounted_over(rack, node, "read_only", where)


def _mounted_over(rack: Rack, node: Node, what: str, where: str) -> Undo:
    if Path(where).resolve() == Path("/"):  # a mount over it is not seen, and cannot be undone
        raise UsageError(f"{where}: nothing can be mounted over the root directory")
    inside(rack, node, what, where)
    return undone_inside(rack, node, "unmount", where)


@fault(path("PATH"))
def full_disk(rack: Rack, node: Node, where: str) -> Undo:
    """A node finds a full file system at a directory, whose real content is hidden."""
    if not Path(where).is_dir():
        raise UsageError(f"no directory {where}")
    hidden = Path(where).resolve()
    for needed in map(Path, (sys.executable, sys.base_prefix, INSIDE)):
        if needed.is_relative_to(hidden) or needed.resolve().is_relative_to(hidden):
            raise UsageError(f"{where} has {needed}, without which nothing runs on the node")
    inside(rack, node, "full", where, str(FULL_BYTES))
    return undone_inside(rack, node, "unmount", where)


@fault(
    word("NAME", None, "the name of an installed distribution"),
    word("VERSION", "the real one, with +other", "a version"),
)
def other_package(rack: Rack, node: Node, name: str, version: str | None) -> Undo:
    """A node has another version of a Python package, according to the package's metadata."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise UsageError(f"no distribution {name!r} is installed") from None
    metadata = next((f for f in found.files or () if f.name in ("METADATA", "PKG-INFO")), None)
    if metadata is None:
        raise UsageError(f"{name} has no metadata in a file of its own")
    target = Path(str(found.locate_file(metadata))).resolve()
    text = target.read_text(encoding="utf-8")
    other = version or f"{found.version.partition('+')[0]}+other"
    changed = text.replace(f"\nVersion: {found.version}\n", f"\nVersion: {other}\n", 1)
    if changed == text:
        raise UsageError(f"{target}: no line 'Version: {found.version}', or nothing to change")
    return _replaced(rack, node, target, changed.encode())


@fault(word("PATH", None, "the path of a file"))
def other_code(rack: Rack, node: Node, where: str) -> Undo:
    """A node has another version of a file of the code: one comment line more at its end."""
    target = Path(where).absolute()
    if not target.is_file():
        raise UsageError(f"no file {where}")
    return _replaced(rack, node, target, target.read_bytes() + b"\n# Another version.\n")


@fault(path("FILE"), word("TEXT", None, "its content, without a comma"))
def other_text(rack: Rack, node: Node, where: str, text: str) -> Undo:
    """A node reads this text in a file, such as one of /sys, whether or not this machine has it."""
    target, data = Path(where), f"{text}\n".encode()
    if target.is_file():
        return _replaced(rack, node, target, data)
    if target.exists():
        raise UsageError(f"{where} is no file; accepted: an absolute path of a file")
    folder = inside(rack, node, "add", where, data=data).strip()
    return undone_inside(rack, node, "unmount", folder)


@fault(word("NAME", None, "the name of a program"), word("TEXT", None, "text without a comma"))
def other_program(rack: Rack, node: Node, name: str, text: str) -> Undo:
    """A node has a program of this name on its PATH, such as nvidia-smi, that prints this text.

    It does so whatever its arguments; \\n is a new line.
    """
    mounts = on_node(rack, node, ["cut", "-d ", "-f5", "/proc/self/mountinfo"]).split()
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders = (str(Path(place).resolve()) for place in places if place and Path(place).is_dir())
    # An overlay over two others is too deep for the kernel.
    folder = next((one for one in folders if one not in mounts), None)
    if folder is None:
        raise UsageError("no folder of PATH is left for one more program")
    script = f"#!/bin/sh\nprintf '%b\\n' {shlex.quote(text)}\n"
    mounted = inside(rack, node, "add", f"{folder}/{name}", "755", data=script.encode()).strip()
    return undone_inside(rack, node, "unmount", mounted)


@fault(path("PATH"))
def own_view(rack: Rack, node: Node, where: str) -> Undo:
    """What a node writes or locks below a directory the others do not see, nor it their changes."""
    if not Path(where).is_dir():
        raise UsageError(f"no directory {where}")
    return _mounted_over(rack, node, "own_view", where)


def _replaced(rack: Rack, node: Node, target: Path, data: bytes) -> Undo:
    inside(rack, node, "replace", str(target), data=data)
    return undone_inside(rack, node, "unmount", str(target))


@fault(word("OTHER", "the node after it", "the name of a node"))
def wrong_hosts(rack: Rack, node: Node, other_name: str | None) -> Undo:
    """A node's /etc/hosts gives another node's name its own addresses.

    If OTHER is the node itself, the name gets a loopback address, as many installers write it.
    """
    following = rack.nodes[(node.index + 1) % len(rack.nodes)]
    other = next((n for n in rack.nodes if n.name == (other_name or following.name)), None)
    if other is None:
        raise UsageError(f"no node {other_name!r}; accepted: {nodes_of(rack)}")
    lines = on_node(rack, node, ["cat", "/etc/hosts"]).splitlines(keepends=True)
    return _edited(rack, node, "/etc/hosts", "".join(_misled(line, node, other) for line in lines))


def _misled(line: str, node: Node, other: Node) -> str:
    if not line.strip():
        return line
    address, *names = line.split()
    plain = address.removeprefix("::ffff:")
    if not {other.name, f"{other.name}-fab"} & set(names):
        return line
    wrong = LOOPBACK if node == other else node.fabric_address
    if plain == other.address and node != other:
        wrong = node.address
    return line.replace(plain, wrong or LOOPBACK, 1)


@fault(whole("SECONDS", "2", most=30))
def slow_names(rack: Rack, node: Node, seconds: int | None) -> Undo:
    """A node asks a dead name server first: every look-up of a name or address takes seconds."""
    nobody = rack.plan.address(MAX_NODES - 1, rack.plan.management.name)
    if len(rack.nodes) == MAX_NODES:
        raise UsageError(f"no address is left for a dead name server with {MAX_NODES} nodes")
    for file in ("/etc/resolv.conf", "/etc/nsswitch.conf"):
        if not Path(file).exists():
            raise UsageError(f"this machine has no {file} to change")
    inside(rack, node, "neighbour", nobody, rack.plan.management.name)
    limits = f"options timeout:{seconds or 2} attempts:1"
    switch = on_node(rack, node, ["cat", "/etc/nsswitch.conf"])
    asked_first = re.sub(r"(?m)^hosts:.*$", "hosts: dns files", switch)
    server = _edited(rack, node, "/etc/resolv.conf", f"nameserver {nobody}\n{limits}\n")
    return all_undone([server, _edited(rack, node, "/etc/nsswitch.conf", asked_first)])


def _edited(rack: Rack, node: Node, path: str, text: str) -> Undo:
    """Overwrite a file of which every node has its own copy."""
    before = on_node(rack, node, ["cat", path])
    inside(rack, node, "edit", path, data=text.encode())
    return undone_inside(rack, node, "edit", path, data=before.encode())


def _seconds(text: str) -> float:
    value = float(text)
    if not abs(value) < 1e9:
        raise ValueError(text)
    return value


def _faketime() -> str | None:
    multiarch = Path("/usr/lib", f"{platform.machine()}-linux-gnu", "faketime")
    libraries = (place / FAKETIME.name for place in (multiarch, *FAKETIME_DIRS))
    return next((str(library) for library in libraries if library.exists()), None)


FAKETIME = Program("libfaketimeMT.so.1", "libfaketime", _faketime)


@fault(Parameter("SECONDS", "seconds, such as 5 or -0.5", _seconds, "5"), program=FAKETIME)
def skewed_clock(rack: Rack, node: Node, seconds: float | None) -> Undo:
    """Programs started on a node see a clock that is ahead (or behind, if SECONDS is negative).

    Made by libfaketime: statically linked programs, and processes that are forked and not started,
    such as ranks, see the true time.
    """
    for file in (PRELOAD, OFFSET):
        if Path(file).exists():
            raise UsageError(f"this machine has a {file} of its own")
    library = FAKETIME.path()
    undos = []
    for file, text in (
        (OFFSET, f"{seconds if seconds is not None else 5.0:+f}\n"),
        (PRELOAD, f"{library}\n"),
    ):
        inside(rack, node, "add", file, data=text.encode())
        undos.append(undone_inside(rack, node, "unmount", "/etc"))
    return all_undone(undos)
