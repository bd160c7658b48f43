"""Nodes reached by the user's own OpenSSH, with its configuration, keys and agent."""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mnode.cluster import power
from pytest_mnode.cluster.hostfile import Host
from pytest_mnode.cluster.node import Node
from pytest_mnode.cluster.remote import keeper, looking, near
from pytest_mnode.cluster.remote.asking import look_at, unusable
from pytest_mnode.cluster.remote.looking import Look
from pytest_mnode.cluster.remote.shared import Shared
from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.spec import Spec

SSH_COMMAND = "MNODE_SSH_COMMAND"
"""Variable that names another ssh, with options of its own, such as `ssh -F lab.conf`."""
CONNECT_S = 15.0
_ALWAYS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "RemoteCommand=none"),
    *("-o", "PermitLocalCommand=no", "-o", "ClearAllForwardings=yes"),
    *("-o", f"ConnectTimeout={CONNECT_S:.0f}"),
)
# Found dead by itself within 6 s: what hangs on the connection ends then, however quiet it is.
_MASTER = ("-M", "-N", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3")
_LONGEST_SOCKET_PATH = 80
"""ssh adds 17 bytes to the name while it makes the socket, and 108 are the most."""
_END_S = 12.0
_TRY_AGAIN_S = 1.0


@dataclass(slots=True)
class Seat:
    """What is known of a host. why: it cannot be used, "" where it can."""

    host: Host
    socket: str
    why: str = "not started"
    up: bool = False
    answered: bool = False


class Ssh:
    """The first `nodes` hosts of a hostfile. Implements Launcher, and PowerSwitch by the commands
    that the spec names; thread-safe.

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
    ) -> None:
        if len({host.target for host in hosts}) < len(hosts):
            raise UsageError("ssh: a host is named twice")
        self.nodes: Sequence[Node] = ()
        self.python = python or sys.executable
        self.shared_dir: Path | None = None
        self._spec = spec
        self._ssh = shlex.split(os.environ.get(SSH_COMMAND, "")) or ["ssh"]
        self._run_dir = run_dir
        self._shared = (shared_dir, root)
        self._candidate: Shared | None = None
        self._sockets = run_dir
        if len(run_dir) > _LONGEST_SOCKET_PATH - len("/s0000"):
            self._sockets = tempfile.mkdtemp(prefix="mnode-", dir="/tmp")
        self._config = Path(run_dir) / "ssh.json"
        self._seats = {
            host.target: Seat(host, f"{self._sockets}/s{number}")
            for number, host in enumerate(hosts)
        }
        self._names: dict[str, str] = {}
        self._lock = threading.Condition()
        self._watchers: list[Callable[[str, str], None]] = []
        self._losses: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._closed = False

    # Coming up.

    def start(self) -> None:
        """Connect to all hosts at once, and look at them. Raises ClusterError, a line a host."""
        try:
            self._candidate = Shared(*self._shared)
            self._start_keeper()
            self._connect(list(self._seats), CONNECT_S + 5.0)
            problems = {target: seat.why for target, seat in self._seats.items() if seat.why}
            looks, more = self._look([t for t in self._seats if t not in problems])
            problems |= more
            if problems:
                problems = {
                    target: problems[target] for target in self._seats if target in problems
                }
                raise unusable(problems, len(self._seats), "ssh")
            self.nodes = self._members(looks)
            self.shared_dir = self._candidate.settle(looks)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._tell, name="ssh-watch", daemon=True).start()

    def _start_keeper(self) -> None:
        python = [sys.executable, "-S", "-E", "-s"]
        self._keeper = subprocess.Popen(
            [*python, str(Path(keeper.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._candidate is not None
        shared = self._candidate.directory
        remove = {self._run_dir, self._sockets, *([str(shared)] if shared else [])}
        self._order({"remove": sorted(remove)})
        ways = {target: {"command": self._command(seat)} for target, seat in self._seats.items()}
        self._write_ways(ways)
        threading.Thread(target=self._listen, name="ssh-keeper", daemon=True).start()

    def _write_ways(self, ways: Mapping[str, object]) -> None:
        assert self._keeper is not None
        told = {"keeper": self._keeper.pid, "ways": ways}
        new = self._config.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(self._config)

    def _command(self, seat: Seat) -> list[str]:
        """ssh for one command on a host, over the connection that is there."""
        far = shlex.join([self.python, "-I", "-S", "-c", near.BOOTSTRAP])
        path = seat.socket.replace("%", "%%")
        return [
            *self._ssh,
            *(*_ALWAYS, "-o", "ControlMaster=no", "-o", f"ControlPath={path}"),
            *("--", seat.host.target, f"exec {far}"),
        ]

    def _connect(self, targets: Sequence[str], limit_s: float) -> None:
        """Make connections, and wait until each is there or has failed."""
        for target in targets:
            seat = self._seats[target]
            with self._lock:
                seat.up, seat.answered, seat.why = False, False, "no connection in time"
            path = seat.socket.replace("%", "%%")
            argv = [*self._ssh, *_ALWAYS, *_MASTER, "-o", f"ControlPath={path}"]
            argv += ["-o", "ControlPersist=no", "--", target]
            order = {"connect": target, "argv": argv, "socket": seat.socket, "within_s": limit_s}
            self._order(order)
        seats = [self._seats[target] for target in targets]
        with self._lock:
            self._lock.wait_for(lambda: all(seat.answered for seat in seats), limit_s + 5.0)

    def _look(self, targets: Sequence[str]) -> tuple[dict[str, Look], dict[str, str]]:
        assert self._candidate is not None
        token = self._candidate.token if self._candidate.directory else None
        argv = looking.argv(self.python, token, str(Path.cwd()))
        return look_at({t: self._near(t, argv) for t in targets}, str(Path.cwd()))

    def _members(self, looks: Mapping[str, Look]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for index, (target, seat) in enumerate(self._seats.items()):
            node = self._member(index, seat.host, looks[target])
            for other in nodes:
                if other.name == node.name:
                    first = self._names[node.name]
                    raise ClusterError(f"ssh: {first} and {target} are one machine: {node.name}")
            self._names[node.name] = target
            nodes.append(node)
        return tuple(nodes)

    def _member(self, index: int, host: Host, look: Look) -> Node:
        fabric = self._spec.fabric
        interface = looking.fabric_interface(look, fabric.kind, fabric.interfaces)
        found = (look.networks or {}).get(interface.partition(",")[0], ()) if interface else ()
        return Node(
            name=look.hostname,
            index=index,
            address=look.reached_at or host.name,
            fabric_address=found[0] if found else None,
            fabric_interface=interface,
        )

    # What the keeper says.

    def _order(self, order: Mapping[str, object]) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        except OSError:
            raise ClusterError("ssh: the process that holds the connections has ended") from None

    def _listen(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            self._heard(json.loads(line))
        if not self._closed:
            for target, seat in self._seats.items():
                if not seat.why:
                    self._lose(target, "the process that holds the connections has ended")

    def _heard(self, told: Mapping[str, str]) -> None:
        match told:
            case {"up": target}:
                with self._lock:
                    self._seats[target].up, self._seats[target].why = True, ""
            case {"failed": target, "why": why}:
                with self._lock:
                    self._seats[target].why = why
            case {"ended": target, "why": why}:
                self._lose(target, f"the connection was lost: {why}")
        with self._lock:
            for key in ("up", "failed"):
                if key in told:
                    self._seats[told[key]].answered = True
            self._lock.notify_all()

    def _lose(self, target: str, why: str) -> None:
        with self._lock:
            seat = self._seats[target]
            was, seat.up = seat.why, False
            seat.why = was or why
        name = next((n for n, t in self._names.items() if t == target), None)
        if not was and name is not None:
            self._losses.put((name, why))

    def _tell(self) -> None:
        """Calls watchers from a thread of its own, so that they may use the launcher."""
        while (loss := self._losses.get()) is not None:
            for watcher in list(self._watchers):
                watcher(*loss)

    # What a launcher does.

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        """See Launcher. Where `argv` begins with this Python, it is the nodes' own that runs."""
        return [self._near(self._seat(node).host.target, argv) for node in nodes]

    def _near(self, target: str, argv: Sequence[str]) -> list[str]:
        program, *rest = argv
        if program == sys.executable:
            program = self.python
        python = [sys.executable, "-S", "-E", "-s", str(Path(near.__file__))]
        return [*python, str(self._config), target, program, *rest]

    def _seat(self, node: Node) -> Seat:
        target = self._names.get(node.name)
        if target is None:
            raise UsageError(f"ssh: no node {node.name!r} (there are: {', '.join(self._names)})")
        seat = self._seats[target]
        with self._lock:
            if seat.why or self._closed:
                why = seat.why or "the run is over"
                raise NodeLostError(node.name, f"{node.name} is not there: {why}")
        return seat

    def agent_command(self, argv: Sequence[str]) -> list[str]:  # noqa: ARG002
        """None serves all: the nodes share no kernel."""
        raise ClusterError("ssh: one agent program cannot serve nodes that share no kernel")

    def doorway(self, node: Node) -> int | None:  # noqa: ARG002
        """None: a process is on the node by being started there."""
        return None

    def watch(self, on_lost: Callable[[str, str], None]) -> None:
        """See Launcher."""
        self._watchers.append(on_lost)

    def power_off(self, node: Node) -> None:
        """Switch it off by the spec's command. Raises ClusterError."""
        seat = self._seats[self._names[node.name]]
        power.switch(self._spec.power, "off", node)
        with self._lock:
            seat.why, seat.up = "powered off", False
        self._order({"end": seat.host.target})

    def power_on(self, node: Node) -> None:
        """Boot it by the spec's command, and wait until it can be used. Raises ClusterError."""
        target = self._names[node.name]
        section = power.switch(self._spec.power, "on", node)
        end = time.monotonic() + section.within_s
        while True:
            problem = self._back(target, end)
            if problem is None:
                return
            if time.monotonic() > end or self._closed:
                limit = f"{section.within_s:g} s"
                raise ClusterError(
                    f"{node.name} was not back {limit} after power.switch_on: {problem}"
                )
            time.sleep(_TRY_AGAIN_S)

    def _back(self, target: str, end: float) -> str | None:
        """Connect to a host again; what is wrong with it, None where it can be used."""
        seat = self._seats[target]
        self._connect([target], max(1.0, min(CONNECT_S, end - time.monotonic())))
        if seat.why:
            return seat.why
        looks, problems = self._look([target])
        if (look := looks.get(target)) is None:
            problem = problems[target]
        elif self._names.get(look.hostname) != target:
            problem = f"it is {look.hostname} now"
        else:
            index = next(n.index for n in self.nodes if n.name == look.hostname)
            after = self._member(index, seat.host, look)
            if replace(after, fabric_interface=None) == replace(
                self.nodes[index], fabric_interface=None
            ):
                return None
            problem = f"its address is {after.address} now"
        with self._lock:
            seat.why = problem
        return problem

    def close(self) -> None:
        """See Launcher."""
        if self._closed:
            return
        self._closed = True
        self._losses.put(None)
        try:
            if self._keeper is not None:
                self._end_keeper(self._keeper)
        finally:
            if self._candidate is not None:
                self._candidate.remove()

    def _end_keeper(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdin is not None
        try:
            # What it removes for a controller that is gone, its owners remove.
            self._order({"remove": [self._sockets] if self._sockets != self._run_dir else []})
            self._order({"done": True})
            program.stdin.close()
        except (ClusterError, OSError):
            pass
        try:
            program.wait(_END_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
