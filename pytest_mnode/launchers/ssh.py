"""Nodes reached by the user's own OpenSSH, with its configuration, keys and agent."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.launchers import power
from pytest_mnode.launchers.cleanup.client import Connections
from pytest_mnode.launchers.hostfile import Host
from pytest_mnode.launchers.node import Launcher, Node, Watchers
from pytest_mnode.launchers.remote import looking, near, sending
from pytest_mnode.launchers.remote.apart import mistaken
from pytest_mnode.launchers.remote.asking import look_at, unusable
from pytest_mnode.launchers.remote.looking import Look
from pytest_mnode.launchers.remote.member import member
from pytest_mnode.launchers.remote.openssh import CONNECT_S, LONGEST_SOCKET_PATH, OpenSsh
from pytest_mnode.launchers.remote.shared import Shared
from pytest_mnode.protocol.launcher_requests import LauncherRequest, PowerOff, PowerOn
from pytest_mnode.spec import Spec

_TRY_AGAIN_S = 1.0
_OFF = "powered off"


@dataclass(slots=True)
class SshHost:
    """What is known of a host.

    socket: name of its connection's. why: it cannot be used, "" where it can. place: of this
    package there, where that is not as here.
    """

    host: Host
    socket: str
    why: str = "not started"
    place: str = ""


class Ssh(Launcher):
    """These hosts; their power is switched by the commands that the spec names. Thread-safe.

    run_dir: of this machine, for sockets; root: where a directory that all nodes see is looked
    for; python: on the nodes, "" for the path of this one.
    """

    name = "ssh"
    shared_kernel = False

    def __init__(
        self,
        hosts: Sequence[Host],
        spec: Spec,
        *,
        run_dir: str,
        root: Path,
        shared_dir: Path | None = None,
        python: str = "",
        unused: Sequence[str] = (),
    ) -> None:
        self.unused = unused
        self.python = python or sys.executable
        self._spec = spec
        self._ssh = OpenSsh.named()
        self._run_dir = run_dir
        self._shared = (shared_dir, root)
        self._candidate: Shared | None = None
        self._sockets = run_dir
        self._config = Path(run_dir) / "ssh.json"
        self._hosts = {
            host.target: SshHost(host, f"s{number}") for number, host in enumerate(hosts)
        }
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self._watchers = Watchers("ssh-watch")
        self._connections = Connections(self._lose)
        self._closed = False

    # Coming up.

    def start(self) -> None:
        """Connect to all hosts at once, and look at them. Raises ClusterError, a line a host."""
        try:
            self._candidate = Shared(*self._shared)
            # Last before the keeper, which is to remove it.
            if len(self._run_dir) > LONGEST_SOCKET_PATH - len("/s0000"):
                self._sockets = tempfile.mkdtemp(prefix="mnode-", dir="/tmp")
            shared = self._candidate.directory
            remove = {self._run_dir, self._sockets, *([str(shared)] if shared else [])}
            keeper_pid = self._connections.start(sorted(remove))
            command = self._ssh.command
            commands = {t: command(t, self._socket(t), self.python) for t in self._hosts}
            self._config.write_text(sending.told(keeper_pid, commands))
            problems = self._connect(list(self._hosts), CONNECT_S + 5.0)
            looks, more = self._look([t for t in self._hosts if t not in problems])
            problems |= more
            if problems:
                in_order = {t: problems[t] for t in self._hosts if t in problems}
                raise unusable(in_order, len(self._hosts), "ssh")
            self.nodes = self._members(looks)
            self.shared_dir = self._candidate.settle(looks)
        except BaseException:
            self.close()
            raise
        self._watchers.start()

    def _socket(self, target: str) -> str:
        return f"{self._sockets}/{self._hosts[target].socket}"

    def _connect(self, targets: Sequence[str], limit_s: float) -> dict[str, str]:
        """Make connections, and wait for them; why those failed that did."""
        ways = {t: (self._ssh.master(t, self._socket(t)), self._socket(t)) for t in targets}
        problems = self._connections.connect(ways, limit_s)
        with self._lock:
            for target in targets:
                self._hosts[target].why = problems.get(target, "")
        return problems

    def _look(self, targets: Sequence[str]) -> tuple[dict[str, Look], dict[str, str]]:
        assert self._candidate is not None
        token = self._candidate.token if self._candidate.directory else None
        directory = str(Path.cwd())
        argv = looking.argv(self.python, token, directory)
        return look_at({t: self._near(t, argv) for t in targets}, directory, self._run_dir)

    def _members(self, looks: Mapping[str, Look]) -> tuple[Node, ...]:
        addresses = {t: looks[t].reached_at or host.host.name for t, host in self._hosts.items()}
        if problems := mistaken({target: looks[target] for target in self._hosts}, addresses):
            raise unusable(problems, len(looks), "ssh")
        nodes = []
        for index, (target, host) in enumerate(self._hosts.items()):
            look = looks[target]
            self._names[look.hostname] = target
            host.place = look.place or ""
            nodes.append(member(index, addresses[target], look, self._spec))
        return tuple(nodes)

    # What becomes of the nodes.

    def _lose(self, target: str, why: str) -> None:
        """Called by the connections, from a thread of theirs."""
        why = f"the connection was lost: {why}"
        with self._lock:
            self._hosts[target].why = self._hosts[target].why or why
        for name in [name for name, its in self._names.items() if its == target]:
            self._watchers.lost(name, why)

    # What a launcher does.

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. This Python in `argv`, and paths of this package, are the nodes' own."""
        return [self._near(self._there(node), argv) for node in nodes]

    def _near(self, target: str, argv: Sequence[str]) -> list[str]:
        python = [sys.executable, "-S", "-E", "-s", str(Path(near.__file__))]
        there = looking.as_there(argv, self.python, self._hosts[target].place)
        return [*python, str(self._config), target, *there]

    def _there(self, node: Node) -> str:
        """What ssh calls a node; NodeLostError where it is gone."""
        target = self._target(node.name)
        with self._lock:
            why = "the run is over" if self._closed else self._hosts[target].why
        if why:
            raise NodeLostError(node.name, f"{node.name} is not there: {why}")
        return target

    def _target(self, name: str) -> str:
        target = self._names.get(name)
        if target is None:
            raise UsageError(f"ssh: no node {name!r} (there are: {', '.join(self._names)})")
        return target

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher."""
        self._watchers.add(on_lost)

    def ask(self, request: LauncherRequest) -> Any:
        """See Launcher: power."""
        match request:
            case PowerOff(name):
                self._power_off(self._node(name))
            case PowerOn(name):
                self._power_on(self._node(name))
            case _:
                super().ask(request)

    def _node(self, name: str) -> Node:
        self._target(name)
        return next(node for node in self.nodes if node.name == name)

    def _power_off(self, node: Node) -> None:
        """Switch it off by the spec's command. Raises ClusterError."""
        target = self._target(node.name)
        power.switch(self._spec.power, "off", node)
        with self._lock:
            self._hosts[target].why = _OFF
        self._connections.end(target)

    def _power_on(self, node: Node) -> None:
        """Boot it by the spec's command, and wait until it can be used. Raises ClusterError.

        One whose connection alone was lost is connected anew, and not switched.
        """
        target = self._target(node.name)
        ours = self._hosts[target].why == _OFF
        if not ours and self._back(target, node, time.monotonic() + CONNECT_S) is None:
            return
        section = power.switch(self._spec.power, "on", node)
        end = time.monotonic() + section.within_s
        while (problem := self._back(target, node, end)) is not None:
            if time.monotonic() > end or self._closed:
                raise ClusterError(
                    f"{node.name} was not back {section.within_s:g} s after power.switch_on: "
                    f"{problem}"
                )
            time.sleep(_TRY_AGAIN_S)

    def _back(self, target: str, node: Node, end: float) -> str | None:
        """Connect to a host again; what is wrong with it, None where it is as before."""
        limit_s = max(1.0, min(CONNECT_S, end - time.monotonic()))
        if problems := self._connect([target], limit_s):
            return problems[target]
        looks, problems = self._look([target])
        why = problems.get(target)
        if (look := looks.get(target)) is not None:
            # Its fabric may still be on its way up: that is for tests to say.
            now = (look.hostname, look.reached_at or self._hosts[target].host.name)
            why = None if now == (node.name, node.address) else f"it is {now[0]} at {now[1]} now"
        if why is not None:
            with self._lock:
                self._hosts[target].why = why
        return why

    def close(self) -> None:
        """See Launcher."""
        if self._closed:
            return
        self._closed = True
        self._watchers.close()
        try:
            self._connections.close([self._sockets] if self._sockets != self._run_dir else [])
        finally:
            if self._candidate is not None:
                self._candidate.remove()
