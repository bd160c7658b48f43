"""The address at which nodes reach this machine."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.protocol import address


@pytest.mark.parametrize(
    ("there", "here"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.9", "127.0.0.1")]
)
def test_the_source_address_of_packets(there: str, here: str) -> None:
    assert address.towards(there) == here


def test_an_address_is_named_without_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has another name on the node."""

    class Probe(socket.socket):
        def connect(self, _: object) -> None: ...

        def getsockname(self) -> tuple[str, int, int, int]:
            return "fe80::1%fab0", 9, 0, 2

    monkeypatch.setattr(address, "socket", SimpleNamespace(**vars(socket) | {"socket": Probe}))
    assert address.towards("127.0.0.1") == "fe80::1"


def test_an_address_without_a_route_is_named() -> None:
    with pytest.raises(ClusterError, match="no route from this machine to fe80::1: "):
        address.towards("fe80::1")  # of no interface


def test_the_family_of_an_address() -> None:
    assert address.family_of("fd00::1") is socket.AF_INET6
    assert address.family_of("10.0.0.1") is socket.AF_INET
