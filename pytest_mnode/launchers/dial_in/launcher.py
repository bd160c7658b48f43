"""The launcher of nodes that dial in, and the base of backends whose nodes do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers import power
from pytest_mnode.launchers.backends import Backend, Here, NodeRequest, scheduler_of
from pytest_mnode.launchers.dial_in.bridge import DialSettings
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.launcher import RemoteLauncher
from pytest_mnode.launchers.remote.run_all import unusable_nodes
from pytest_mnode.options import Settings

END_S = 9.0
"""Time for the bridge to end what it started (bridge.ENDS_S and more)."""
SLACK_S = 20.0
"""For the bridge's own start, and its end where nodes are missing (DialBridge.end, 12.5 s)."""
BRIDGE = "pytest_mnode.launchers.dial_in.bridge"
NODE = "pytest_mnode.launchers.dial_in.node"


class DialIn(RemoteLauncher):
    """Nodes that a site's commands start a program on. Thread-safe.

    hosts: their names in a host list; () for any that dial in. A node that is lost is not started
    on again: the commands start it once.
    """

    def __init__(
        self, backend: DialInBackend, request: NodeRequest, hosts: Sequence[str] = ()
    ) -> None:
        self.name = backend.name
        super().__init__(request.spec, request.remote)
        self._backend, self._request = backend, request
        self._hosts = tuple(hosts)
        self.takes_no_jobs = scheduler_of(Here(request.settings, os.environ), self._hosts)

    def _start(self) -> None:
        """Start the site's commands, and collect a report of each node. Raises ClusterError."""
        self._bridge.start_daemon(self._prepare())
        assert self._shared is not None
        directory = self._shared.directory
        order = str(directory / "dial-in") if directory else ""
        argv = (self.python, "-P", "-m", NODE, order or "-")
        start = Start(self._hosts, self._request.nodes, argv, self._request.settings)
        settings = DialSettings(
            hosts=self._hosts,
            nodes=self._request.nodes,
            commands=self._backend.commands(start),
            order=order,
            start_s=self.start_limit_s,
            silence_s=self.silence_limit_s,
            env={**self._of_the_job(), **self._backend.env},
        )
        try:
            self._start_bridge(BRIDGE, asdict(settings), END_S, self.start_limit_s + SLACK_S)
        except ClusterError as error:
            raise ClusterError(f"{self.name}: {error}") from None
        hosts: list[str] = json.loads(Path(self._run_dir, "dial-in.hosts").read_text())
        reports, problems = self._reports(hosts)
        if problems:
            raise unusable_nodes(problems, len(hosts), self.name)
        self._take({host: reports[host] for host in hosts}, {h: h for h in hosts}, self.name)

    def _of_the_job(self) -> dict[str, str]:
        """Variables by which the site's command finds the nodes of the job that they are of."""
        names = self._backend.finds_nodes_by if self.takes_no_jobs else ()
        return {name: os.environ[name] for name in names if name in os.environ}

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


@dataclass(frozen=True, slots=True)
class Start:
    """What to start: `argv` on these hosts; () for any `nodes` hosts."""

    hosts: tuple[str, ...]
    nodes: int
    argv: tuple[str, ...]
    settings: Settings


class DialInBackend(Backend):
    """A backend whose nodes dial in: it names them, and the commands that start a program there.

    outside: how to get nodes, where there are none. env: variables of these commands.
    finds_nodes_by: names of those that they take from the job, though these describe a task of it.
    """

    outside: ClassVar[str]
    env: ClassVar[Mapping[str, str]] = {}
    finds_nodes_by: ClassVar[Sequence[str]] = ()

    def inside(self, here: Here) -> str | None:  # noqa: ARG002
        """Which job of the scheduler this process is in, as "inside of job 7"; None if in none."""
        return None

    def meant(self, here: Here) -> str | None:
        """A hostfile means ssh, also inside of a job."""
        return self.inside(here) if here.settings.hostfile is None else None

    def commands(self, start: Start) -> list[list[str]]:
        """Local commands that together start `argv` on the hosts, at least once on each."""
        raise NotImplementedError

    def launcher(self, request: NodeRequest) -> Launcher:
        names = self.names(Here(request.settings, os.environ))
        if names is None:
            raise UsageError(f"--mnode-launcher={self.name}: {self.outside}")
        on = request.settings.on
        used = [name for name in names if not on or name in on][: request.nodes]
        if len(used) < request.nodes:
            raise UsageError(
                f"{request.nodes} nodes are needed, but there are {len(names)}: {compress(names)}"
            )
        made = DialIn(self, request, used)
        made.unused = [name for name in names if name not in used]
        return made
