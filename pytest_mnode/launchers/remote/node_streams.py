"""The bridge's end of the streams to nodes: commands over them, heartbeats, and their loss."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.launchers.remote import bootstrap
from pytest_mnode.launchers.remote.bridge_server import Caller
from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.launchers.remote.wire import (
    BEAT,
    BEAT_S,
    DATA,
    END,
    ERR,
    EXIT,
    HANG_UP,
    ORDER,
    OUT,
    ROOM_BYTES,
    SIGNAL,
    TAKEN,
    Frames,
    frame,
    taken,
)
from pytest_mnode.protocol.listening_clock import ListeningClock


class Carried:
    """A command on a node. shown: its output, empty at the end. status: None if the node is lost.
    ahead: bytes of input that were sent and not yet taken."""

    def __init__(self) -> None:
        self.shown: dict[bytes, asyncio.Queue[bytes]] = {OUT: asyncio.Queue(), ERR: asyncio.Queue()}
        self.status: int | None = None
        self.ahead = 0
        self.room = asyncio.Event()

    def end(self, status: int | None) -> None:
        self.status = status
        for queue in self.shown.values():
            queue.put_nowait(b"")


@dataclass(slots=True)
class NodeStream:
    """The stream to a node. send: takes bytes for it, at once. lost: why it is lost, or ""."""

    send: Callable[[bytes], None]
    heard: float
    lost: str = ""
    frames: Frames = field(default_factory=Frames)
    commands: dict[int, Carried] = field(default_factory=dict)


class NodeStreams:
    """The streams to all nodes of a run, by host.

    why_silent(host): more about a node that is silent for `silence_s`, to follow that.
    on_lost(host, why) is called for each loss.
    """

    def __init__(
        self,
        silence_s: float,
        why_silent: Callable[[str], str],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.at: dict[str, NodeStream] = {}
        self._silence_s = silence_s
        self._why_silent, self._on_lost = why_silent, on_lost
        self.clock = ListeningClock()
        self._numbers = itertools.count(1)
        inherited = bootstrap.variables(os.environ)
        self._inherited = {n: v for n, v in inherited.items() if n != "SSH_ASKPASS_REQUIRE"}

    def take(self, host: str, send: Callable[[bytes], None]) -> NodeStream:
        """A stream that leads to the host's program; it replaces a lost one."""
        made = self.at[host] = NodeStream(send, self.clock.now())
        return made

    def feed(self, stream: NodeStream, data: bytes) -> None:
        """Handle bytes from a node."""
        stream.heard = self.clock.now()
        for kind, number, payload in stream.frames.feed(data):
            command = stream.commands.get(number)
            if command is None:
                continue
            if kind in command.shown:
                command.shown[kind].put_nowait(payload)
            elif kind == TAKEN:
                command.ahead -= int.from_bytes(payload, "big")
                command.room.set()
            elif kind == EXIT:
                code = int(payload)
                command.end(code if code >= 0 else 128 - code)

    def lose(self, host: str, why: str) -> None:
        """The stream has ended, and with it the commands of its node."""
        stream = self.at.get(host)
        if stream is None or stream.lost:
            return
        stream.lost = why
        for command in stream.commands.values():
            command.end(None)
        self._on_lost(host, why)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.look()

    def look(self) -> None:
        """Send heartbeats, and lose nodes that send none."""
        now = self.clock.now()
        for host, stream in list(self.at.items()):
            if stream.lost:
                continue
            stream.send(frame(BEAT))
            if now > stream.heard + self._silence_s:
                why = f"no data for {self._silence_s:g} s{self._why_silent(host)}"
                self.lose(host, f"the connection was lost: {why}")

    async def run(self, host: str, asked: Mapping[str, Any], caller: Caller) -> tuple[int, str]:
        """Run a command on a node; see BridgeServer."""
        stream = self.at.get(host)
        if stream is None or stream.lost:
            return LOST, stream.lost if stream else "no connection"
        argv: Sequence[str] = asked["argv"]
        order = bootstrap.order(host, argv, asked["cwd"], asked["environ"], self._inherited)
        number = next(self._numbers)
        command = stream.commands[number] = Carried()
        stream.send(frame(ORDER, number, order))
        beside = [
            asyncio.ensure_future(self._feed(stream, number, command, caller)),
            asyncio.ensure_future(self._signal(stream, number, caller)),
        ]
        try:
            await asyncio.gather(
                *(self._show(stream, number, kind, command, caller) for kind in (OUT, ERR))
            )
            if command.status is None:
                return LOST, stream.lost
            return command.status, ""
        finally:
            for task in beside:
                task.cancel()
            # Before the caller's descriptors are closed, whose numbers others may get.
            await asyncio.gather(*beside, return_exceptions=True)
            del stream.commands[number]
            if command.status is None and not stream.lost:
                stream.send(frame(HANG_UP, number))

    async def _show(
        self, stream: NodeStream, number: int, kind: bytes, command: Carried, caller: Caller
    ) -> None:
        while data := await command.shown[kind].get():
            await caller.write(1 if kind == OUT else 2, data)
            stream.send(taken(number, len(data)))

    async def _feed(
        self, stream: NodeStream, number: int, command: Carried, caller: Caller
    ) -> None:
        while data := await caller.read():
            command.ahead += len(data)
            stream.send(frame(DATA, number, data))
            while command.ahead >= ROOM_BYTES:
                command.room.clear()
                await command.room.wait()
        stream.send(frame(END, number))

    async def _signal(self, stream: NodeStream, number: int, caller: Caller) -> None:
        while True:
            stream.send(frame(SIGNAL, number, await caller.signals.get()))
