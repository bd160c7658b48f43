"""Traffic of many nodes at once: how often it is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pytest_mnode.measuring import algorithms, at_once, ranks
from pytest_mnode.rank.world import World
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.traffic import BisectionPromise


@pytest.mark.parametrize(
    ("share", "communicators"),
    [([0.9], 3), ([0.5], 3), ([0.65, 0.8], 12)],
)
def test_more_is_measured_while_the_bisection_is_undecided(
    monkeypatch: pytest.MonkeyPatch, share: list[float], communicators: int
) -> None:
    """share: of the line, in turns of communicators; 0.7 is promised."""
    made: list[None] = []

    class Flows:
        def __init__(self, *_: object) -> None:
            pass

        def received_gbits_s(self, group: object = None) -> list[float]:
            return [0.2 * share[(len(made) - 1) % len(share)]] * 2

    @contextlib.contextmanager
    def fresh_group(*_: object) -> Iterator[object]:
        made.append(None)
        yield object()

    monkeypatch.setattr(at_once, "Flows", Flows)
    monkeypatch.setattr(algorithms, "fresh_group", fresh_group)
    world = SimpleNamespace(nodes=("a", "b"), local_size=1)
    promise = BisectionPromise.model_validate({"at_least_fraction": 0.7})
    spec = profile_spec("rack")
    found = at_once.bisection(cast("Any", world), spec, promise, torch.device("cpu"))
    assert len(found.gbits_s) == communicators
    assert bool(found.alone_gbits_s) is (share != [0.9]), "each pair alone, unless all is well"


@pytest.mark.parametrize(
    ("domains", "pairs", "senders"),
    [
        ([0, 0, 0, 0], [], {}),
        ([0, 0, 1, 1], [("a", "c"), ("b", "d")], {"a": "cd", "b": "cd", "c": "ab", "d": "ab"}),
        ([0, 0, 0, 1], [("b", "d")], {"a": "d", "b": "d", "c": "d", "d": "abc"}),
    ],
)
def test_nics_are_measured_across_nvlink_domains_only(
    monkeypatch: pytest.MonkeyPatch,
    domains: list[int],
    pairs: list[tuple[str, str]],
    senders: dict[str, str],
) -> None:
    """NVLink inside a domain is several times as fast, and would hide a slow NIC."""
    sent: list[list[tuple[int, int]]] = []

    class Flows:
        def __init__(self, flows: Iterable[tuple[int, int]], *_: object) -> None:
            self.flows = [*flows]

        def received_gbits_s(self, group: object = None) -> list[float]:
            sent.append(self.flows)
            return [0.2]

    @contextlib.contextmanager
    def fresh_group(*_: object) -> Iterator[object]:
        yield object()

    monkeypatch.setattr(at_once, "Flows", Flows)
    monkeypatch.setattr(at_once, "domains_of", lambda *_: domains)
    monkeypatch.setattr(algorithms, "fresh_group", fresh_group)
    monkeypatch.setattr(ranks, "gathered", lambda one: [one])
    world = World(0, 4, 0, 1, "a", tuple("abcd"))
    spec, device = profile_spec("rack"), torch.device("cpu")
    promise = BisectionPromise.model_validate({"at_least_fraction": 0.7})
    assert [*zip(*at_once.bisection(world, spec, promise, device).halves, strict=True)] == pairs
    sent.clear()
    found = at_once.incast(world, spec, device)
    assert {*found.gbits_s} == {*senders}
    assert found.senders == max(map(len, senders.values()), default=0)
    by_node = {"abcd"[to]: "".join("abcd"[a] for a, _ in some) for some in sent for _, to in some}
    assert by_node == senders
