"""The rack as a launcher: N nodes on this machine, each a set of namespaces with real links."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.launchers.node import Launcher, Node, Watchers
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.rack import cgroups, probe
from pytest_mnode.launchers.rack.channel import RackChannel
from pytest_mnode.launchers.rack.plan import Link, Plan, check_rate
from pytest_mnode.launchers.rack.protocol import Booted, Lost, Setup
from pytest_mnode.launchers.rack.sockets import Layout
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.numa import numa_cores
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    LinkRates,
    SetLinkPresent,
    SetLinkRate,
    SetLinkUp,
    SetPairRate,
    SwitchPower,
)
from pytest_mnode.protocol.messages import RankStart

ENTER = str(Path(__file__).with_name("enter.py"))
FABRIC = Link("fab0", 200.0)
SHM_BYTES = 1 << 30
_ENDED = "the rack's first process ended"
DIRECTIONS = {"both": ("tx", "rx"), "tx": ("tx",), "rx": ("rx",)}


@dataclass(slots=True)
class NodeSlot:
    """State of a node.

    pid: pid of its first process, as the rack sees it; None if the node is off, for `reason`.
    outside: that process's pid and start time as the controller sees them; None until needed.
    """

    pid: int | None = None
    reason: str = "not started"
    outside: tuple[int, int] | None = None


class Rack(Launcher):
    """N nodes on this machine; thread-safe.

    nodes: number of nodes.
    fabric, management: the two links of every node; management has a tenth of the fabric's rate
        if it is not given.
    spare, joined: a second port of each node at the fabric's switch; see Plan.
    mode: "root", "rootless" (by a user namespace), or "auto": "root" if this process may.
    shm_bytes: limit of each node's /dev/shm.
    layout: the sockets that nodes show, made of the CPUs that this process may use; None if
        nodes show this machine as it is. shown_at: a directory for the layout's files, created if
        missing; it stays empty outside the nodes.
    cleanup_dirs: directories that are removed once the controller has ended, however it ended;
        after close() the caller must remove them.
    """

    name = "rack"
    shared_kernel = True
    env = RunEnv(own_network=True)

    def __init__(
        self,
        nodes: int,
        fabric: Link = FABRIC,
        management: Link | None = None,
        *,
        spare: Link | None = None,
        joined: str = "",
        mode: str = "auto",
        shm_bytes: int = SHM_BYTES,
        layout: Layout | None = None,
        shown_at: str | os.PathLike[str] = "",
        cleanup_dirs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        if management is None:
            management = Link("mgmt0", fabric.rate_mbit_s / 10, fabric.mtu)
        if layout is not None and not shown_at:
            raise UsageError(
                "rack: a layout of sockets needs a directory for its sysfs: give shown_at"
            )
        machine = tuple(numa_cores()) if layout is not None else ()
        place = str(Path(shown_at).absolute()) if shown_at else ""
        self.plan = Plan(
            *(nodes, fabric, management, shm_bytes, layout, machine, place), spare, joined
        )
        self.nodes: Sequence[Node] = self.plan.members()
        self._rootless = probe.is_rootless(mode)
        self._cleanup_dirs = tuple(str(Path(path).absolute()) for path in cleanup_dirs)
        self._rates: dict[tuple[str, str, str], float] = {}
        self._rank_starts: dict[str, RankStart] = {}
        self._slots = [NodeSlot() for _ in self.nodes]
        self._lock = threading.Lock()
        self._watchers = Watchers("rack-watch")
        self._channel: RackChannel | None = None
        self._first: tuple[int, int] | None = None
        self._closed = False

    unavailable = staticmethod(probe.unavailable)

    def start(self) -> None:
        """Boot all nodes. Raises ClusterError that names the failed step."""
        if self._channel is not None:
            raise ClusterError("rack: started already")
        if self.plan.shown_at:
            Path(self.plan.shown_at).mkdir(parents=True, exist_ok=True)
        self._watchers.start()
        setup = Setup(self.plan, self._rootless)
        self._channel = RackChannel(setup, self._cleanup_dirs, self._on_event)
        try:
            pid = self._channel.await_up()
            self._first = (pid, namespaces.process_start(pid))
        except OSError as error:
            self.close()
            raise ClusterError(f"rack: ended right after its start: {error}") from error
        except BaseException:
            self.close()
            raise

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. A command made before its node was booted again fails with a message."""
        return [
            _enter(self._outside(node), namespaces.NODE_KINDS, node.name, argv) for node in nodes
        ]

    def agent_command(self, argv: Sequence[str]) -> list[str]:
        """See Launcher. The agent is in the rack but on no node; its network is the switch.

        From there it enters a node by `namespaces.enter(namespace_pid)` in a forked child.
        """
        if self._first is None:
            raise ClusterError("rack: not started" if not self._closed else "rack: closed")
        return _enter(self._first, namespaces.RACK_KINDS, "rack", argv)

    def why_ended(self) -> str:
        """See Launcher."""
        if self._first is None or self._channel is None or not processes.is_ending(self._first[0]):
            return ""
        return f"{_ENDED}{self._channel.last_words()}"

    def namespace_pid(self, node: Node) -> int:
        """Pid of the node's first process inside the rack; raises NodeLostError if it is off."""
        slot = self._slot(node)
        with self._lock:
            if slot.pid is None:
                raise NodeLostError(node.name, f"{node.name} is unavailable: {slot.reason}")
            return slot.pid

    def rank_start(self, node: Node) -> RankStart:
        """See Launcher: as `start_ranks` last set it."""
        return self._rank_starts.get(node.name, RankStart())

    def start_ranks(self, node: Node, **changes: Any) -> None:
        """Change how a node starts ranks from now on. changes: fields of `RankStart`."""
        self._slot(node)
        self._rank_starts[node.name] = replace(self.rank_start(node), **changes)

    def ask(self, request: LauncherRequest) -> Any:
        """See Launcher. Power and links; does nothing if a node's power is as requested already."""
        match request:
            case LinkRates(node, link):
                self._slot(self.node(node))
                full = self.plan.link(link).rate_mbit_s
                return tuple(self._rates.get((node, link, way), full) for way in ("tx", "rx"))
            case SetLinkRate(node, link, rate, direction):
                check_rate(self.plan.link(link).name, rate)
                if direction not in DIRECTIONS:
                    accepted = ", ".join(DIRECTIONS)
                    raise UsageError(f"rack: direction {direction!r}: must be one of {accepted}")
                self._ask_rack(self.node(node), request)
                for way in DIRECTIONS[direction]:
                    self._rates[node, link, way] = rate
            case SetPairRate(source, target, link, rate):
                if rate is not None:
                    check_rate(self.plan.link(link).name, rate)
                self.node(source)
                self._ask_rack(self.node(target), request)
            case SetLinkUp() | SetLinkPresent():
                self.plan.link(request.link)
                self._ask_rack(self.node(request.node), request)
            case SwitchPower():
                self._ask_rack(self.node(request.node), request)
            case _:
                return super().ask(request)
        return None

    def node(self, name: str) -> Node:
        """The node of this name. Raises UsageError."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = f"{self.nodes[0].name} to {self.nodes[-1].name}"
        raise UsageError(f"rack: no node {name!r} (there are: {names})")

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher. `on_lost` may use the rack; close() reports no lost node."""
        self._watchers.add(on_lost)

    @property
    def daemon_pid(self) -> int | None:
        """Pid of the cleanup daemon, with which the whole rack ends; None while there is none."""
        return None if self._channel is None or self._closed else self._channel.daemon_pid

    def pid_of(self, node: Node) -> int:
        """Pid of the node's first process as this process sees it; NodeLostError if it is off."""
        return self._outside(node)[0]

    def switch_port(self, node: Node, link_name: str) -> str:
        """Name of the switch's interface at which this node's link ends."""
        self._slot(node)
        return self.plan.port(node.index, self.plan.link(link_name).name)

    def close(self) -> None:
        """See Launcher. Nothing of the rack is left when this returns."""
        if self._closed:
            return
        self._closed = True
        self._first = None
        try:
            if self._channel is not None:
                self._channel.close()
                cgroups.remove_all(self._channel.daemon_pid)  # if the daemon was killed
        finally:
            with self._lock:
                for slot in self._slots:
                    slot.pid, slot.reason = None, "the rack is closed"
            self._watchers.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slot(self, node: Node) -> NodeSlot:
        return self._slots[self.node(node.name).index]

    def _ask_rack(self, node: Node, request: LauncherRequest) -> None:
        if self._channel is None or self._closed:
            state = "closed" if self._closed else "not started"
            raise ClusterError(f"rack: cannot {request.does}: {node.name}: the rack is {state}")
        self._channel.ask(request, node.name)

    def _outside(self, node: Node) -> tuple[int, int]:
        pid, slot = self.namespace_pid(node), self._slot(node)
        with self._lock:
            if slot.outside is None and self._first is not None:
                slot.outside = namespaces.child_outside(self._first[0], pid)
            if slot.outside is None:
                raise NodeLostError(
                    node.name, f"{node.name} is unavailable: its first process ended"
                )
            return slot.outside

    def _on_event(self, event: Booted | Lost | None) -> None:
        lost: list[tuple[int, str]] = []
        why = self._channel.last_words() if event is None and self._channel is not None else ""
        with self._lock:
            if isinstance(event, Booted):
                self._slots[event.node] = NodeSlot(event.pid)
            elif isinstance(event, Lost):
                lost = [(event.node, event.reason)]
            else:
                running = [i for i, slot in enumerate(self._slots) if slot.pid is not None]
                lost = [(index, f"{_ENDED}{why}") for index in running]
            for index, reason in lost:
                self._slots[index] = NodeSlot(None, reason)
        for index, reason in lost:
            self._watchers.lost(self.nodes[index].name, reason)


def _enter(
    process: tuple[int, int], kinds: Sequence[str], where: str, argv: Sequence[str]
) -> list[str]:
    pid, start = process
    # enter.py itself needs no site-packages and no Python variables; the command gets both.
    python = [sys.executable, "-S", "-E", "-s"]
    return [*python, ENTER, str(pid), str(start), ",".join(kinds), where, *argv]
