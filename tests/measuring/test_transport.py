"""The proof of transport reads counters when cards have counted."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.machine.model import Machine
from pytest_mnode.measuring import nic_counters, transport
from pytest_mnode.spec.fabric import TransportPromise
from tests.criteria.transport.compose import interface

SENT = 1 << 30


class SlowCard:
    """A card that writes its counters once a second, and a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s, self.moved = 0.9, [(0.0, 0)]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def send(self) -> None:
        self.moved.append((self.now_s, self.moved[-1][1] + SENT))

    def read(self, **_: object) -> Machine:
        written_s = int(self.now_s)
        count = max(total for at, total in self.moved if at <= written_s)
        return Machine(interfaces=(interface("fab0", sent_bytes=count, received_bytes=count),))


def test_what_was_sent_is_counted_also_by_cards_that_count_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = SlowCard()
    world: Any = type("World", (), {"node": "n0", "local_rank": 0})()
    for name, stand_in in (
        ("barrier", lambda _: None),
        ("gathered", lambda one: [one]),
        ("rank_now", lambda *_: None),
    ):
        monkeypatch.setattr(transport, name, stand_in)
    monkeypatch.setattr(nic_counters, "share_a_machine", lambda _: False)
    monkeypatch.setattr("time.sleep", card.sleep)
    monkeypatch.setattr(Machine, "read", card.read)
    card.send()  # to connect: still in the card
    promise = TransportPromise.model_validate({"size": "1 GiB", "calls": 1})
    device: Any = None
    facts: Evidence = transport._facts(world, "nccl", promise, card.send, device)
    assert facts.nodes[0].sent_bytes == {"fab0": SENT}
