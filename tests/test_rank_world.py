"""Ranks of a world after an interrupted call from the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.cluster import RankWorld
from pytest_mnode.protocol.messages import Shape, WorldInfo


def test_ranks_of_an_interrupted_call_are_not_used_again() -> None:
    given_back: list[bool] = []

    def cut_short(*_: object, **__: object) -> None:
        pytest.fail("Timeout of another plugin")

    def close_world(_: WorldInfo, reusable: bool, __: bool) -> None:
        given_back.append(reusable)

    run: Any = SimpleNamespace(call_in_ranks=cut_short, close_world=close_world)
    info = WorldInfo("w1", Shape(2, 1), ("n0", "n1"))
    with pytest.raises(pytest.fail.Exception), RankWorld(run, info, 300.0, fresh=False) as world:
        world.run(print)
    assert given_back == [False]
