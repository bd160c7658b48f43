"""Base of backends whose scheduler or command starts a program on each node, which dials in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pytest_mnode.backends.backend import Backend, Here, NodeRequest
from pytest_mnode.backends.registry import scheduler_of
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.dial_in.launcher import DialIn
from pytest_mnode.launchers.hosts import Host, first_hosts
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.options import Settings


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
        settings = request.settings
        here = Here(settings, os.environ)
        names = self.names(here)
        if names is None:
            raise UsageError(f"--mnode-launcher={self.name}: {self.outside}")
        where = settings.hostfile or (self.inside(here) or self.name).removeprefix("inside of ")
        there = [Host(name, None, 0) for name in names]
        used = [one.name for one in first_hosts(there, request.nodes, settings.on, str(where))]
        made = self.dialing(request, used)
        made.unused = [name for name in names if name not in used]
        return made

    def dialing(self, request: NodeRequest, hosts: Sequence[str] = ()) -> DialIn:
        """The launcher of these hosts; () for any that dial in."""
        settings, nodes = request.settings, request.nodes
        scheduler = scheduler_of(Here(settings, os.environ), hosts)
        of_the_job = [name for name in self.finds_nodes_by if scheduler and name in os.environ]
        made = DialIn(
            self.name,
            request.spec,
            request.remote,
            nodes=nodes,
            hosts=hosts,
            commands=lambda argv: self.commands(Start(tuple(hosts), nodes, argv, settings)),
            env={**{name: os.environ[name] for name in of_the_job}, **self.env},
        )
        made.takes_no_jobs = scheduler
        return made


def printed(*argv: str, package: str) -> str:
    """What a scheduler's command prints. Raises UsageError, in one line, if it fails."""
    try:
        return output_of(*argv, package=package)
    except NoOutput as error:
        raise UsageError(f"{' '.join(argv)}: {error}") from None
