"""Traffic of many nodes at once: how often it is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mnode.measuring import algorithms, at_once
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
    found = at_once.bisection(cast("Any", world), spec, promise, cast("Any", "cpu"))
    assert len(found.gbits_s) == communicators
    assert bool(found.alone_gbits_s) is (share != [0.9]), "each pair alone, unless all is well"
