"""The node type, and the base class of all launchers."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.limits import Limits
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView
from pytest_mnode.protocol.launcher_requests import LauncherRequest
from pytest_mnode.protocol.messages import RankStart


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: something a command can be run on.

    name: host name, as the node itself reports it.
    index: 0 … N-1, the order in which worlds are filled.
    address: where other nodes reach it for control traffic (MASTER_ADDR).
    fabric_address: its address on the training fabric; None if unknown.
    fabric_interface: interface for collectives (GLOO_SOCKET_IFNAME …); None if the backend chooses.
    shown: the sysfs view of its sockets and devices.
    nccl_host: host id that NCCL is given (NCCL_HOSTID); None if NCCL finds it itself.
    """

    name: str
    index: int
    address: str
    fabric_address: str | None = None
    fabric_interface: str | None = None
    shown: SysfsView = AS_IT_IS
    nccl_host: str | None = None

    @property
    def collective_env(self) -> dict[str, str]:
        """Variables that make gloo and NCCL use the fabric, and NCCL see this node as one host."""
        env = socket_pins(self.fabric_interface)
        if self.nccl_host is not None:
            env["NCCL_HOSTID"] = self.nccl_host
        return env


def socket_pins(interface: str | None) -> dict[str, str]:
    """Variables that make gloo and NCCL use this interface; {} for None."""
    if not interface:
        return {}
    # "=": the exact name, not a prefix
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command on one node. `returncode` is None if the time limit ended it."""

    node: str
    returncode: int | None
    stdout: str
    stderr: str
    duration_s: float

    @property
    def ok(self) -> bool:
        return self.returncode == 0


def count(number: int, noun: str = "node") -> str:
    """ "1 node", "4 nodes"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def check_argv(argv: Sequence[str], what: str = "argv") -> None:
    """Raises UsageError for a command that is none: one text, or a number among them."""
    wrong = (
        argv if isinstance(argv, str) else next((one for one in argv if not _is_word(one)), None)
    )
    if wrong is not None or not argv:
        raise UsageError(f"{what}={wrong if argv else argv!r}: accepted: a list of texts")


def check_env(env: Mapping[str, str]) -> None:
    """Raises UsageError for what no variable can be."""
    for name, value in env.items():
        if not (_is_word(value) and _is_word(name) and name and "=" not in name):
            raise UsageError(f"env {name}={value!r}: accepted: a name without =, and a text")


def _is_word(text: object) -> bool:
    return isinstance(text, str | Path) and "\0" not in str(text)


class Launcher:
    """Base class of launchers: provides the local commands that start one command on given nodes.

    Methods may be called from any thread, and concurrently. A subclass sets `name`, `nodes` and
    `shared_kernel`, implements `commands`, and overrides the other methods that it supports.
    """

    name: str
    """"local", "rack", …"""
    nodes: Sequence[Node] = ()
    """Known after `start`."""
    shared_kernel: bool
    """Whether all nodes run on this kernel: one agent serves them all, and all files are shared."""
    limits = Limits()
    """How long a run waits for the nodes."""
    python: str = sys.executable
    """Path of the Python that runs this package's programs on nodes."""
    shared_dir: Path | None = None
    """A directory shared by all nodes and this machine, known after `start`; None if there is none,
    or if the nodes share this kernel."""
    unused: Sequence[str] = ()
    """Names of hosts that the user gave but the run does not need."""
    job_id: int | None = None
    """The scheduler's number of the allocation that holds the nodes."""
    takes_no_jobs: str = ""
    """The scheduler that gave the nodes, if the run submits no jobs to it."""
    env = RunEnv()
    """The environment of programs on the nodes."""
    job_facts: Any = None
    """What `Backend.submit` and `path` of its backend have to know of the run besides; known after
    `start`."""

    def start(self) -> None:
        """Bring the nodes up. Raises ClusterError that names what is missing."""

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """Local commands, one per node, that together run `argv` once on every node.

        A command keeps the caller's working directory and standard streams, of which input and
        output carry any bytes (no terminal, and the errors apart), and its exit status is that of
        `argv` (128 + signal if a signal ended it). Its environment follows the rule of
        `node_env`: start it with `env.command(…)`. Raises NodeLostError if a node is off.
        """
        raise NotImplementedError

    def agent_command(self, argv: Sequence[str]) -> list[str]:  # noqa: ARG002
        """The local command of the one agent program that serves all nodes of a shared kernel."""
        raise ClusterError(f"{self.name}: nodes that share no kernel need an agent program each")

    def why_ended(self) -> str:
        """What ended all nodes of a shared kernel at the same time; "" if nothing did."""
        return ""

    def python_of(self, node: Node) -> str:  # noqa: ARG002
        """Path of the Python that runs this package's programs on one node."""
        return self.python

    def namespace_pid(self, node: Node) -> int | None:  # noqa: ARG002
        """Pid, as the agent sees it, of the process whose namespaces are the node; None if none.

        The pid changes when the node is booted again. Raises NodeLostError if the node is off.
        """
        return None

    def rank_start(self, node: Node) -> RankStart:  # noqa: ARG002
        """Settings of the ranks that a node starts from now on."""
        return RankStart()

    def ask(self, request: LauncherRequest) -> Any:
        """Carry out a request. Raises ClusterError if this launcher cannot, or if it fails."""
        raise ClusterError(
            f"the {self.name} launcher cannot {request.does}; use --mnode-launcher=rack, which can"
        )

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """Call `on_lost(node name, reason)`, from any thread, when a node is lost."""

    def close(self) -> None:
        """Take everything down; idempotent; bounded in time."""


class Watchers:
    """Callbacks for lost nodes, called from a thread of their own: they may use the launcher."""

    def __init__(self, name: str) -> None:
        self._on_lost: list[Callable[[str, str], None]] = []
        self._losses: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._name = name

    def add(self, on_lost: Callable[[str, str], None]) -> None:
        self._on_lost.append(on_lost)

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def lost(self, node: str, reason: str) -> None:
        self._losses.put((node, reason))

    def close(self) -> None:
        self._losses.put(None)

    def _run(self) -> None:
        while (loss := self._losses.get()) is not None:
            for on_lost in list(self._on_lost):
                on_lost(*loss)
