"""Nodes reached by the user's own OpenSSH, with its configuration, keys and agent."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.backends import Backend, Here, NodeRequest, scheduler_of
from pytest_mnode.launchers.cleanup.client import Connections
from pytest_mnode.launchers.hosts import Host, first_hosts, read_hostfile
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.launcher import POWERED_OFF, RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.launchers.remote.openssh import CONNECT_S, LONGEST_SOCKET_PATH, OpenSsh
from pytest_mnode.launchers.remote.run_all import unusable_nodes
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec

_CONNECT_LIMIT_S = CONNECT_S + 5.0
"""ssh reaches its own limit first, and names the reason."""


@dataclass(slots=True)
class SshHost:
    """A host. socket: file name of its control socket. reason: why it is unusable, or ""."""

    host: Host
    socket: str
    reason: str = "not started"


class Ssh(RemoteLauncher):
    """Nodes reached by ssh; the spec's commands switch their power. Thread-safe.

    unused: names of hosts in the hostfile that the run does not need. Control sockets are in the
    run's directory if its path is short enough.
    """

    name = "ssh"

    def __init__(
        self,
        hosts: Sequence[Host],
        spec: Spec,
        remote: RemoteOptions,
        unused: Sequence[str] = (),
    ) -> None:
        super().__init__(spec, remote)
        self.unused = unused
        self._ssh = OpenSsh.named()
        self._socket_dir = remote.run_dir
        self._hosts = {host.target: SshHost(host, f"s{n}") for n, host in enumerate(hosts)}
        self._lock = threading.Lock()
        self._connections = Connections(self._lose)

    def _start(self) -> None:
        """Connect to all hosts at once, and collect a report of each. Raises ClusterError."""
        remove = self._prepare()
        # The directory is made just before the daemon that removes it starts.
        # OpenSSH parses the path as a configuration value: blanks and quotes are special.
        odd = not set(self._run_dir).isdisjoint(" \t\"'\\")
        if odd or len(self._run_dir) > LONGEST_SOCKET_PATH - len("/s0000"):
            self._socket_dir = tempfile.mkdtemp(prefix="mnode-", dir="/tmp")
        daemon_pid = self._connections.start(sorted({*remove, self._socket_dir}))
        command = self._ssh.command
        self._write_config(
            daemon_pid,
            {t: command(h.host, self._socket(t), self.python) for t, h in self._hosts.items()},
        )
        problems = self._connect(list(self._hosts), _CONNECT_LIMIT_S)
        reports, more = self._reports([t for t in self._hosts if t not in problems])
        problems |= more
        if problems:
            in_order = {t: problems[t] for t in self._hosts if t in problems}
            raise unusable_nodes(in_order, len(self._hosts), self.name)
        reports = {t: reports[t] for t in self._hosts}
        addresses = {t: self._address(t, reports[t]) for t in reports}
        self._take(reports, addresses, self.name)

    def _address(self, target: str, report: NodeReport) -> str:
        return report.reached_at or self._hosts[target].host.name

    def _socket(self, target: str) -> str:
        return f"{self._socket_dir}/{self._hosts[target].socket}"

    def _connect(self, targets: Sequence[str], limit_s: float) -> dict[str, str]:
        """Open connections and wait for them; reasons of the failed ones, by host."""
        masters = {
            t: (
                self._ssh.master(self._hosts[t].host, self._socket(t), self.silence_limit_s),
                self._socket(t),
            )
            for t in targets
        }
        problems = self._connections.connect(masters, limit_s)
        with self._lock:
            for target in targets:
                self._hosts[target].reason = problems.get(target, "")
        return problems

    def _lose(self, target: str, why: str) -> None:
        """Called from the thread of `Connections`."""
        why = f"the connection was lost: {why}"
        with self._lock:
            self._hosts[target].reason = self._hosts[target].reason or why
        for name in [name for name, host in self._hosts_by_name.items() if host == target]:
            self._watchers.lost(name, why)

    def _why_gone(self, node: Node) -> str | None:
        with self._lock:
            if self._closed:
                return "the run is over"
            return self._hosts[self._host_of(node.name)].reason

    def _went_off(self, node: Node) -> None:
        target = self._host_of(node.name)
        with self._lock:
            self._hosts[target].reason = POWERED_OFF
        self._connections.end(target)

    def _power_on(self, node: Node) -> None:
        """Reconnect a node that only lost its connection, without switching its power."""
        switched_off = self._hosts[self._host_of(node.name)].reason == POWERED_OFF
        if switched_off or self._problem_with(node, CONNECT_S) is not None:
            super()._power_on(node)

    def _problem_with(self, node: Node, limit_s: float) -> str | None:
        """Reconnect and collect a report. The fabric may still be coming up: tests judge that."""
        target = self._host_of(node.name)
        if problems := self._connect([target], max(1.0, min(CONNECT_S, limit_s))):
            return problems[target]
        reports, problems = self._reports([target])
        why = problems.get(target)
        if (report := reports.get(target)) is not None:
            now = (report.hostname, self._address(target, report))
            why = None if now == (node.name, node.address) else f"it is now {now[0]} at {now[1]}"
        if why is not None:
            with self._lock:
                self._hosts[target].reason = why
        return why

    def _give_back(self) -> None:
        self._connections.close([self._socket_dir] if self._socket_dir != self._run_dir else [])


class SshBackend(Backend):
    name = "ssh"
    reads_hostfile = True

    def meant(self, here: Here) -> str | None:
        return f"hostfile {file}" if (file := here.settings.hostfile) else None

    def names(self, here: Here) -> tuple[str, ...]:
        return tuple(host.name for host in _hosts(here.settings))

    def launcher(self, request: NodeRequest) -> Launcher:
        settings = request.settings
        hosts = _hosts(settings)
        used = first_hosts(hosts, request.nodes, settings.on, str(settings.hostfile))
        unused = [host.name for host in hosts if host not in used]
        made = Ssh(used, request.spec, request.remote, unused=unused)
        here = Here(settings, os.environ)
        made.takes_no_jobs = scheduler_of(here, [host.name for host in used])
        return made


def _hosts(settings: Settings) -> tuple[Host, ...]:
    if settings.hostfile is None:
        raise UsageError("--mnode-launcher=ssh: no nodes given: use --mnode-hostfile=FILE")
    return read_hostfile(settings.hostfile)
