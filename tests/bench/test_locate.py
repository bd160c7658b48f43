"""The search for who is slow: which pairs it tries, when it goes on, and when it stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_mnode.bench import locate as module
from pytest_mnode.bench.pairs import PairRate, message_bytes
from pytest_mnode.bench.traffic import NodeTraffic
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.world.contract import World

SPEC = load_spec(default_spec_path())
RING_OF_4 = {"01", "10", "12", "21", "23", "32", "30", "03"}


class Fabric:
    """Stands for real nodes: answers with the rate of a rule, and notes who was tried."""

    def __init__(self, rate: Callable[[str], float], seconds_each: float = 0.0) -> None:
        self.rate = rate
        self.tried: list[str] = []
        self.seconds_each = seconds_each

    def pair_rate(self, world: World, sender: str, receiver: str, *_: object) -> PairRate:
        pair = f"{sender[-1]}{receiver[-1]}"
        self.tried.append(pair)
        return PairRate(sender, receiver, self.rate(pair))

    def by_rank(self, numbers: list[float], device: torch.device) -> list[list[float]]:
        return [[len(self.tried) * self.seconds_each]]


def _locate(
    monkeypatch: pytest.MonkeyPatch, fabric: Fabric, nodes: int = 4, carrier: str = "fab0"
) -> str:
    monkeypatch.setattr(module, "pair_rate", fabric.pair_rate)
    monkeypatch.setattr(module, "by_rank", fabric.by_rank)
    names = tuple(f"node{i}" for i in range(nodes))
    traffic = tuple(NodeTraffic(name, {carrier: 100}, 100) for name in names)
    world = World(0, nodes, 0, 1, "node0", names)
    return module.locate(world, SPEC, traffic, 170.0, torch.device("cpu"))


def test_one_slow_node_is_found_with_its_two_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(lambda pair: 48 if "2" in pair else 190)
    found = _locate(monkeypatch, fabric)
    assert found == "node2 fab0 (48 Mbit/s, alone with node1 or node3; other nodes 190)"
    assert set(fabric.tried) == RING_OF_4


def test_slow_neighbours_are_confirmed_with_healthy_partners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(lambda pair: 48 if {"2", "3"} & set(pair) else 190)
    found = _locate(monkeypatch, fabric, nodes=6)
    assert found.startswith("node2 fab0 (48 Mbit/s, alone with node1 or node3 or node0;")
    assert "; node3 fab0 (48 Mbit/s" in found
    assert {"20", "30"} <= set(fabric.tried)


def test_further_pairs_are_tried_while_every_one_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(lambda pair: 48 if {"0", "2"} & set(pair) else 190)
    found = _locate(monkeypatch, fabric)
    assert {"13", "31"} <= set(fabric.tried)
    assert [part.split()[0] for part in found.split("; ") if "fab0" in part] == ["node0", "node2"]


def test_traffic_elsewhere_is_said_after_one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(lambda pair: 19)
    assert _locate(monkeypatch, fabric, carrier="mgmt0") == (
        "all nodes sent over mgmt0 instead of fab0; the fabric as a whole: every pair is slow, "
        "e.g. 19 Mbit/s, the rate of the management network"
    )
    assert fabric.tried == ["01", "10"]


def test_nobody_is_blamed_where_pairs_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(lambda pair: 180 if pair == "12" else 190)
    assert _locate(monkeypatch, fabric) == (
        "no node alone: pairs keep the rate by themselves (slowest node1→node2 180 Mbit/s)"
    )


def test_it_stops_when_its_time_is_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(lambda pair: 48, seconds_each=module.BUDGET_S / 3)
    assert "not all pairs were tried within 20 s" in _locate(monkeypatch, fabric)
    assert len(fabric.tried) == 4


@pytest.mark.parametrize(
    ("line_mbits_s", "size_bytes"), [(200, 500_000), (1, 256 << 10), (400_000, 256 << 20)]
)
def test_messages_outlast_a_burst_and_fit_in_memory(line_mbits_s: float, size_bytes: int) -> None:
    assert message_bytes(line_mbits_s) == size_bytes
