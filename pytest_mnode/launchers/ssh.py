"""Nodes reached by the user's own OpenSSH, with its configuration, keys and agent."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.launchers.hosts import Host
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote.launcher import RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.launchers.remote.openssh import OpenSsh
from pytest_mnode.launchers.remote.run_all import NAME_PYTHON, unusable_nodes, with_remedy
from pytest_mnode.launchers.remote.stdio_bridge import END_S
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
        self._pythons = {host.target: host.python for host in hosts if host.python}

    def _start(self) -> None:
        """Connect to all hosts, and collect a report of each. Raises ClusterError."""
        self._bridge.start_daemon(self._prepare())
        settings = {"silence_s": self.limits.silence_s, "late": self.starts_late}
        self._start_bridge(_BRIDGE, settings, END_S + 1.0)
        problems = self._open(list(self._hosts), self.limits.start_s)
        reports, more = self._reports([t for t in self._hosts if t not in problems])
        problems = {t: with_remedy(why, self._remedy(t)) for t, why in problems.items()} | more
        if problems:
            in_order = {t: problems[t] for t in self._hosts if t in problems}
            raise unusable_nodes(in_order, len(self._hosts), self.name)
        reports = {t: reports[t] for t in self._hosts}
        addresses = {t: self._address(t, reports[t]) for t in reports}
        self._take(reports, addresses, self.name)

    def _remedy(self, target: str) -> str:
        """What helps where the Python of a host does not start."""
        own = self._pythons.get(target)
        return f"correct python={own} in the hostfile" if own else NAME_PYTHON

    def _address(self, target: str, report: NodeReport) -> str:
        return report.reached_at or self._hosts[target].name

    def _way(self, host: str) -> list[str]:
        return self._ssh.command(self._hosts[host], self._python_of(host), self.limits.connect_s)

    def _change(self, node: Node, report: NodeReport) -> str | None:
        now = (report.hostname, self._address(self._host_of(node.name), report))
        if now == (node.name, node.address):
            return None
        return f"it is now {now[0]} at {now[1]}"
