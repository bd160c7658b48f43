"""Time limits of the fabric tests follow from the performance that the spec promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.marks import LimitOf
from pytest_mnode.measuring.limits import (
    FACTOR,
    REPEAT_S,
    START_UP_S,
    collective_limit_s,
    paths_limit_s,
    still_limit_s,
    transport_limit_s,
)
from pytest_mnode.spec import Spec, default_spec_path, load_spec

RACK = load_spec(default_spec_path())
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


class _Settings:
    locate_budget_s = 20.0


SETTINGS: Any = _Settings()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_the_rack_a_hang_costs_far_less_than_the_usual_limit(collective: str) -> None:
    limit_s = collective_limit_s(collective)(RACK, SETTINGS, 4, 1)
    assert START_UP_S + 20 + FACTOR < limit_s < 120
    assert transport_limit_s(RACK, SETTINGS, 4, 1) < 60
    assert paths_limit_s(RACK, SETTINGS, 4, 1) < 60
    assert START_UP_S + REPEAT_S * FACTOR < still_limit_s(RACK, SETTINGS, 4, 1) < 60


@pytest.mark.parametrize(
    "limit", [paths_limit_s, still_limit_s, transport_limit_s, collective_limit_s("all_reduce")]
)
@pytest.mark.parametrize("nodes", [2, 64, 512])
def test_accelerators_have_time_to_start(limit: LimitOf, nodes: int) -> None:
    cluster = load_spec(Path(__file__).parents[2] / "fixtures/clusters/h100-ib.yaml")
    assert limit(cluster, SETTINGS, nodes, 8) > 90 + 0.1 * 8 * nodes


@pytest.mark.parametrize("slower", [2, 10, 100])
def test_a_slower_line_has_more_time(slower: int) -> None:
    slow = slower_rack(slower)
    for limit in (*map(collective_limit_s, COLLECTIVES), transport_limit_s, still_limit_s):
        assert limit(slow, SETTINGS, 4, 1) > limit(RACK, SETTINGS, 4, 1)
    # For a long run the transfer time decides.
    limit = collective_limit_s("all_reduce")
    lines = [slower_rack(slower * factor) for factor in (100, 200)]
    one, two = (limit(spec, SETTINGS, 4, 1) - paths_limit_s(spec, SETTINGS, 4, 1) for spec in lines)
    assert two == pytest.approx(2 * one)


def slower_rack(slower: int) -> Spec:
    rate = RACK.fabric.line_rate_bits_s / slower
    return RACK.model_copy(
        update={"fabric": RACK.fabric.model_copy(update={"line_rate_bits_s": rate})}
    )
