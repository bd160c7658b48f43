"""Nodes by name, and commands on them, from the controller. They need no lease."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.node import CommandResult, Node, check_argv, check_env
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.remote.node_process import Program, start
from pytest_mnode.launchers.remote.run_all import run_all
from pytest_mnode.limits import Limits
from pytest_mnode.processes import last_line
from pytest_mnode.protocol.launcher_requests import (
    DescribeRun,
    LauncherRequest,
    NodeCommands,
)
from pytest_mnode.protocol.messages import RUN

FREE_PORT = """\
import random, socket
least = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
ports = random.sample(range(10000, least), 50) if least > 12000 else []
for port in [*ports, 0]:
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError:
        continue
    print(server.getsockname()[1])
    break
else:
    raise SystemExit("nothing can listen on any port")
"""
"""A program for a node: prints a TCP port that is free on all of its addresses, as rendezvous
listen on all. The kernel gives none from below its range to connections that others open before the
rendezvous listens; where the range leaves no room below it, any port."""


NO_SHARED_DIR = "its nodes see no directory in common (--mnode-shared-dir)"


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Facts that the run's hub has about its nodes.

    scratch: a directory removed with the run; on all nodes if files are shared. run_id: value of
    the variable RUN in the run's processes. python: path of the Python that runs this package's
    programs on nodes. allocation: number of the scheduler's job that holds the nodes; None if there
    is none. env: the environment of programs on the nodes. job_facts, takes_no_jobs, limits: see
    Launcher. backend: its name.
    """

    nodes: tuple[Node, ...]
    shares_kernel: bool
    shares_files: bool
    scratch: str
    run_id: str
    python: str
    allocation: int | None
    job_facts: Any = None
    env: RunEnv = field(default_factory=RunEnv)
    takes_no_jobs: str = ""
    backend: str = "local"
    limits: Limits = field(default_factory=Limits)


class Nodes:
    """Nodes by name, and commands on them; other programs on the nodes keep running.

    It needs only the launcher, so it works on a node where no rank can be started.
    ask_launcher: sends a request to the launcher; raises ClusterError if the launcher cannot.
    """

    def __init__(
        self,
        ask_launcher: Callable[[LauncherRequest], Any],
        names: tuple[str, ...],
        accelerators_per_node: int = 0,
    ) -> None:
        self._ask = ask_launcher
        self._all = names
        self._accelerators_per_node = accelerators_per_node
        self._known: RunDescription | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, in the order in which worlds are filled."""
        return self._all

    def run(
        self,
        argv: Sequence[str],
        nodes: Sequence[str] | str | None = None,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[CommandResult]:
        """Run a command on nodes (None: all) at the same time; one result per node, in their order.

        A command that is not over after `timeout` seconds (None: the limit of a node's program and
        its report) is killed, and its returncode is None.
        """
        names = self._names(nodes)
        commands = zip(names, self.commands(argv, names), strict=True)
        return self._run_commands(list(commands), timeout, env)

    def run_each(
        self, argvs: Mapping[str, Sequence[str]], *, timeout: float | None = None
    ) -> list[CommandResult]:
        """Like `run`, with a separate argv for each node."""
        commands = [(node, self.commands(argv, node)[0]) for node, argv in argvs.items()]
        return self._run_commands(commands, timeout, None)

    def _run_commands(
        self,
        commands: Sequence[tuple[str, list[str]]],
        limit_s: float | None,
        env: Mapping[str, str] | None,
    ) -> list[CommandResult]:
        limit_s = self.limits.reported_s if limit_s is None else limit_s
        return run_all(commands, limit_s, self.run_id, self.env(env))

    def start(
        self,
        argv: Sequence[str],
        node: str,
        *,
        output: Path,
        env: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        text: str = "",
    ) -> Program:
        """Start a command on a node and leave it running; the caller ends it.

        A command that still runs when the run ends is ended then. output: a file here, to which
        what it prints is appended. env: variables of the command. defaults: variables that it gets
        where neither the node nor the user sets them. text: its standard input.
        """
        [command] = self.commands(argv, node)
        with tempfile.TemporaryFile() as stdin:  # a pipe would block while the command starts
            stdin.write(text.encode())
            stdin.seek(0)
            made = self.env(env, defaults)
            return start(command, made, stdin=stdin.fileno(), stdout=output, stderr=output)

    def env(
        self, env: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Environment of a local command that runs a program on a node; see `start`."""
        check_env(env or {})
        return self._run_facts.env.command({**(env or {}), RUN: self.run_id}, defaults)

    @property
    def given_env(self) -> Mapping[str, str]:
        """Variables that the user set for the run."""
        return self._run_facts.env.given

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        """Local commands, one for each of these nodes (None: all), that run `argv` there."""
        check_argv(argv)
        found: list[list[str]] = self._ask(NodeCommands(self._names(nodes), tuple(argv)))
        return found

    def address(self, node: str) -> str:
        """Address at which other nodes reach `node` for control traffic (MASTER_ADDR)."""
        return self._node(node).address

    def free_port(self, node: str) -> int:
        """A TCP port of a node that nothing uses. Raises ClusterError."""
        argv = [self.python, "-I", "-S", "-c", FREE_PORT]
        [found] = self.run(argv, node)
        if not found.ok:
            late = "the command that looks for one did not end in time"
            raise ClusterError(
                f"no free port was found on {node}: {last_line(found.stderr) or late}"
            )
        return int(found.stdout)

    def fabric_interface(self, node: str) -> str | None:
        """Interface for collectives on a node; None if the backend chooses."""
        return self._node(node).fabric_interface

    @property
    def share_files(self) -> bool:
        """Whether all nodes share the directory `scratch`."""
        return self._run_facts.shares_files

    @property
    def share_kernel(self) -> bool:
        """Whether all nodes are on this machine, and see all of its files."""
        return self._run_facts.shares_kernel

    @property
    def scratch(self) -> Path:
        """Directory that is removed with the run, however the run ends; shared by all nodes if
        possible, else on this machine only."""
        return Path(self._run_facts.scratch)

    @property
    def run_id(self) -> str:
        """Value of the variable RUN in processes that must end with the run."""
        return self._run_facts.run_id

    @property
    def python(self) -> str:
        """Path of the Python that runs this package's programs on nodes."""
        return self._run_facts.python

    @property
    def limits(self) -> Limits:
        """How long the run waits for the nodes."""
        return self._run_facts.limits

    @property
    def allocation(self) -> int | None:
        """Number of the scheduler's job that holds the nodes; None if there is none."""
        return self._run_facts.allocation

    @property
    def backend(self) -> str:
        """Name of the backend that the nodes come from."""
        return self._run_facts.backend

    @property
    def why_not_submitted(self) -> str:
        """Why the run submits no jobs to the scheduler that gave the nodes; "" if it does, or if
        there is none."""
        name = self._run_facts.takes_no_jobs
        return name and f"pytest-mnode submits no jobs to {name}, which gave the nodes"

    @property
    def job_facts(self) -> Any:
        """See Launcher."""
        return self._run_facts.job_facts

    @property
    def accelerators_per_node(self) -> int:
        """Number of accelerators per node that the spec promises."""
        return self._accelerators_per_node

    def _names(self, nodes: Sequence[str] | str | None) -> tuple[str, ...]:
        names = (
            self.nodes if nodes is None else (nodes,) if isinstance(nodes, str) else tuple(nodes)
        )
        for name in names:
            if name not in self.nodes:
                raise UsageError(f"no node {name!r} in this test; it has {', '.join(self.nodes)}")
        return names

    def _node(self, name: str) -> Node:
        [name] = self._names(name)
        return next(node for node in self._run_facts.nodes if node.name == name)

    @property
    def _run_facts(self) -> RunDescription:
        if self._known is None:
            found: RunDescription = self._ask(DescribeRun())
            self._known = found
        return self._known
