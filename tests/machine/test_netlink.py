"""A kernel that never answers a request for one of its tables."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable

import pytest

from pytest_mnode.machine import netlink


@pytest.mark.parametrize("ask", [netlink.dumped, netlink.answered])
def test_a_kernel_that_never_answers(
    ask: Callable[[int, bytes], Iterable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, kernel = socket.socketpair()
    monkeypatch.setattr(netlink, "_LIMIT_S", 0.1)
    monkeypatch.setattr(socket, "socket", lambda *_: ours)
    with kernel, pytest.raises(TimeoutError):
        list(ask(1, b""))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (struct.pack("=HH", 4, 7), [(7, b"")]),  # a flag at the end
        (struct.pack("=HHB3xHH", 5, 1, 9, 4, 2), [(1, b"\x09"), (2, b"")]),
        (struct.pack("=HHHH", 4, 1, 3, 2), [(1, b"")]),  # shorter than its own header
        (b"\x04", []),
    ],
)
def test_attributes_end_with_their_message(data: bytes, found: list[tuple[int, bytes]]) -> None:
    assert [*netlink.attributes(data)] == found
