"""Watches of pods: a server that answers, and a server that is gone without closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams
from pytest_mnode.launchers.kubernetes.streams import connected
from tests.launchers.kubernetes.given import plain_api

LIMIT_S = 30.0


class Nothing(PodStreams):
    def changed(self, pod: Mapping[str, Any], gone: bool) -> bool:
        return False


@contextmanager
def watched(*, reads: bool) -> Iterator[PodStreams]:
    """A watch of a server that sends nothing. reads: whether the server reads requests."""
    loop, stop, ports = asyncio.new_event_loop(), asyncio.Event(), list[int]()
    listening = threading.Event()

    async def watch(connection: ServerConnection) -> None:
        if not reads:
            connection.transport.pause_reading()
        await stop.wait()
        connection.transport.abort()

    async def run() -> None:
        async with serve(watch, "127.0.0.1", 0, ping_interval=None) as server:
            ports.append(next(iter(server.sockets)).getsockname()[1])
            listening.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert listening.wait(LIMIT_S)
    streams = Nothing(plain_api(ports[0]), "run=1")
    try:
        yield streams
    finally:
        loop.call_soon_threadsafe(stop.set)
        streams.close()
        thread.join(LIMIT_S)
        loop.close()


def test_a_server_that_reads_is_alive() -> None:
    with watched(reads=True) as streams:
        assert streams.answers(LIMIT_S)


@pytest.mark.parametrize("limit_s", [0.0, 0.1])
def test_a_half_open_connection_is_not_alive(limit_s: float) -> None:
    with watched(reads=False) as streams:
        assert not streams.answers(limit_s)
        assert not streams.away  # as far as the connection is known


def test_a_connection_that_the_server_has_already_closed_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its transport has no socket by then, on which options could be set."""
    closed = SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda _: None))

    async def connect(*_: Any, **__: Any) -> Any:
        return closed

    monkeypatch.setattr("websockets.asyncio.client.connect", connect)
    api: Any = SimpleNamespace(
        host="http://server", tls=None, tls_name=None, proxy=None, headers=dict, connect_s=1.0
    )
    found: Any = asyncio.run(connected(api, "/log", ()))
    assert found is closed
