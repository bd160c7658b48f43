"""The controller's side of pod_relay: a pod's connections become connections to a local port."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from pytest_mnode.launchers.kubernetes.pod_relay import CHUNK_BYTES, HEADER
from pytest_mnode.launchers.remote.bridge_server import STDERR

BEAT_S = 5.0
OPEN_S = 30.0


class Relay:
    """Streams (see streams.Streams) of one pod's relay. port: the pod's port; 0 until open."""

    def __init__(self, port_here: int) -> None:
        self.port = 0
        self._port_here = port_here
        self._to_pod: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)
        self._data = bytearray()
        self._errors = b""
        self._open = asyncio.Event()
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def opened(self, ended: asyncio.Future[Any]) -> None:
        """Wait until the pod listens. Raises OSError if its program ended instead."""
        opening = asyncio.ensure_future(self._open.wait())
        both: set[asyncio.Future[Any]] = {opening, ended}
        await asyncio.wait(both, timeout=OPEN_S, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if not self._open.is_set():
            raise OSError(self.last_error or f"its Python opened no port within {OPEN_S:g} s")

    @property
    def last_error(self) -> str:
        """The last line that the pod's program printed as an error; "" if there is none."""
        return self._errors.decode(errors="replace").strip().rpartition("\n")[2]

    async def read(self) -> bytes:
        """See Streams: data of local connections, else a sign of life."""
        try:
            return await asyncio.wait_for(self._to_pod.get(), BEAT_S)
        except TimeoutError:
            return HEADER.pack(0, 0)

    async def write(self, channel: int, data: bytes) -> None:
        """See Streams: frames of the pod."""
        if channel == STDERR:
            self._errors = (self._errors + data)[-4096:]
            return
        self._data += data
        while len(self._data) >= HEADER.size:
            number, length = HEADER.unpack_from(self._data)
            if len(self._data) < HEADER.size + length:
                return
            payload = bytes(self._data[HEADER.size : HEADER.size + length])
            del self._data[: HEADER.size + length]
            if number == 0:
                self.port = int(payload)
                self._open.set()
            else:
                await self._pass_on(number, payload)

    async def _pass_on(self, number: int, payload: bytes) -> None:
        writer = self._connections.get(number)
        if writer is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port_here)
            except OSError:
                await self._to_pod.put(HEADER.pack(number, 0))
                return
            self._connections[number] = writer
            task = asyncio.ensure_future(self._read(number, reader))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not payload:
            writer.close()
            self._connections.pop(number, None)
            return
        writer.write(payload)
        with contextlib.suppress(OSError):
            await writer.drain()

    async def _read(self, number: int, reader: asyncio.StreamReader) -> None:
        data = b"x"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await self._to_pod.put(HEADER.pack(number, len(data)) + data)
        if (writer := self._connections.pop(number, None)) is not None:
            writer.close()

    def close(self) -> None:
        for writer in self._connections.values():
            writer.close()
        for task in self._tasks:
            task.cancel()
