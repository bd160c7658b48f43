"""Parts of faults: commands on a node, programs and rules at the switch, and the undo."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_mnode.errors import ClusterError, MnodeError, NodeLostError, TimeLimitError
from pytest_mnode.faults.registry import Program, Schedule, Undo
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.processes import end_programs, last_line

LIMIT_S = 10.0
INSIDE = str(Path(__file__).with_name("inside.py"))
_tables = itertools.count(1)


def _on_path(name: str) -> str | None:
    # An ordinary user's PATH may lack the last two.
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=places)


NFT = Program("nft", "nftables", lambda: _on_path("nft"))
IP = Program("ip", "iproute2", lambda: _on_path("ip"))


def undone_once(rack: Rack, undo: Undo, on: Node | None = None) -> Undo:
    """`undo`, which runs at most once, and not at all if nothing is left to undo.

    Nothing is left after the rack was closed, or, for a change inside the node `on`, after that
    node was switched off.
    """
    before = rack.namespace_pid(on) if on is not None else None
    left = [undo]

    def once() -> None:
        if not left or rack.daemon_pid is None:
            return
        act = left.pop()
        if on is not None:
            try:
                if rack.namespace_pid(on) != before:
                    return
            except NodeLostError:
                return
        act()

    return once


def scheduled(rack: Rack, inject: Callable[[], Undo], when: Schedule) -> Undo:
    """Inject a fault and undo it when the schedule says so, in a thread, until undone."""
    over = threading.Event()

    def come_and_go() -> None:
        pause_s = when.after_s
        while not over.wait(pause_s):
            try:
                undo = inject()
                over.wait(when.lasts_s)
                undo()
            except MnodeError:
                if rack.daemon_pid is None:  # the rack is closed, with all of its faults
                    return
                raise
            if when.every_s is None:
                return
            pause_s = when.every_s - (when.lasts_s or 0.0)

    thread = threading.Thread(target=come_and_go, name="scheduled-fault", daemon=True)
    thread.start()

    def undo() -> None:
        over.set()
        thread.join()

    return undone_once(rack, undo)


def all_undone(undos: Sequence[Undo]) -> Undo:
    """An undo of all, in reverse order; each is tried, and the first error is raised."""

    def undo() -> None:
        with contextlib.ExitStack() as stack:
            for one in undos:
                stack.callback(one)

    return undo


def on_node(rack: Rack, node: Node, argv: Sequence[str], data: bytes = b"") -> str:
    """Run a command on a node with `data` as its standard input; its output.

    Raises ClusterError with the last line of its errors if it fails, or TimeLimitError.
    """
    (command,) = rack.commands([node], argv)
    return _output(command, node.name, Path(argv[0]).name, data)


def on_switch(rack: Rack, argv: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """Run a command at the switch; its output. Raises ClusterError or TimeLimitError."""
    return _output(rack.agent_command(argv), "switch", Path(argv[0]).name, limit_s=limit_s)


def _output(
    command: Sequence[str], where: str, what: str, data: bytes = b"", limit_s: float = LIMIT_S
) -> str:
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise TimeLimitError(f"{where}: {what} took more than {limit_s:g} s") from None
    if done.returncode != 0:
        last = last_line(done.stderr) or "no message"
        raise ClusterError(f"{where}: {what} failed with status {done.returncode}: {last}")
    return done.stdout.decode(errors="replace")


def inside(rack: Rack, node: Node, *words: str, data: bytes = b"") -> str:
    """Run `inside.py` in a node's namespaces; its output."""
    return on_node(rack, node, [sys.executable, "-S", "-E", "-s", INSIDE, *words], data)


def undone_inside(rack: Rack, node: Node, *words: str, data: bytes = b"") -> Undo:
    """An undo that runs `inside.py` in a node's namespaces."""

    def undo() -> None:
        inside(rack, node, *words, data=data)

    return undone_once(rack, undo, node)


def running(command: Sequence[str], what: str) -> Undo:
    """Start a program that prints a line when it is ready; returns a function that ends it.

    The program must end when its standard input ends. Raises ClusterError with its last line.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def errors() -> bytes:
        """End it, and read what it wrote to standard error."""
        try:
            return process.communicate(timeout=LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            end_programs([process])  # its children may keep the pipe open
            return b"it does not end with its input"

    def end() -> None:
        errors()

    assert process.stdout is not None
    if not select.select([process.stdout], [], [], LIMIT_S)[0] or not process.stdout.readline():
        raise ClusterError(f"{what}: not ready: {last_line(errors()) or 'no message'}")
    return end


def processes_of(rack: Rack, node: Node) -> list[int]:
    """Pids, as this process sees them, of all processes in a node's network namespace."""
    network = Path(f"/proc/{rack.pid_of(node)}/ns/net").stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino == network:
                    found.append(int(entry.name))
    return found


def at_switch(rack: Rack, rules: Sequence[str]) -> Undo:
    """Apply nftables rules to packets that the switch forwards, until undone. Needs NFT."""
    nft = NFT.path()
    table = f"mnode{next(_tables)}"
    chain = "type filter hook forward priority 0; " + " ".join(f"{rule};" for rule in rules)
    on_switch(rack, [nft, f"table bridge {table} {{ chain forward {{ {chain} }}; }}"])

    def undo() -> None:
        on_switch(rack, [nft, "delete", "table", "bridge", table])

    return undone_once(rack, undo)


def nodes_of(rack: Rack) -> str:
    """ "node0 to node3", for messages."""
    return f"{rack.nodes[0].name} to {rack.nodes[-1].name}"
