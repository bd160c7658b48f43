"""Commands in pods over exec streams of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from pytest_mnode.launchers.kubernetes.api import KEEPALIVE, Api, ApiError, refusal
from pytest_mnode.launchers.remote.bridge_server import STDERR, STDIN, STDOUT
from pytest_mnode.launchers.remote.node_command import LOST

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

STATUS, CLOSE = 3, 255
_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
"""Version 5 can report the end of standard input."""
_AT_ONCE = 32
"""Most connections that one event loop opens at the same time: if there were more, each would take
longer than Api.connect_s."""
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Streams(Protocol):
    """A command's standard streams on this side."""

    async def read(self) -> bytes:
        """The command's next input; empty at the end."""

    async def write(self, channel: int, data: bytes) -> None:
        """Pass on the command's output; waits if the reader is slow."""


async def connected(api: Api, path: str, protocols: Sequence[str]) -> ClientConnection:
    """A websocket to the API server. path: with its query.

    Raises ApiError with the server's reason.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidProxy, InvalidStatus

    turns = _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))
    try:
        async with turns:
            made = await connect(
                f"{api.host}{path}".replace("http", "ws", 1),
                subprotocols=protocols or None,  # type: ignore[arg-type]
                ssl=api.tls,
                server_hostname=api.tls_name,
                proxy=api.proxy,
                additional_headers=await asyncio.to_thread(api.headers),
                open_timeout=api.connect_s,
                ping_interval=None,  # what it carries has heartbeats of its own
                max_size=None,
                compression=None,
                origin=api.host,  # type: ignore[arg-type]  # watches and logs want one
                user_agent_header="pytest-mnode",
            )
        wire = made.transport.get_extra_info("socket")
        for option in KEEPALIVE if wire is not None else ():  # None: the server has closed it
            wire.setsockopt(*option)
        return made
    except InvalidStatus as error:
        status = error.response.status_code
        raise ApiError(status, refusal(status, bytes(error.response.body or b""))) from None
    except (InvalidHandshake, InvalidProxy, OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {api.connect_s:g} s"
        raise ApiError(0, f"{api.host} was not reached: {reason}") from None


async def run_in_pod(
    api: Api, pod: str, container: str | None, argv: Sequence[str], streams: Streams
) -> tuple[int, str]:
    """Run a command in a container; its exit status, and the error if it has none.

    Raises ApiError with the server's reason if it cannot be started.
    """
    query = [("command", word) for word in argv]
    query += [(name, "true") for name in ("stdin", "stdout", "stderr")]
    query += [("container", container)] if container else []
    path = f"{api.path('pods', name=pod, more='exec')}?{urlencode(query)}"
    connection = await connected(api, path, (_V5, _V4))
    feeding = asyncio.create_task(_feed(connection, streams))
    try:
        return await _show(connection, streams)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await connection.close()


async def _feed(connection: ClientConnection, streams: Streams) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while data := await streams.read():
            await connection.send(bytes([STDIN]) + data)
        if connection.subprotocol == _V5:
            await connection.send(bytes([CLOSE, STDIN]))
    except (ConnectionClosed, OSError):
        return


async def _show(connection: ClientConnection, streams: Streams) -> tuple[int, str]:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            message = await connection.recv()
            assert isinstance(message, bytes)
            channel, data = message[0], message[1:]
            if channel == STATUS:
                return status_of(data)
            if channel in (STDOUT, STDERR) and data:
                await streams.write(channel, data)
    except ConnectionClosed:
        return LOST, "the API server closed the exec stream"


def status_of(data: bytes) -> tuple[int, str]:
    """Exit status of a command, and the error if it has none, from its stream's last message."""
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        return LOST, data.decode(errors="replace")
    if found.get("status") == "Success":
        return 0, ""
    causes = found.get("details", {}).get("causes") or []
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"]), ""
    message = " ".join(str(found.get("message", "no reason")).split())
    return (127 if "executable file not found" in message else LOST), message
