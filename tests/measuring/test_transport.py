"""The transport proof waits until cards have updated their counters."""

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
    """A card that updates its counters once a second; only sleeping advances its clock."""

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


def test_sent_bytes_are_counted_by_cards_that_update_once_a_second(
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
    card.send()  # to connect: not yet in the counters
    promise = TransportPromise.model_validate({"size": "1 GiB", "calls": 1})
    device: Any = None
    facts: Evidence = transport._facts(world, "nccl", promise, card.send, device)
    assert facts.nodes[0].sent_bytes == {"fab0": SENT}
