"""The run's connections to nodes that dial in: `bridge.py SETTINGS SOCKET`.

Held by the cleanup daemon. Starts the site's commands, waits until all nodes have dialed in, writes
their host names into SOCKET.hosts, and makes SOCKET, over which commands reach it (remote.bridged).
If it ends before that, the last line of its standard error is the reason. On SIGTERM it ends what
runs on the nodes, and then the site's commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.dial_in.messages import (
    BEAT,
    BEAT_S,
    DATA,
    END,
    ERR,
    EXIT,
    HELLO,
    OUT,
    START,
    WRITTEN,
    DialOrder,
    message,
    parts,
)
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.remote.bridge_server import LOST, BridgeServer, Descriptors
from pytest_mnode.processes import KILLED_S
from pytest_mnode.protocol import address
from pytest_mnode.protocol.channel import Switchboard, new_keys
from pytest_mnode.protocol.listening_clock import ListeningClock

ENDS_S = 6.5
"""Time for the nodes to end what runs there, after which the site's commands are signalled."""
TERM_S = 1.0
_LOOK_S = 0.05
# A site's command that ends with this process, however that ends.
_TIED = (
    "import ctypes,os,sys\nctypes.CDLL(None).prctl(1,15,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1)\nos.execvp(sys.argv[2],sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class DialSettings:
    """Settings that the launcher gives to the bridge.

    hosts: the nodes to wait for, by their names in a host list; () for any `nodes` nodes. commands:
    the site's. order: the file to put the order in. env: variables of the site's commands.
    """

    hosts: tuple[str, ...]
    nodes: int
    commands: Sequence[Sequence[str]]
    order: str
    start_s: float
    silence_s: float
    env: Mapping[str, str]


@dataclass(slots=True)
class Connected:
    """A node that has dialed in. lost: why it is lost; "" while it is not."""

    peer: str
    heard: float
    lost: str = ""
    commands: dict[int, asyncio.Queue[tuple[bytes, bytes]]] = field(default_factory=dict)


class Bridge:
    """The bridge, in one event loop."""

    def __init__(self, settings: DialSettings, directory: Path) -> None:
        self.settings = settings
        secret, keys = new_keys()
        self._switchboard = Switchboard(f"ipc://{directory}/dial", secret, keys)
        addresses = own_addresses(settings.hosts)
        port = self._switchboard.listen(addresses)
        self._order = DialOrder(addresses, port, keys, settings.silence_s).text()
        self._known = {host: names_of(host) for host in settings.hosts}
        self._clock = ListeningClock()
        self._numbers = itertools.count(1)
        self._outputs = [directory / f"dial-{n}.log" for n in range(len(settings.commands))]
        self.at: dict[str, Connected] = {}
        self.programs: list[subprocess.Popen[str]] = []

    # Starting.

    def start(self) -> None:
        """Start the site's commands. Raises ClusterError."""
        if self.settings.order:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(self.settings.order, flags, 0o600), "w") as file:
                file.write(self._order)
        for command, file_of_output in zip(self.settings.commands, self._outputs, strict=True):
            tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
            with file_of_output.open("wb") as output:
                program = subprocess.Popen(
                    tied,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    text=True,
                    env={**node_env(), **self.settings.env},
                    start_new_session=True,
                )
            self.programs.append(program)
            assert program.stdin is not None
            with contextlib.suppress(OSError):  # it ended at once; its output tells why
                program.stdin.write(self._order + "\n")
                program.stdin.flush()

    async def await_nodes(self) -> list[str]:
        """Host names of the nodes, in the order of their host list. Raises ClusterError."""
        asyncio.get_running_loop().add_reader(self._switchboard.descriptor, self._read)
        end = time.monotonic() + self.settings.start_s
        while len(self.at) < self.settings.nodes:
            self._read()
            failed = [n for n, program in enumerate(self.programs) if program.poll()]
            if failed or time.monotonic() > end:
                raise ClusterError(self._why_missing(failed))
            await asyncio.sleep(_LOOK_S)
        return [host for host in self.settings.hosts or self.at if host in self.at]

    def _why_missing(self, failed: Sequence[int]) -> str:
        """failed: numbers of the site's commands that have failed."""
        hosts = self.settings.hosts
        missing = [host for host in hosts if host not in self.at]
        if len(self.settings.commands) > 1 and failed:  # one for each host
            missing = [hosts[number] for number in failed]
        who = compress(missing) if missing else f"{self.settings.nodes - len(self.at)} nodes"
        number = failed[0] if failed else self._command_of(missing[0]) if missing else 0
        if failed:
            return f"{who} did not dial in: {self._how_ended(number)}"
        said = f" ({words})" if (words := self._last_words(number)) else ""
        limit = f"within {self.settings.start_s:g} s{said}"
        return f"{who} did not dial in: {limit}; raise --mnode-start-limit if slow"

    def _command_of(self, host: str) -> int:
        """Number of the command that starts the program on a host: one for each, or one for all."""
        return self.settings.hosts.index(host) if len(self.settings.commands) > 1 else 0

    def _how_ended(self, number: int) -> str:
        """How one of the site's commands ended, and why."""
        said = f": {words}" if (words := self._last_words(number)) else ""
        command, status = self.settings.commands[number][0], self.programs[number].poll()
        return f"{command} ended with {status}{said}"

    def _last_words(self, number: int) -> str:
        return last_words(self._outputs[number].read_text(errors="replace"))

    # Messages.

    def _send(self, peer: str, kind: bytes, number: int = 0, data: bytes = b"") -> None:
        self._switchboard.send(peer, "bridge", message(kind, number, data))
        asyncio.get_running_loop().call_soon(self._read)  # its descriptor tells of a change once

    def _read(self) -> None:
        while (received := self._switchboard.receive()) is not None:
            peer, _, payload = received
            kind, number, data = parts(payload)
            if kind == HELLO:
                self._take(peer, json.loads(data))
                continue
            node = next((node for node in self.at.values() if node.peer == peer), None)
            if node is None or node.lost:
                continue
            node.heard = self._clock.now()
            if kind in (OUT, ERR, EXIT) and number in node.commands:
                node.commands[number].put_nowait((kind, data))

    def _take(self, peer: str, said: Mapping[str, Any]) -> None:
        """A node of the run, or a second program of one, or a node too many."""
        host = which(said, self._known) if self._known else str(said["hostname"])
        full = len(self.at) == self.settings.nodes
        if host is None or full or host in self.at:
            self._send(peer, END)
        else:
            self.at[host] = Connected(peer, self._clock.now())

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._read()
            now = self._clock.now()
            for host, node in self.at.items():
                if node.lost:
                    continue
                self._send(node.peer, BEAT)
                if now > node.heard + self.settings.silence_s:
                    limit = f"no data for {self.settings.silence_s:g} s"
                    number = self._command_of(host)
                    ended = [self._how_ended(number)] if self.programs[number].poll() else []
                    node.lost = f"the connection was lost: {'; '.join([limit, *ended])}"
                    for inbox in node.commands.values():
                        inbox.put_nowait((END, b""))

    # Commands.

    async def run(self, host: str, argv: list[str], streams: Descriptors) -> tuple[int, str]:
        """Run a command on a node; see BridgeServer."""
        node = self.at[host]
        if node.lost:
            return LOST, node.lost
        number = next(self._numbers)
        inbox = node.commands[number] = asyncio.Queue()
        self._send(node.peer, START, number, json.dumps(argv).encode())
        feeding = asyncio.ensure_future(self._feed(node.peer, number, streams))
        try:
            while True:
                kind, data = await inbox.get()
                if kind == EXIT:
                    return int(data), ""
                if kind == END:
                    return LOST, node.lost
                await streams.write(1 if kind == OUT else 2, data)
                self._send(node.peer, WRITTEN, number, kind)
        finally:
            feeding.cancel()
            del node.commands[number]
            self._send(node.peer, DATA, number)

    async def _feed(self, peer: str, number: int, streams: Descriptors) -> None:
        while data := await streams.read():
            self._send(peer, DATA, number, data)
        self._send(peer, DATA, number)

    # The end.

    def end(self) -> None:
        """End what runs on the nodes, then the site's commands."""
        for node in self.at.values():
            self._switchboard.send(node.peer, "bridge", message(END))
        ended = self._wait(ENDS_S if self.at else 0.0)
        for number, limit_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILLED_S)):
            if not ended:
                for program in self.programs:
                    if program.poll() is None:
                        os.killpg(program.pid, number)
                ended = self._wait(limit_s)
        self._switchboard.close()

    def _wait(self, limit_s: float) -> bool:
        """Whether all of the site's commands end in time."""
        end = time.monotonic() + limit_s
        while (left := [p for p in self.programs if p.poll() is None]) and time.monotonic() < end:
            time.sleep(_LOOK_S)
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
    for own in ({hostname}, {hostname.partition(".")[0]}, set(said["addresses"])):
        for host, names in known.items():
            if own & names:
                return host
    return None


def last_words(output: str) -> str:
    """Why the site's commands failed, from what they printed, in one line; "" if nothing.

    The first paragraph between the rules of dashes that MPI's commands print, else the last line.
    """
    lines = [line.strip() for line in output.splitlines()]
    rules = [number for number, line in enumerate(lines) if len(line) > 20 and not line.strip("-=")]
    if rules:
        inside = lines[rules[0] + 1 : rules[1] if len(rules) > 1 else None]
        paragraph = itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, inside))
        if text := " ".join(paragraph):
            return text
    return next((line for line in reversed(lines) if line), "")


async def serve(bridge: Bridge, path: Path) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    waiting = asyncio.ensure_future(ended.wait())
    working = [asyncio.ensure_future(bridge.beat())]
    starting = asyncio.ensure_future(bridge.await_nodes())
    await asyncio.wait({waiting, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    path.with_name(f"{path.name}.hosts").write_text(json.dumps(await starting))
    working.append(asyncio.ensure_future(BridgeServer(bridge.run).serve(path)))
    await waiting
    for task in working:
        task.cancel()


def main(settings: str, path: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("ended"))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bridge = None
    try:
        read = json.loads(Path(settings).read_text())
        bridge = Bridge(DialSettings(**read), Path(path).parent)
        bridge.start()
        asyncio.run(serve(bridge, Path(path)))
    except ClusterError as error:
        sys.exit(str(error))
    finally:
        if bridge is not None:
            bridge.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
