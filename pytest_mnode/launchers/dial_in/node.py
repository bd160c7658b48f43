"""A node's program: `python -m pytest_mnode.launchers.dial_in.node FILE`; dials in, and serves.

FILE holds the order, if all nodes see it; otherwise the order is the first line of standard input.
It starts commands until it is told to end, or hears nothing, and then ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import uuid
from pathlib import Path

import psutil
import zmq

from pytest_mnode import processes
from pytest_mnode.launchers.dial_in.messages import (
    BEAT,
    BEAT_S,
    CHUNK_BYTES,
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
from pytest_mnode.launchers.remote.command_process import OF_A_TASK, OF_THE_JOB
from pytest_mnode.protocol import address
from pytest_mnode.protocol.channel import Line
from pytest_mnode.protocol.listening_clock import ListeningClock

CONNECT_S = 5.0
END_S = 8.0
"""Time for commands to end by themselves (remote_exec.GRACE_S is less)."""
_OF_STARTERS = (*OF_A_TASK, "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "MPIR_", "FLUX_TASK_", "FLUX_JOB_")
"""Variables of this program as a task of the site's command, which no command may inherit."""


def read_order(file: Path) -> DialOrder:
    """Raises SystemExit, in one line; with status 0 if the run has all its nodes already."""
    try:
        text = file.read_text()
        if not text:
            print(f"{socket.gethostname()}: a second program of a node", file=sys.stderr)
            sys.exit(0)
    except OSError as error:
        text = sys.stdin.readline()
        if not text:
            sys.exit(
                f"{socket.gethostname()}: {file}: {error.strerror}: this node sees no directory in "
                "common (--mnode-shared-dir), and the command forwards no standard input"
            )
    return DialOrder.read(text)


def way_to(order: DialOrder) -> str:
    """The first address of the run that can be connected to. Raises SystemExit."""
    reasons = []
    for one in order.addresses:
        try:
            socket.create_connection((one, order.port), CONNECT_S).close()
        except OSError as error:
            reasons.append(f"{one}: {error.strerror or error}")
        else:
            return address.endpoint(one, order.port)
    there = f"port {order.port} of the machine of pytest"
    sys.exit(f"{socket.gethostname()}: cannot connect to {there}: {'; '.join(reasons)}")


def names() -> dict[str, object]:
    """The node's host name, and its addresses that are no loopback's."""
    every = [one for some in psutil.net_if_addrs().values() for one in some]
    numeric = (socket.AF_INET, socket.AF_INET6)
    found = [one.address.partition("%")[0] for one in every if one.family in numeric]
    own = [one for one in found if not one.startswith(("127.", "::1", "fe80"))]
    return {"hostname": socket.gethostname(), "addresses": own}


class Command:
    """A command. program: None until it has started, with `early` as its input. wanted: for each
    kind of output, whether the bridge takes more. over: nobody reads it any more."""

    def __init__(self) -> None:
        self.program: asyncio.subprocess.Process | None = None
        self.early: list[bytes] = []
        self.wanted = {OUT: asyncio.Event(), ERR: asyncio.Event()}
        self.over = False

    def feed(self, data: bytes) -> None:
        """Pass input on; b"" is its end, which also ends the command (remote_exec)."""
        if not data:
            self.over = True
            for event in self.wanted.values():
                event.set()
        if self.program is None:
            self.early.append(data)
        elif self.program.stdin is not None:
            if data:
                self.program.stdin.write(data)
            else:
                self.program.stdin.close()


class Commands:
    """The commands of this node, and its line to the bridge; in one event loop."""

    def __init__(self, line: Line, silence_s: float) -> None:
        self._line, self._silence_s = line, silence_s
        self._clock = ListeningClock()
        self._heard = self._clock.now()
        self._running: dict[int, Command] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def serve(self) -> None:
        """Until told to end, a signal, or silence; then end all commands."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._over.set)
        loop.add_reader(int(self._line.socket.getsockopt(zmq.FD)), self._read)
        self._send(HELLO, 0, json.dumps(names()).encode())
        while not self._over.is_set() and self._clock.now() < self._heard + self._silence_s:
            self._send(BEAT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), BEAT_S)
            self._read()
        for command in list(self._running.values()):
            command.feed(b"")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)

    def _send(self, kind: bytes, number: int = 0, data: bytes = b"") -> None:
        self._line.send_bytes("bridge", message(kind, number, data))
        asyncio.get_running_loop().call_soon(self._read)  # its descriptor tells of a change once

    def _read(self) -> None:
        while (payload := self._line.receive_bytes(0)) is not None:
            self._heard = self._clock.now()
            kind, number, data = parts(payload)
            if kind == START:
                self._running[number] = Command()
                task = asyncio.ensure_future(self._run(number, json.loads(data)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif kind == END:
                self._over.set()
            elif (command := self._running.get(number)) is not None:
                if kind == DATA:
                    command.feed(data)
                elif kind == WRITTEN:
                    command.wanted[data].set()

    async def _run(self, number: int, argv: list[str]) -> None:
        command, pipe = self._running[number], asyncio.subprocess.PIPE
        try:
            program = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=own_env()
            )
        except OSError as error:
            self._send(ERR, number, f"{argv[0]}: {error.strerror}\n".encode())
            self._send(EXIT, number, b"127")
            return
        finally:
            self._running.pop(number)
        command.program = program
        self._running[number] = command
        for data in command.early:
            command.feed(data)
        assert program.stdout is not None
        assert program.stderr is not None
        await asyncio.gather(
            self._show(number, OUT, program.stdout), self._show(number, ERR, program.stderr)
        )
        status = await program.wait()
        del self._running[number]
        self._send(EXIT, number, str(status if status >= 0 else 128 - status).encode())

    async def _show(self, number: int, kind: bytes, stream: asyncio.StreamReader) -> None:
        """Send a stream's data, and more of it once the bridge's reader has taken that."""
        command = self._running[number]
        while data := await stream.read(CHUNK_BYTES):
            command.wanted[kind].clear()
            self._send(kind, number, data)
            if not command.over:
                await command.wanted[kind].wait()


def own_env() -> dict[str, str]:
    """The node's environment, without what describes this program as a task."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in OF_THE_JOB or not name.startswith(_OF_STARTERS)
    }


def main(file: str) -> None:
    processes.set_name("mnode-node")
    processes.adopt_orphans()
    order = read_order(Path(file))
    line = Line(f"node/{uuid.uuid4().hex}", way_to(order), order.keys)
    try:
        asyncio.run(Commands(line, order.silence_s).serve())
    finally:
        processes.kill_descendants()
        line.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
