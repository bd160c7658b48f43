"""What faults are made of: commands on a node, rules at the switch, and undoing it all."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_mnode.errors import ClusterError, NodeLostError, TimeLimitError, UsageError
from pytest_mnode.faults.registry import Undo
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

LIMIT_S = 10.0
INSIDE = str(Path(__file__).with_name("inside.py"))
_tables = itertools.count(1)


def undone_once(rack: Rack, undo: Undo, on: Node | None = None) -> Undo:
    """`undo`, done at most once, and not at all where it has undone itself.

    It has where the rack is closed, and what was done within the node `on` where that node was
    switched off meanwhile.
    """
    doorway = rack.doorway(on) if on is not None else None
    left = [undo]

    def once() -> None:
        if not left or rack.keeper_pid is None:
            return
        act = left.pop()
        if on is not None:
            try:
                if rack.doorway(on) != doorway:
                    return
            except NodeLostError:
                return
        act()

    return once


def all_undone(undos: Sequence[Undo]) -> Undo:
    """Undoes in reverse order; every one is tried, the first error is raised."""

    def undo() -> None:
        with contextlib.ExitStack() as stack:
            for one in undos:
                stack.callback(one)

    return undo


def program(name: str, package: str) -> str:
    """Path of an external program; raises UsageError that names Debian's package of it."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=places)
    if found is None:
        raise UsageError(f"this fault needs the program {name}: install it (Debian: {package})")
    return found


def on_node(rack: Rack, node: Node, argv: Sequence[str], data: bytes = b"") -> str:
    """Run a command on a node with `data` as its input; its output.

    Raises ClusterError with its last words where it fails, TimeLimitError.
    """
    (command,) = rack.commands([node], argv)
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise TimeLimitError(f"{node.name}: {argv[0]} took more than {LIMIT_S:g} s") from None
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ClusterError(f"{node.name}: {Path(argv[0]).name} failed: {last}")
    return done.stdout.decode(errors="replace")


def inside(rack: Rack, node: Node, *words: str, data: bytes = b"") -> str:
    """Have `inside.py` do something in a node's namespaces; its output."""
    return on_node(rack, node, [sys.executable, "-S", "-E", "-s", INSIDE, *words], data)


def running(command: Sequence[str], what: str) -> Undo:
    """Start a program that prints a line when it is ready; returns what ends it.

    It has to end when its standard input does. Raises ClusterError with its last words.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def last_words() -> str:
        try:
            return process.communicate(timeout=LIMIT_S)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[1].decode(errors="replace")

    assert process.stdout is not None
    if not select.select([process.stdout], [], [], LIMIT_S)[0] or not process.stdout.readline():
        last = (last_words().strip().splitlines() or ["no message"])[-1]
        raise ClusterError(f"{what}: not ready: {last}")

    def end() -> None:
        last_words()

    return end


def processes_of(rack: Rack, node: Node) -> list[int]:
    """Pids, as seen from here, of all that is in a node's network: on it, or about to be."""
    network = Path(f"/proc/{rack.pid_of(node)}/ns/net").stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino == network:
                    found.append(int(entry.name))
    return found


def at_switch(rack: Rack, rules: Sequence[str]) -> Undo:
    """nftables rules on all that the switch passes from port to port, until undone."""
    nft = program("nft", "nftables")
    table = f"mnode{next(_tables)}"
    chain = "type filter hook forward priority 0; " + " ".join(f"{rule};" for rule in rules)
    rack.switch([nft, f"table bridge {table} {{ chain forward {{ {chain} }}; }}"])

    def undo() -> None:
        rack.switch([nft, "delete", "table", "bridge", table])

    return undone_once(rack, undo)
