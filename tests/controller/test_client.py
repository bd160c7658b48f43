"""A client whose hub does not answer, or whose answer arrives before the client looks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mnode.controller import client as module
from pytest_mnode.controller.client import Client
from pytest_mnode.errors import TimeLimitError
from pytest_mnode.protocol.channel import LocalLine
from pytest_mnode.protocol.hub_messages import Granted
from pytest_mnode.protocol.launcher_requests import LauncherRequest, LinkRates, PowerOn, SwitchPower
from pytest_mnode.protocol.world import Lease


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    for limit in ("LEASE_LIMIT_S", "ANSWER_LIMIT_S"):
        monkeypatch.setattr(module, limit, 0.0)
    for kind in (LauncherRequest, SwitchPower):
        monkeypatch.setattr(kind, "limit_s", 0.0)
    return Client("client/1", LocalLine(lambda _, __: None))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda c: c.lease(None, False, "test_a"), "test_a was not given all nodes within 0 s"),
        (lambda c: c.lease(1, False, "test_a"), "test_a was not given 1 node within 0 s"),
        (lambda c: c.lease(3, True, "test_a"), "test_a was not given 3 nodes within 0 s"),
        (lambda c: c.open_world(Lease(1, ("n0",)), 1, True), "no world was started within 0 s"),
        (
            lambda c: c.ask_launcher(LinkRates("n0", "fab0")),
            "the launcher did not report the rate of a node's link within 0 s",
        ),
        (
            lambda c: c.ask_launcher(PowerOn("n0")),
            "the launcher did not switch nodes on within 0 s",
        ),
    ],
)
def test_missing_answers_are_named(client: Client, ask: Callable[[Client], Any], text: str) -> None:
    with pytest.raises(TimeLimitError) as caught:
        ask(client)
    assert str(caught.value) == text


def test_an_answer_in_time_counts_even_if_read_late(client: Client) -> None:
    assert isinstance(client.line, LocalLine)
    for message in ("of another test", Granted(1, 7, ("n0",))):
        client.line.put(pickle.dumps(message))
    assert client.lease(1, False, "test_a") == Lease(7, ("n0",))
    assert client.next_message(0.0) == "of another test"
