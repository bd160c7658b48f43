"""A kernel that never answers a request for one of its tables."""

from __future__ import annotations

import socket
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
