"""The bridge's end of its callers' connections: commands (node_process), and other requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.protocol.socket_path import reachable

STDIN, STDOUT, STDERR = 0, 1, 2
CHUNK_BYTES = 1 << 15
ACCEPT_AGAIN_S = 0.2
_NO_FILES = (errno.EMFILE, errno.ENFILE)

ATOMIC_BYTES = 4096
"""A pipe that is ready for writing takes this many bytes without blocking (PIPE_BUF)."""


class Caller:
    """Who waits for a command on a node: the streams it gave; `close` closes them.

    signals: numbers of the signals that it passes on, a byte each.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        flags = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
        self._fds = tuple(_opened_anew(fd, how) for fd, how in zip(fds, flags, strict=True))
        self._most = [ATOMIC_BYTES if os.get_blocking(fd) else CHUNK_BYTES for fd in self._fds]
        self._loop = asyncio.get_running_loop()
        self.signals: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        """The command's next input; empty at the end."""
        while True:
            await self._ready(self._loop.add_reader, self._loop.remove_reader, self._fds[0])
            try:
                return os.read(self._fds[0], CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def write(self, channel: int, data: bytes) -> None:
        """Pass on the command's output; waits if the reader is slow."""
        fd = self._fds[channel]
        while data:
            await self._ready(self._loop.add_writer, self._loop.remove_writer, fd)
            try:
                data = data[os.write(fd, data[: self._most[channel]]) :]
            except BlockingIOError:
                continue
            except OSError:  # nobody reads it any more
                return

    async def _ready(self, add: Any, remove: Any, fd: int) -> None:
        event = asyncio.Event()
        try:
            add(fd, event.set)
        except OSError:  # a file, which is always ready; epoll refuses it
            return
        try:
            await event.wait()
        finally:
            remove(fd)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def _opened_anew(fd: int, flags: int) -> int:
    """A descriptor's pipe or terminal, opened again without blocking; else the descriptor.

    Other programs share the caller's own: to make that one non-blocking would change it for them.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with contextlib.suppress(OSError):
            made = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_NOCTTY)
            os.close(fd)
            return made
    return fd


class BridgeServer:
    """Serves connections in the running event loop.

    run(host, asked, caller): runs a command (node_command.request), and returns its exit status
    and, if it has none, the reason; cancelled if the caller ends. other(connection, order, more):
    serves any other connection, of which `more` was read.
    """

    def __init__(
        self,
        run: Callable[[str, Mapping[str, Any], Caller], Coroutine[Any, Any, tuple[int, str]]],
        other: Callable[[socket.socket, dict[str, Any], bytes], Awaitable[None]],
    ) -> None:
        self._run = run
        self._other = other
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, path: Path) -> None:
        """Take connections until the task is cancelled."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as server:
            draft = path.with_name(f"{path.name}.new")
            with reachable(str(draft)) as short:
                server.bind(short)
            server.listen(512)
            draft.rename(path)  # whoever finds the path can connect
            while True:
                try:
                    connection, _ = await loop.sock_accept(server)
                except OSError as error:
                    if error.errno not in _NO_FILES:
                        raise
                    await asyncio.sleep(ACCEPT_AGAIN_S)  # callers wait in the queue
                    continue
                connection.setblocking(False)
                task = asyncio.ensure_future(self._take(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _take(self, connection: socket.socket) -> None:
        """Read the first line and the descriptors of a connection, and serve it."""
        loop, data, fds, cut = asyncio.get_running_loop(), b"", list[int](), False
        try:
            while b"\n" not in data:
                ready = asyncio.Event()
                loop.add_reader(connection, ready.set)
                await ready.wait()
                loop.remove_reader(connection)
                more, given, flags, _ = socket.recv_fds(connection, 1 << 20, 3)
                fds += given
                cut = cut or bool(flags & socket.MSG_CTRUNC)
                data += more
                if not more:  # the caller has ended in the middle of its request
                    connection.close()
                    return
            line, _, more = data.partition(b"\n")
            order = json.loads(line)
            if cut:
                await self._answer(connection, LOST, "out of open files here; raise ulimit -n")
            elif "exec" in order and len(fds) == 3:
                caller, fds = Caller(fds), []
                if more:
                    caller.signals.put_nowait(more)
                await self._exec(connection, order, caller)
            else:
                await self._other(connection, order, more)
        finally:
            for fd in fds:
                os.close(fd)

    async def _answer(self, connection: socket.socket, status: int, problem: str) -> None:
        """Tell a caller how its command ended."""
        with connection, contextlib.suppress(OSError):
            answer = f"{status} {problem}".encode(errors="replace")
            await asyncio.get_running_loop().sock_sendall(connection, answer)

    async def _exec(
        self, connection: socket.socket, asked: Mapping[str, Any], caller: Caller
    ) -> None:
        """Run a command, and report its exit status. The command ends with its caller."""
        running = asyncio.ensure_future(self._run(asked["exec"], asked, caller))
        gone = asyncio.ensure_future(self._hear(connection, caller))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, gone):
                task.cancel()
            await asyncio.gather(running, gone, return_exceptions=True)
            if not running.cancelled():
                await self._answer(connection, *await running)
        finally:
            connection.close()
            caller.close()

    async def _hear(self, connection: socket.socket, caller: Caller) -> None:
        """Until the caller has ended."""
        with contextlib.suppress(OSError):
            while numbers := await asyncio.get_running_loop().sock_recv(connection, 64):
                caller.signals.put_nowait(numbers)
