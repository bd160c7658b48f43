"""Requests to a bridge, whose bytes come in parts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from pytest_mnode.launchers.remote.bridge_server import BridgeServer


@pytest.mark.parametrize(
    ("parts", "orders"),
    [
        ([b'{"open"', b": 1}\nthe rest"], [({"open": 1}, b"the rest")]),
        ([b'{"open": 1', b"", b"}\n"], []),
    ],
)
def test_a_request_in_parts_is_read_whole_or_not_at_all(
    parts: list[bytes], orders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []

    async def other(connection: socket.socket, order: dict[str, Any], more: bytes) -> None:
        taken.append((order, more))
        connection.close()

    async def run(*_: object) -> tuple[int, str]:
        raise AssertionError

    left = [(part, list[int](), 0, None) for part in parts]
    monkeypatch.setattr(socket, "recv_fds", lambda *_: left.pop(0))
    here, there = socket.socketpair()
    there.setblocking(False)
    here.send(b"there is something to read")
    asyncio.run(BridgeServer(run, other)._take(there))
    assert taken == orders
    assert there.fileno() == -1
    here.close()
