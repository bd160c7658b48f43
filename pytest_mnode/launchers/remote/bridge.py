"""A run's bridge: the process that holds one stream to each of its nodes.

The cleanup daemon holds it. Commands reach it over its socket (node_process), and so does the
launcher (bridge_client), whose first line is {"events": true}. It gets lines of JSON:
{"up": host}, {"failed": host, "why": …}, {"lost": host, "why": …}, {"left": …} at its end, and
{"beat": …} every BEAT_S.
Its orders open a host's stream, {"open": host, "argv": […], "within_s": …}, or close it,
{"close": host, "why": …}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.remote.bridge_server import BridgeServer
from pytest_mnode.launchers.remote.node_streams import NodeStreams
from pytest_mnode.launchers.remote.wire import BEAT_S

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Bridge:
    """The base of bridges, in one event loop. silence_s: how long a node may be silent."""

    def __init__(self, silence_s: float) -> None:
        self.nodes = NodeStreams(silence_s, self.why_silent, self.lost)
        self._launcher: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # For subclasses to implement.

    async def open(self, host: str, argv: Sequence[str], within_s: float) -> str:
        """Start the host's program by a local command; why that failed, or ""."""
        raise NotImplementedError

    def drop(self, host: str) -> None:
        """End what leads to a host whose stream is over."""

    def why_silent(self, host: str) -> str:  # noqa: ARG002
        """More about a node that is silent, to follow that."""
        return ""

    def prepare(self) -> None:
        """What comes before the event loop; a signal breaks it off. Raises MnodeError."""

    async def start(self) -> None:
        """What comes before the socket. Raises MnodeError."""

    def listening(self) -> None:
        """Tell the launcher, which listens now, what is already known."""

    async def ending(self) -> None:
        """What is done first after a signal."""

    def end(self) -> None:
        """End what runs on the nodes, and what leads there."""

    # For subclasses to use.

    def tell(self, event: Mapping[str, Any]) -> None:
        """Report an event to the launcher, if it listens."""
        if self._launcher is not None:
            self._launcher.write(json.dumps(event).encode() + b"\n")

    def do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do this beside other work; the task is held until it ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def lost(self, host: str, why: str) -> None:
        self.tell({"lost": host, "why": why})
        self.drop(host)

    # Connections.

    async def serve(self, path: Path) -> None:
        """Until a signal. Raises what a task raises, at once."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in _ENDING:
            loop.add_signal_handler(number, ended.set)
        starting = asyncio.ensure_future(self.start())
        every = (ended.wait(), self.nodes.beat(), self._beat())
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(one) for one in every]
        try:
            await asyncio.wait([*tasks, starting], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                server = BridgeServer(self.nodes.run, self._hear)
                tasks.append(asyncio.ensure_future(server.serve(path)))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ended.is_set():
                await self.ending()
            for task in (starting, *tasks):
                if task.done():
                    await task
                else:
                    task.cancel()
        finally:
            if self._launcher is not None:  # it expects no beat while this program ends
                with contextlib.suppress(OSError):
                    self._launcher.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.tell({"beat": time.monotonic()})

    async def _hear(self, connection: socket.socket, order: dict[str, Any], more: bytes) -> None:
        """Serve the launcher's connection."""
        if "events" not in order:
            connection.close()
            return
        reader, self._launcher = await asyncio.open_connection(sock=connection)
        reader.feed_data(more)
        self.listening()
        while line := await reader.readline():
            self.obey(json.loads(line))

    def obey(self, order: Mapping[str, Any]) -> None:
        """Carry out an order of the launcher."""
        match order:
            case {"open": host, "argv": argv, "within_s": within_s}:
                self.do(self._open(host, argv, within_s))
            case {"close": host, "why": why}:
                self.nodes.lose(host, why)

    async def _open(self, host: str, argv: Sequence[str], within_s: float) -> None:
        stream = self.nodes.at.get(host)
        is_up = stream is not None and not stream.lost
        if not is_up and (why := await self.open(host, argv, within_s)):
            self.tell({"failed": host, "why": why})
        else:
            self.tell({"up": host})


def _on_signals(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in _ENDING:
        signal.signal(number, handler)


def run(make: Callable[[Mapping[str, Any], Path], Bridge], settings: str, path: str) -> None:
    """The bridge's program. make(settings, directory): the bridge. path: of its socket.

    If it ends before its socket is there, the last line of its standard error is the reason.
    """
    _on_signals(lambda *_: sys.exit("ended"))
    bridge = None
    try:
        # Before the limit of open files, which the bridge's programs get as it was.
        bridge = make(json.loads(Path(settings).read_text()), Path(path).parent)
        bridge.prepare()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        asyncio.run(bridge.serve(Path(path)))
    except MnodeError as error:
        _on_signals(signal.SIG_IGN)
        # First: what follows may be cut short by SIGKILL.
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    finally:
        _on_signals(signal.SIG_IGN)
        if bridge is not None:
            with contextlib.suppress(OSError):
                bridge.end()
