"""The launcher of nodes that dial in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers import power
from pytest_mnode.launchers.dial_in.bridge import DialSettings
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote.launcher import RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.run_all import unusable_nodes
from pytest_mnode.spec import Spec

END_S = 9.0
"""Time for the bridge to end what it started (bridge.ENDS_S and more)."""
BRIDGE = "pytest_mnode.launchers.dial_in.bridge"
NODE = "pytest_mnode.launchers.dial_in.node"


class DialIn(RemoteLauncher):
    """Nodes that a site's commands start a program on. Thread-safe.

    hosts: their names in a host list; () for any `nodes` that dial in. commands: the site's local
    commands that together start an argv on the hosts. env: variables of these commands. A node that
    is lost is not started on again: the commands start it once.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        remote: RemoteOptions,
        *,
        nodes: int,
        hosts: Sequence[str],
        commands: Callable[[tuple[str, ...]], list[list[str]]],
        env: Mapping[str, str],
    ) -> None:
        self.name = name
        super().__init__(spec, remote)
        self._nodes, self._hosts = nodes, tuple(hosts)
        self._commands, self._variables = commands, env

    def _start(self) -> None:
        """Start the site's commands, and collect a report of each node. Raises ClusterError."""
        self._bridge.start_daemon(self._prepare())
        assert self._shared is not None
        directory = self._shared.directory
        order = str(directory / "dial-in") if directory else ""
        settings = DialSettings(
            hosts=self._hosts,
            nodes=self._nodes,
            commands=self._commands((self.python, "-P", "-m", NODE, order or "-")),
            order=order,
            start_s=self.limits.start_s,
            silence_s=self.limits.silence_s,
            connect_s=self.limits.connect_s,
            env=self._variables,
            python=self.python,
        )
        try:
            self._start_bridge(BRIDGE, asdict(settings), END_S, self.limits.start_s)
        except ClusterError as error:
            raise ClusterError(f"{self.name}: {error}") from None
        hosts: list[str] = json.loads(Path(self._run_dir, "dial-in.hosts").read_text())
        reports, problems = self._reports(hosts)
        if problems:
            raise unusable_nodes(problems, len(hosts), self.name)
        self._take({host: reports[host] for host in hosts}, {h: h for h in hosts}, self.name)

    def _power_on(self, node: Node) -> None:
        """Its program is started once: it comes back only if it was never lost."""
        power.switch(self._spec.power, "on", node)
        host = self._host_of(node.name)
        _, problems = self._reports([host])
        if problems:
            raise ClusterError(
                f"{node.name} does not come back in this run: with {self.name}, nodes are started "
                f"once, at its beginning ({problems[host]})"
            )
