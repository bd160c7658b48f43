"""The rack as a launcher: N nodes on this machine, each a set of namespaces with real links."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_mnode.errors import ClusterError, NodeLostError, TimeLimitError, UsageError
from pytest_mnode.launchers.node import CALLS, Node
from pytest_mnode.launchers.rack import cgroups, probe
from pytest_mnode.launchers.rack.line import Line
from pytest_mnode.launchers.rack.plan import Link, Plan, check_rate
from pytest_mnode.launchers.rack.protocol import Booted, Lost, Setup
from pytest_mnode.launchers.rack.sockets import Layout
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.numa_cores import numa_cores

ENTER = str(Path(__file__).with_name("enter.py"))
FABRIC = Link("fab0", 200.0)
SHM_BYTES = 1 << 30
WAYS = ("both", "tx", "rx")


@dataclass(slots=True)
class Seat:
    """Where a node is, or why it is not."""

    doorway: int | None = None
    reason: str = "not started"
    outside: tuple[int, int] | None = None
    """Pid and start time as the controller sees them, once somebody asked."""


class Rack:
    """N nodes on this machine. Implements Launcher and PowerSwitch; thread-safe.

    nodes: how many.
    fabric, management: the two links of every node; management is a tenth of the fabric's rate
        where not given.
    mode: "root", "rootless" (by a user namespace), or "auto": by root where we are.
    shm_bytes: limit of each node's /dev/shm.
    layout: the sockets that nodes show, over the CPUs this process may use; None: they show this
        machine as it is. shown_at: a directory for that, made where it is not there; it stays
        empty outside of the nodes.
    cleanup_dirs: removed once the controller is gone, however it went; after close() they are
        the caller's to remove.
    """

    name = "rack"
    shared_kernel = True
    python = sys.executable
    shared_dir: Path | None = None

    def __init__(
        self,
        nodes: int,
        fabric: Link = FABRIC,
        management: Link | None = None,
        *,
        mode: str = "auto",
        shm_bytes: int = SHM_BYTES,
        layout: Layout | None = None,
        shown_at: str | os.PathLike[str] = "",
        cleanup_dirs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        if management is None:
            management = Link("mgmt0", fabric.rate_mbit_s / 10, fabric.mtu)
        if layout is not None and not shown_at:
            raise UsageError("rack: sockets to show, and no directory for it: give shown_at")
        machine = tuple(numa_cores()) if layout is not None else ()
        place = str(Path(shown_at).absolute()) if shown_at else ""
        self.plan = Plan(nodes, fabric, management, shm_bytes, layout, machine, place)
        self.nodes: Sequence[Node] = self.plan.members()
        self._rootless = probe.is_rootless(mode)
        self._cleanup_dirs = tuple(str(Path(path).absolute()) for path in cleanup_dirs)
        self._rates: dict[tuple[int, str, str], float] = {}
        self._seats = [Seat() for _ in self.nodes]
        self._seats_lock = threading.Lock()
        self._misbound: dict[str, str] = {}
        self._watchers: list[Callable[[str, str], None]] = []
        self._losses: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._line: Line | None = None
        self._keeper: tuple[int, int] | None = None
        self._closed = False

    @staticmethod
    def unavailable(mode: str = "auto") -> str | None:
        """Why this machine gives no rack, in one line; None where it does (as far as rights go)."""
        return probe.unavailable(mode)

    def start(self) -> None:
        """Boot all nodes. Raises ClusterError that says which step of what failed."""
        if self._line is not None:
            raise ClusterError("rack: started already")
        if self.plan.shown_at:
            Path(self.plan.shown_at).mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._tell, name="rack-watch", daemon=True).start()
        setup = Setup(self.plan, self._rootless, os.getpid(), self._cleanup_dirs)
        self._line = Line(setup, self._on_event)
        try:
            pid = self._line.await_up()
            self._keeper = (pid, namespaces.process_start(pid))
        except OSError as error:
            self.close()
            raise ClusterError(f"rack: gone right after its start: {error}") from error
        except BaseException:
            self.close()
            raise

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. A command made before its node was booted again fails, and says so."""
        return [
            _enter(self._outside(node), namespaces.NODE_KINDS, node.name, argv) for node in nodes
        ]

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        """See Launcher. The agent is in the rack but on no node; its network is the switch.

        From there it reaches a node by `namespaces.enter(doorway)` in a forked child.
        """
        if self._keeper is None:
            raise ClusterError("rack: not started" if not self._closed else "rack: closed")
        return _enter(self._keeper, namespaces.RACK_KINDS, "rack", argv)

    def doorway(self, node: Node) -> int:
        """Pid of the node's first process inside the rack; raises NodeLostError if it is off."""
        seat = self._seat(node)
        with self._seats_lock:
            if seat.doorway is None:
                raise NodeLostError(node.name, f"{node.name} is not there: {seat.reason}")
            return seat.doorway

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher. `on_lost` may use the rack; close() itself loses no node."""
        self._watchers.append(on_lost)

    def unwatch(self, on_lost: Callable[[str, str], None]) -> None:
        """Take back a `watch`."""
        self._watchers.remove(on_lost)

    @property
    def keeper_pid(self) -> int | None:
        """Pid of the process that the whole rack hangs on; None while there is none."""
        return None if self._line is None or self._closed else self._line.pid

    def pid_of(self, node: Node) -> int:
        """Pid of the node's first process as seen from here; NodeLostError if it is off."""
        return self._outside(node)[0]

    def set_presence(self, node: Node, link_name: str, present: bool) -> None:
        """Take a link away from a node, interface and all, or give it back."""
        self._ask("set_presence", node, link=self.plan.link(link_name).name, up=present)

    def power_off(self, node: Node) -> None:
        """Links down, then everything on the node killed; no-op where it is off."""
        self._ask("power_off", node)

    def power_on(self, node: Node) -> None:
        """Boot it, with the rates last set; no-op where it is on."""
        self._ask("power_on", node)

    def set_rate(self, node: Node, link_name: str, rate_mbit_s: float, way: str = "both") -> None:
        """Line rate of one node's link from now on.

        way: "tx" for what the node sends, "rx" for what it gets, or "both".
        """
        check_rate(self.plan.link(link_name).name, rate_mbit_s)
        if way not in WAYS:
            raise UsageError(f"rack: direction {way!r}: must be one of {', '.join(WAYS)}")
        self._ask("set_rate", node, link=link_name, rate_mbit_s=rate_mbit_s, way=way)
        for one in ("tx", "rx") if way == "both" else (way,):
            self._rates[node.index, link_name, one] = rate_mbit_s

    def rates_of(self, node: Node, link_name: str) -> tuple[float, float]:
        """Line rates of one node's link in Mbit/s, as last set: what it sends, and what it gets."""
        self._seat(node)
        full = self.plan.link(link_name).rate_mbit_s
        tx, rx = (self._rates.get((node.index, link_name, way), full) for way in ("tx", "rx"))
        return tx, rx

    def set_pair_rate(
        self, source: Node, target: Node, link_name: str, rate_mbit_s: float | None
    ) -> None:
        """Limit what one node gets of one other (IPv4), at the switch; None: as if never set.

        Packets wait in a queue of their own there, and nobody else's wait behind them.
        """
        if rate_mbit_s is not None:
            check_rate(link_name, rate_mbit_s)
        self._seat(source)
        link = self.plan.link(link_name).name
        rate = rate_mbit_s or 0.0
        self._ask("set_pair_rate", target, link=link, rate_mbit_s=rate, peer=source.index)

    def set_link(self, node: Node, link_name: str, up: bool) -> None:
        """Switch port of one node's link up or down; the node sees a carrier, or none."""
        self._ask("set_link", node, link=self.plan.link(link_name).name, up=up)

    def misbind(self, node: Node, how: str) -> None:
        """Have a node bind the ranks that it starts from now on wrongly; "" for rightly again.

        how: "swapped", beside another accelerator; "unbound"; "crowded", all on the same core.
        """
        self._seat(node)
        self._misbound[node.name] = how

    def misbound(self, node: Node) -> str:
        """What `misbind` said last of a node; "" where it said nothing."""
        return self._misbound.get(node.name, "")

    def switch_port(self, node: Node, link_name: str) -> str:
        """Interface at the switch in which this node's link ends."""
        self._seat(node)
        return self.plan.port(node.index, self.plan.link(link_name).name)

    def switch(self, argv: Sequence[str], timeout_s: float = 10.0) -> str:
        """Run a command at the switch; its output. Raises ClusterError where it fails."""
        try:
            done = subprocess.run(
                self.agent_command(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise TimeLimitError(f"switch: {argv[0]} took more than {timeout_s:g} s") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ClusterError(f"switch: {argv[0]} ended with status {done.returncode}: {last}")
        return done.stdout

    def close(self) -> None:
        """See Launcher. Nothing of the rack is left when this returns."""
        if self._closed:
            return
        self._closed = True
        self._keeper = None
        try:
            if self._line is not None:
                self._line.close()
                cgroups.remove_all(self._line.pid)  # the keeper has, unless it was killed
        finally:
            with self._seats_lock:
                for seat in self._seats:
                    seat.doorway, seat.reason = None, "the rack is closed"
            self._losses.put(None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _seat(self, node: Node) -> Seat:
        if node not in self.nodes:
            names = f"{self.nodes[0].name} to {self.nodes[-1].name}"
            raise UsageError(f"rack: no node {node.name!r} (there are: {names})")
        return self._seats[node.index]

    def _ask(self, do: str, node: Node, **details: Any) -> None:
        self._seat(node)
        if self._line is None or self._closed:
            state = "closed" if self._closed else "not started"
            raise ClusterError(f"rack: cannot {CALLS[do]}: {node.name}: the rack is {state}")
        self._line.ask(do, node.index, **details)

    def _outside(self, node: Node) -> tuple[int, int]:
        doorway, seat = self.doorway(node), self._seat(node)
        with self._seats_lock:
            if seat.outside is None and self._keeper is not None:
                seat.outside = namespaces.child_outside(self._keeper[0], doorway)
            if seat.outside is None:
                raise NodeLostError(node.name, f"{node.name} is not there: its first process ended")
            return seat.outside

    def _on_event(self, event: Booted | Lost | None) -> None:
        lost: list[tuple[int, str]] = []
        with self._seats_lock:
            if isinstance(event, Booted):
                self._seats[event.node] = Seat(event.pid)
            elif isinstance(event, Lost):
                lost = [(event.node, event.reason)]
            else:
                running = [i for i, seat in enumerate(self._seats) if seat.doorway is not None]
                lost = [(index, "the rack's keeper ended") for index in running]
            for index, reason in lost:
                self._seats[index] = Seat(None, reason)
        for index, reason in lost:
            self._losses.put((self.nodes[index].name, reason))

    def _tell(self) -> None:
        """Calls watchers from a thread of its own, so that they may use the rack."""
        while (loss := self._losses.get()) is not None:
            for watcher in list(self._watchers):
                watcher(*loss)


def _enter(
    process: tuple[int, int], kinds: Sequence[str], where: str, argv: Sequence[str]
) -> list[str]:
    pid, start = process
    # No site-packages and no environment for the entering itself: the command gets both.
    python = [sys.executable, "-S", "-E", "-s"]
    return [*python, ENTER, str(pid), str(start), ",".join(kinds), where, *argv]
