"""The bridge to nodes that dial in: `bridge.py SETTINGS SOCKET`; see remote.bridge.

Starts the site's commands, waits until all nodes have dialed in, and writes their host names into
SOCKET.hosts before it makes SOCKET. On SIGTERM it ends what runs on the nodes, and then the site's
commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pytest_mnode.errors import ClusterError, MnodeError
from pytest_mnode.launchers.cleanup import child
from pytest_mnode.launchers.dial_in.connections import Router
from pytest_mnode.launchers.dial_in.node import DialOrder
from pytest_mnode.launchers.hosts import compress, expand
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.remote import bridge, wire
from pytest_mnode.launchers.remote.node_streams import NodeStream
from pytest_mnode.launchers.remote.run_all import NAME_PYTHON
from pytest_mnode.processes import KILLED_S
from pytest_mnode.protocol import address

ENDS_S = 6.5
"""Time for the nodes to end what runs there, after which the site's commands are signalled."""
TERM_S = 1.0
ENDED_S = 10.0
"""Time for a node to dial in once the command that starts its program has ended, also well: pbsdsh
ends with 0 where it has started nothing, and a command may leave its programs to themselves."""
_POLL_S = 0.05
_SILENT = (
    ", printed nothing: see the job's own output, whether all nodes see --mnode-shared-dir, and "
    "whether --mnode-python is there"
)
_OF_A_TASK = re.compile(r"srun: error: (\S+): tasks? \S+: (.+)")


@dataclass(frozen=True, slots=True)
class DialSettings:
    """Settings that the launcher gives to the bridge.

    hosts: the nodes to wait for, by their names in a host list; () for any `nodes` nodes. commands:
    the site's. order: the file to put the order in. env: variables of the site's commands.
    python: of the nodes. addresses: at which hosts are reached, where that is not their name. step:
    see DialOrder.
    """

    hosts: tuple[str, ...]
    nodes: int
    commands: Sequence[Sequence[str]]
    order: str
    start_s: float
    silence_s: float
    connect_s: float
    env: Mapping[str, str]
    python: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    step: bool = False


class DialBridge(bridge.Bridge):
    """See remote.bridge. strangers: host names of programs that are no node's."""

    def __init__(self, settings: DialSettings, directory: Path) -> None:
        super().__init__(settings.silence_s)
        self.settings = settings
        self._directory = directory
        self._open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._router = Router()
        reached = {host: settings.addresses.get(host, host) for host in settings.hosts}
        addresses = own_addresses(list(reached.values()))
        port = self._router.listen(addresses)
        limits_s = settings.silence_s, settings.connect_s
        self._order = DialOrder(addresses, port, self._router.keys, *limits_s, settings.step).text()
        self._known = {host: names_of(host) | names_of(at) for host, at in reached.items()}
        self._streams: dict[str, NodeStream] = {}
        """By the name of the peer."""
        self.at = self.nodes.at
        self.strangers: list[str] = []
        self.programs: list[subprocess.Popen[str]] = []
        self._names: list[str] = []
        """Of the programs."""
        each = len(settings.commands) == len(settings.hosts)
        self._of = {host: number for number, host in enumerate(settings.hosts) if each}
        """Number of the command that starts the program of a host, where each has its own."""

    # Starting.

    async def start(self) -> None:
        """Start the site's commands, and wait for the nodes. Raises ClusterError."""
        if self.settings.order:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(self.settings.order, flags, 0o600), "w") as file:
                file.write(self._order)
        for command in self.settings.commands:
            self.launch(command)
        hosts = await self.await_nodes()
        (self._directory / "dial-in.hosts").write_text(json.dumps(hosts))

    def launch(self, command: Sequence[str]) -> int:
        """Start a command of the site; its number. Raises ClusterError."""
        if shutil.which(command[0]) is None:
            remedy = "load its module, or add its folder to PATH"
            raise ClusterError(f"{command[0]}: no such program on this machine; {remedy}")
        number = len(self.programs)
        with self._output(number).open("wb") as output:
            program = subprocess.Popen(
                # srun and mpirun hand their limit of open files on to the nodes.
                child.tied(command, self._open_files),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env={**node_env(), **self.settings.env},
                start_new_session=True,
            )
        self.programs.append(program)
        self._names.append(command[0])
        assert program.stdin is not None
        with contextlib.suppress(OSError):  # it ended at once; its output tells why
            program.stdin.write(self._order + "\n")
            program.stdin.flush()
        return number

    async def await_nodes(self) -> list[str]:
        """Host names of the nodes, in the order of their host list. Raises ClusterError."""
        asyncio.get_running_loop().add_reader(self._router.descriptor, self._read)
        here, since = 0, time.monotonic()
        end = since + self.settings.start_s
        while len(self.at) < self.settings.nodes:
            self._read()
            now = time.monotonic()
            if len(self.at) > here or self._may_bring():
                here, since = len(self.at), now
            ended = [n for n, program in enumerate(self.programs) if program.poll() is not None]
            failed = [n for n in ended if self.programs[n].poll()]
            over = ended if now > since + ENDED_S else []
            if failed or over or now > end:
                raise ClusterError(self._why_missing(failed or over, self.settings.start_s))
            tasks = self._failed_tasks(range(len(self.programs)))
            if lost := [host for host in self._missing() if host in tasks]:
                raise ClusterError(tasks[lost[0]])
            await asyncio.sleep(_POLL_S)
        if self.settings.order:  # no key stays; a second program of a node finds an empty file
            with contextlib.suppress(OSError):
                os.truncate(self.settings.order, 0)
        return [host for host in self.settings.hosts or self.at if host in self.at]

    async def open(self, host: str, argv: Sequence[str], within_s: float) -> str:
        """See Bridge. The host's program is started again by a command for it alone."""
        if self.at.pop(host, None) is not None:
            self._streams = {p: s for p, s in self._streams.items() if s in self.at.values()}
        number = self._of[host] = self.launch(argv)
        end, why = time.monotonic() + within_s, ""
        while host not in self.at and not why:
            self._read()
            ended = self.programs[number].poll() is not None
            if ended or time.monotonic() > end:
                why = self._why_missing([number] if ended else [], within_s)
            why = self._failed_tasks([number]).get(host, why)
            await asyncio.sleep(_POLL_S)
        if why:
            self.programs[number].terminate()
        return why

    def _missing(self) -> list[str]:
        return [host for host in self.settings.hosts if host not in self.at]

    def _may_bring(self) -> bool:
        """Whether a command runs that may start the program of a node that is missing."""
        numbers = {self._command_of(host) for host in self._missing()} or {None}
        return any(
            program.poll() is None
            for n, program in enumerate(self.programs)
            if n in numbers or None in numbers
        )

    def _why_missing(self, ended: Sequence[int], within_s: float) -> str:
        """ended: numbers of the site's commands whose end is the reason. within_s: the limit."""
        missing = self._missing()
        missing = [host for host in missing if self._command_of(host) in ended] or missing
        who = compress(missing) if missing else count(self.settings.nodes - len(self.at))
        number = self._command_of(missing[0] if missing else "")
        if ended:
            one = next((one for one in ended if one == number), ended[0])
            why = self._how_ended(one)
            why += "" if self._last_words(one) or self.strangers else _SILENT
        else:
            words = "" if number is None else self._last_words(number)
            why = f"within {within_s:g} s{f' ({words})' if words else ''}"
            why = f"{why}; raise --mnode-start-limit if slow"
        others = compress(self.strangers)
        return f"{who} did not dial in: " + (
            f"{why}; dialed in, but not in the list: {others}" if others else why
        )

    def _command_of(self, host: str) -> int | None:
        """Number of the command that starts the program on a host; None if it is not known."""
        return 0 if len(self.programs) == 1 else self._of.get(host)

    def _failed_tasks(self, numbers: Iterable[int]) -> dict[str, str]:
        """What srun says of tasks of these commands that have ended, by host."""
        found: dict[str, str] = {}
        for number in numbers:
            text = self._output(number).read_text(errors="replace")
            for names, how in _OF_A_TASK.findall(text):
                why = last_words(text, of_slurm=True) or how
                with contextlib.suppress(MnodeError):
                    found |= {one: f"{one} did not dial in: {why}" for one in expand(names)}
        return found

    def _how_ended(self, number: int) -> str:
        """How one of the site's commands ended, and why."""
        words = self._last_words(number)
        said = f": {words}" if words else ""
        if self.settings.python and self.settings.python in words:
            said += f"; {NAME_PYTHON}"
        return f"{self._names[number]} ended with {self.programs[number].poll()}{said}"

    def _last_words(self, number: int) -> str:
        return last_words(self._output(number).read_text(errors="replace"))

    def _output(self, number: int) -> Path:
        return self._directory / f"dial-{number}.log"

    # Messages.

    def _send(self, peer: str, data: bytes) -> None:
        self._router.send(peer, data)
        asyncio.get_running_loop().call_soon(self._read)  # its descriptor tells of a change once

    def _read(self) -> None:
        for peer, data in self._router.arrived():
            if (stream := self._streams.get(peer)) is not None:
                self.nodes.feed(stream, data)
            elif (first := wire.Frames().feed(data)) and first[0][0] == wire.NAMES:
                self._take(peer, json.loads(first[0][2]))

    def _take(self, peer: str, said: Mapping[str, Any]) -> None:
        """A node of the run, or a second program of one, or a node too many."""
        if said.get("slurm") in self._known:
            host: str | None = said["slurm"]
        else:
            host = which(said, self._known) if self._known else str(said["hostname"])
        full = len(self.at) == self.settings.nodes
        if host is None:
            self.strangers.append(str(said["hostname"]))
        if host is None or full or host in self.at:
            self._send(peer, wire.frame(wire.HANG_UP))
        else:
            self._streams[peer] = self.nodes.take(host, partial(self._send, peer))

    def why_silent(self, host: str) -> str:
        """How the command ended that started a silent node's program, if it failed."""
        number = self._command_of(host)
        failed = number is not None and self.programs[number].poll()
        return f"; {self._how_ended(number)}" if failed and number is not None else ""

    # The end.

    def end(self) -> None:
        """End what runs on the nodes, then the site's commands."""
        for peer in self._streams:
            self._router.send(peer, wire.frame(wire.HANG_UP))
        ended = self._wait(ENDS_S if self.at else 0.0)
        for number, limit_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILLED_S)):
            if not ended:
                for program in self.programs:
                    if program.poll() is None:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(program.pid, number)
                ended = self._wait(limit_s)
        self._router.close()

    def _wait(self, limit_s: float) -> bool:
        """Whether all of the site's commands end in time."""
        end = time.monotonic() + limit_s
        while (left := [p for p in self.programs if p.poll() is None]) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return not left


def own_addresses(hosts: Sequence[str]) -> list[str]:
    """Addresses of this machine at which these hosts reach it, loopback last; all if unknown."""
    found: set[str] = set()
    for host in hosts:
        with contextlib.suppress(ClusterError):
            found.add(address.towards(host))
    if all(one.startswith("127.") or one == "::1" for one in found):
        every = [one for some in psutil.net_if_addrs().values() for one in some]
        found |= {one.address for one in every if one.family == socket.AF_INET}
    return sorted(found, key=lambda one: (one.startswith("127.") or one == "::1", one))


def names_of(host: str) -> set[str]:
    """The names by which a node may be known that a host list calls `host`."""
    found = {host.lower(), host.lower().partition(".")[0]}
    with contextlib.suppress(OSError):
        found |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    return found


def which(said: Mapping[str, Any], known: Mapping[str, set[str]]) -> str | None:
    """The host of a list that a node is, by what it says of itself; None if it is none of them."""
    hostname = str(said["hostname"]).lower()
    if exact := [host for host in known if host.lower() == hostname]:
        return exact[0]
    for own in ({hostname}, {hostname.partition(".")[0]}, set(said["addresses"])):
        found = [host for host, names in known.items() if own & names]
        if len(found) == 1:  # a name that two hosts share identifies neither
            return found[0]
    return None


def last_words(output: str, *, of_slurm: bool = False) -> str:
    """Why the site's commands failed, from what they printed, in one line; "" if nothing.

    What slurmstepd says of a step's end, because srun prints less, and later; the first paragraph
    between the rules of dashes that MPI's commands print, with what ends in its colon, and the line
    before them; else the last line that is no usage. of_slurm: only the first of these.
    """
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        program, _, text = line.partition(": error: ")
        if not program.startswith("slurmstepd"):  # from 23.11 on, the node's name follows
            continue
        if text.startswith("execve(): "):
            return f"Python did not start on the node ({text}); {NAME_PYTHON}"
        if text.startswith("*** "):
            return f"Slurm says {text.strip('* ')}"
    if of_slurm:
        return ""
    rules = [number for number, line in enumerate(lines) if len(line) > 20 and not line.strip("-=")]
    if rules:
        inside = lines[rules[0] + 1 : rules[1] if len(rules) > 1 else None]
        groups = itertools.groupby(inside, bool)
        first, *more = [" ".join(some) for there, some in groups if there] or [""]
        first += "".join(f" {one}" for one in more[:1] if first.endswith(":"))
        before = " ".join(filter(None, lines[: rules[0]][-1:]))
        return f"{first} ({before})" if before else first
    said = [line for line in lines if line and not line.lower().startswith(("usage:", "try "))]
    return said[-1] if said else ""


def _made(settings: Mapping[str, Any], directory: Path) -> DialBridge:
    return DialBridge(DialSettings(**settings), directory)


if __name__ == "__main__":
    bridge.run(_made, *sys.argv[1:])
