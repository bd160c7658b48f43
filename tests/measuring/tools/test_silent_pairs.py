"""Servers of perftest that never listen, or never end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.measuring.tools import perftest_pairs
from tests.waiting import SOON_S


class Side:
    """A client that is over at once, if `client_ends`; a server that never is."""

    started, client_ends = False, True

    def __init__(self, *given: Any) -> None:
        self.ended = (
            self.client_ends and len(given) == 5
        )  # a client is given the address of its server

    def read(self) -> tuple[Any, None]:
        return SimpleNamespace(faults=("Couldn't connect",)), None

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        ("_SERVER_LIMIT_S", (None, "Couldn't connect")),
        ("_SERVER_END_S", (387.42, "")),
        ("_FAILED_END_S", (None, "Couldn't connect")),
        ("_SPARE_S", (None, "ib_write_bw to n1 port 1 did not end within its time")),
    ],
    ids=["never listens", "never ends", "fails", "has a client that never ends"],
)
def test_a_server_that_never_does_is_not_waited_for(
    limit: str, outcome: tuple[float | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SERVER_LIMIT_S", "_SERVER_END_S", "_FAILED_END_S", "_SPARE_S"):
        monkeypatch.setattr(perftest_pairs, name, 0.2 if name == limit else 0.0)
    monkeypatch.setattr(perftest_pairs, "_RETRY_S", 0.01)
    monkeypatch.setattr(perftest_pairs, "_Side", Side)
    monkeypatch.setattr(Side, "client_ends", limit != "_SPARE_S")
    monkeypatch.setattr(perftest_pairs, "_judged", lambda *_: outcome)
    cluster: Any = SimpleNamespace(address=lambda node: node)
    ends: Any = (SimpleNamespace(node=n, device="mlx5_0", rail=0) for n in ("n0", "n1"))
    promise: Any = SimpleNamespace(program="ib_write_bw")
    began = time.monotonic()
    found = []

    def pair() -> Iterator[None]:
        made: Any = perftest_pairs._pair
        found.append((yield from made(cluster, promise, *ends, 1)))

    for _ in pair():
        assert time.monotonic() - began < SOON_S
    assert [(one.value, one.why) for one in found] == [outcome]
    assert time.monotonic() - began >= 0.2
