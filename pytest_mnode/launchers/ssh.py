"""Nodes reached by the user's own OpenSSH, with its configuration, keys and agent."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.backends import Backend, Here, NodeRequest, scheduler_of
from pytest_mnode.launchers.hosts import Host, first_hosts, read_hostfile
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.launcher import RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.launchers.remote.openssh import OpenSsh
from pytest_mnode.launchers.remote.run_all import unusable_nodes, with_remedy
from pytest_mnode.launchers.remote.stdio_bridge import END_S
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec

_BRIDGE = "pytest_mnode.launchers.remote.stdio_bridge"


class Ssh(RemoteLauncher):
    """Nodes reached by ssh; the spec's commands switch their power. Thread-safe.

    unused: names of hosts in the hostfile that the run does not need.
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
        self._hosts = {host.target: host for host in hosts}

    def _start(self) -> None:
        """Connect to all hosts, and collect a report of each. Raises ClusterError."""
        self._bridge.start_daemon(self._prepare())
        settings = {"silence_s": self.silence_limit_s, "late": self.starts_late}
        self._start_bridge(_BRIDGE, settings, END_S + 1.0)
        problems = self._open(list(self._hosts), self.start_limit_s)
        reports, more = self._reports([t for t in self._hosts if t not in problems])
        problems = {t: with_remedy(why) for t, why in problems.items()} | more
        if problems:
            in_order = {t: problems[t] for t in self._hosts if t in problems}
            raise unusable_nodes(in_order, len(self._hosts), self.name)
        reports = {t: reports[t] for t in self._hosts}
        addresses = {t: self._address(t, reports[t]) for t in reports}
        self._take(reports, addresses, self.name)

    def _address(self, target: str, report: NodeReport) -> str:
        return report.reached_at or self._hosts[target].name

    def _way(self, host: str) -> list[str]:
        return self._ssh.command(self._hosts[host], self.python)

    def _change(self, node: Node, report: NodeReport) -> str | None:
        now = (report.hostname, self._address(self._host_of(node.name), report))
        if now == (node.name, node.address):
            return None
        return f"it is now {now[0]} at {now[1]}"


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
