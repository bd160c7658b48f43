"""Base class of launchers for other machines: a bridge to them, commands, reports, and power."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.launchers import power
from pytest_mnode.launchers.node import Launcher, Node, Watchers
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.bridge_client import BridgeClient
from pytest_mnode.launchers.remote.check_distinct import check_distinct
from pytest_mnode.launchers.remote.node_process import LOCAL
from pytest_mnode.launchers.remote.node_report import NodeReport, node_from_report
from pytest_mnode.launchers.remote.run_all import collect_reports, unusable_nodes
from pytest_mnode.launchers.remote.shared_dir import SharedDir
from pytest_mnode.launchers.remote.stdio_bridge import AGAIN_AT_ONCE
from pytest_mnode.protocol.launcher_requests import LauncherRequest, PowerOff, PowerOn
from pytest_mnode.spec import Spec

POWERED_OFF = "powered off"
_TRY_AGAIN_S = 1.0
_SLACK_S = 20.0
"""For a bridge's own start and answers, and for its end where nodes are missing."""
_PROLOGUE = '. "$0" || { echo "--mnode-prologue: $0 ended with $?" >&2; exit 126; }; exec "$@"'
"""A program of bash, whose arguments are the script and the command."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Directories and Python of a run on other machines.

    run_dir: the run's directory on this machine. root: where the shared directory may be made if
    shared_dir is None. python: path of Python on the nodes; "" for the launcher's default.
    prologue: path, on the nodes, of a script that bash reads before each command; "" for none.
    """

    run_dir: str
    root: Path
    shared_dir: Path | None = None
    python: str = ""
    prologue: str = ""


class RemoteLauncher(Launcher):
    """Nodes that are other machines, each reached by its host: its name for ssh or a scheduler."""

    shared_kernel = False
    env = RunEnv(remote=True)
    starts_late = "its Python is slow to start, or hangs"
    """Why a node may not start a command in time."""

    def __init__(self, spec: Spec, remote: RemoteOptions) -> None:
        self.python = remote.python or sys.executable
        self._pythons: Mapping[str, str] = {}
        """Path of a host's Python, where it has one of its own, by host."""
        self._spec = spec
        self._run_dir = remote.run_dir
        self._prologue = ["bash", "-c", _PROLOGUE, remote.prologue] if remote.prologue else []
        self._wanted_shared_dir = (remote.shared_dir, remote.root)
        self._shared: SharedDir | None = None
        self._socket = str(Path(self._run_dir) / "bridge")
        self._bridge = BridgeClient(self._socket, self._hear)
        self._gone: dict[str, str] = {}
        """Why a host takes no commands now, by host."""
        self._lock = threading.Lock()
        self._hosts_by_name: dict[str, str] = {}
        """Host of each node, by the node's own name."""
        self._package_dirs: dict[str, str] = {}
        """Directory of this package on each node, by host."""
        self._watchers = Watchers(f"{self.name}-watch")
        self._closed = False

    def start(self) -> None:
        """See Launcher."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._watchers.start()

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. Replaces this Python and this package's paths in `argv` by the nodes'."""
        for node in nodes:
            self._host_of(node.name)
            if why := self._why_gone(node):
                raise NodeLostError(node.name, f"{node.name} is unavailable: {why}")
        return [self._command(self._host_of(node.name), argv) for node in nodes]

    def ask(self, request: LauncherRequest) -> Any:
        """See Launcher: power, by the spec's commands."""
        match request:
            case PowerOff(name):
                power.switch(self._spec.power, "off", self._node(name))
                self._went_off(self._node(name))
            case PowerOn(name):
                self._power_on(self._node(name))
            case _:
                return super().ask(request)
        return None

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        self._watchers.add(on_lost)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watchers.close()
        try:
            self._give_back()
        finally:
            if self._shared is not None:
                self._shared.remove()

    # For subclasses to implement.

    def _start(self) -> None:
        """Reach the nodes, and end with `_take`. Raises ClusterError."""
        raise NotImplementedError

    def _way(self, host: str) -> Sequence[str]:
        """Local command that starts the program of one host."""
        raise NotImplementedError

    # For subclasses to change.

    def _why_gone(self, node: Node) -> str | None:
        """Why no command can be run on a node; None if one can, as far as is known."""
        with self._lock:
            return "the run is over" if self._closed else self._gone.get(self._host_of(node.name))

    def _went_off(self, node: Node) -> None:
        """Record that the node was powered off on purpose."""
        host = self._host_of(node.name)
        with self._lock:
            self._gone[host] = POWERED_OFF
        self._bridge.end(host, POWERED_OFF)

    def _stream_lost(self, host: str, why: str) -> None:
        """Handle that a host's stream has ended, in a thread of the bridge's client."""
        self._lose(host, why)

    def _lose(self, host: str, why: str) -> None:
        """Record that a host is lost, and report it once."""
        with self._lock:
            known = host in self._gone
            self._gone.setdefault(host, why)
        for name in [name for name, its_host in self._hosts_by_name.items() if its_host == host]:
            if not known and not self._closed:
                self._watchers.lost(name, why)

    def _problem_with(self, node: Node, limit_s: float) -> str | None:
        """Why a node is not back yet; None if it is back. Raises ClusterError if it never will be.

        Opens its stream, if that is lost. The fabric may still be coming up: tests judge that.
        """
        host = self._host_of(node.name)
        why = self._open([host], max(1.0, min(self.limits.connect_s, limit_s))).get(host)
        if why is None:
            reports, problems = self._reports([host])
            report = reports.get(host)
            why = problems[host] if report is None else self._change(node, report)
        with self._lock:
            if why is None:
                self._gone.pop(host, None)
            else:
                self._gone[host] = why
        return why

    def _change(self, node: Node, report: NodeReport) -> str | None:
        """Why a report is not the node's that it was; None if it is."""
        return None if report.hostname == node.name else f"its host name is now {report.hostname}"

    def _give_back(self) -> None:
        """Close streams, and release nodes that the run allocated. Called once."""
        self._bridge.close()

    # For subclasses to use.

    def _node(self, name: str) -> Node:
        self._host_of(name)
        return next(node for node in self.nodes if node.name == name)

    def _host_of(self, name: str) -> str:
        found = self._hosts_by_name.get(name)
        if found is None:
            there = ", ".join(self._hosts_by_name)
            raise UsageError(f"{self.name}: no node {name!r} (there are: {there})")
        return found

    def _prepare(self) -> list[str]:
        """Make the candidate for the shared directory; the directories to remove at the end."""
        self._shared = SharedDir(*self._wanted_shared_dir)
        directory = self._shared.directory
        return [self._run_dir, *([str(directory)] if directory else [])]

    def _start_bridge(
        self, module: str, settings: Mapping[str, Any], end_s: float, start_s: float = 0.0
    ) -> None:
        """Start the bridge: a module, its settings, its limit to end, and that of what it waits for
        when it starts. Raises ClusterError.
        """
        file = Path(f"{self._socket}.json")
        file.write_text(json.dumps(settings))
        argv = [sys.executable, "-P", "-m", module, str(file), self._socket]
        self._bridge.start(argv, start_s + _SLACK_S, end_s, self.limits.silence_s)

    def _hear(self, event: Mapping[str, Any]) -> None:
        """Handle what the bridge reports, in a thread of its client."""
        match event:
            case {"lost": host, "why": why}:
                self._stream_lost(host, why)
            case {"ended": why}:
                for host in self._hosts_by_name.values():
                    self._lose(host, f"the connection to the nodes ended: {why}")

    def _open(self, hosts: Sequence[str], within_s: float) -> dict[str, str]:
        """Open streams to hosts; reasons of those that failed. within_s: limit of each."""
        turns = -(-len(hosts) // AGAIN_AT_ONCE)
        ways = {host: self._way(host) for host in hosts}
        return self._bridge.open(ways, within_s, turns * within_s + _SLACK_S)

    def python_of(self, node: Node) -> str:
        return self._python_of(self._host_of(node.name))

    def _python_of(self, host: str) -> str:
        return self._pythons.get(host, self.python)

    def _command(self, host: str, argv: Sequence[str]) -> list[str]:
        ours, place = (sys.executable, self.python), self._package_dirs.get(host, "")
        there = node_report.as_there(argv, self._python_of(host), place, ours)
        return [*LOCAL, self._socket, host, *self._prologue, *there]

    def _reports(self, hosts: Sequence[str]) -> tuple[dict[str, NodeReport], dict[str, str]]:
        """Reports by host, and reasons of the hosts that cannot be used."""
        assert self._shared is not None
        token = self._shared.token if self._shared.directory else None
        directory = str(Path.cwd())
        argv = node_report.argv(self.python, token, directory)
        commands = {host: self._command(host, argv) for host in hosts}
        return collect_reports(
            commands, directory, self._run_dir, self.env.command(), limit_s=self.limits.reported_s
        )

    def _take(
        self, reports: Mapping[str, NodeReport], addresses: Mapping[str, str], what: str
    ) -> None:
        """Take these nodes, and the directory if they all see it. addresses: by host, the address
        at which other nodes reach it."""
        assert self._shared is not None
        if problems := check_distinct(reports, addresses):
            raise unusable_nodes(problems, len(reports), what)
        nodes = []
        for index, (host, report) in enumerate(reports.items()):
            self._hosts_by_name[report.hostname] = host
            self._package_dirs[host] = report.package_dir or ""
            nodes.append(node_from_report(index, addresses[host], report, self._spec))
        self.nodes = tuple(nodes)
        self.shared_dir = self._shared.settle(reports)

    def _power_on(self, node: Node) -> None:
        """Wait until a node is back; its power is not switched if it only lost its connection."""
        off = self._gone.get(self._host_of(node.name)) == POWERED_OFF
        if not off and self._problem_with(node, self.limits.connect_s) is None:
            return
        section = power.switch(self._spec.power, "on", node)
        end = time.monotonic() + section.within_s
        while problem := self._problem_with(node, end - time.monotonic()):
            if time.monotonic() > end or self._closed:
                raise ClusterError(
                    f"{node.name} was not back {section.within_s:g} s after power.switch_on: "
                    f"{problem}"
                )
            time.sleep(_TRY_AGAIN_S)
