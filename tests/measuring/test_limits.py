"""Time limits of the fabric tests follow from the performance that the spec promises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.checks.world_check import WorldCheck, limit_of
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.marks import LimitOf
from pytest_mnode.measuring.limits import (
    FACTOR,
    REPEAT_S,
    START_UP_S,
    collective_limit_s,
    locating_s,
    paths_limit_s,
    repeats_of_each,
    still_limit_s,
    sweep_s,
    traffic_limit_s,
    transport_limit_s,
)
from pytest_mnode.spec import Spec, load_spec, profile_spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.devices import DevicesCriterion
from pytest_mnode.spec.traffic import TrafficCriterion

RACK = profile_spec("rack")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


class _Settings:
    locate_budget_s = 20.0


SETTINGS: Any = _Settings()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_the_rack_a_hang_costs_far_less_than_the_usual_limit(collective: str) -> None:
    limit_s = collective_limit_s(collective)(RACK, SETTINGS, 4, 1)
    assert START_UP_S + 20 + FACTOR < limit_s < 180  # of 300 s; a still hang is found in 60 s
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


def test_durations_that_the_spec_promises_are_added() -> None:
    page = {
        "training_step": {"for": "1 min"},
        "repeated_products": {"for": "2 min", "dtypes": ["float32", "bfloat16"]},
        "memory_test": {"within": "5 min"},
        "under_load": {"for": "10 min"},
    }
    devices = DevicesCriterion.model_validate(page)
    assert devices.promised_s == 60 + 2 * 120 + 600
    spec: Any = SimpleNamespace(criteria=SimpleNamespace(devices=devices))
    settings: Any = SimpleNamespace(timeout_s=300.0)
    checks = [one for one in catalogue("devices") if issubclass(one, WorldCheck)]
    limits = {one.key: limit_of(one)(spec, settings, 4, 8) for one in checks}
    more = {
        "devices.training_step": 360.0,
        "devices.repeated_products": 540.0,
        "devices.memory_test": 600.0,
        "devices.under_load": 900.0,
    }
    assert limits == {**dict.fromkeys(limits, 300.0), **more}
    spec.criteria.devices = None
    assert {limit_of(one)(spec, settings, 4, 8) for one in checks} == {300.0}


def test_all_calls_of_experts_have_their_time() -> None:
    """459 calls of 1 MiB, 3 times as much to the hot one of 4, and 4 first ones, at 25 MB/s."""
    promise = {"experts": {"sizes": ["1 MiB"], "p99_at_most_times": 3}}
    traffic = TrafficCriterion.model_validate(promise)
    criteria = RACK.criteria.model_copy(update={"traffic": traffic})
    spec = RACK.model_copy(update={"criteria": criteria})
    more_s = traffic_limit_s(spec, SETTINGS, 4, 1) - traffic_limit_s(RACK, SETTINGS, 4, 1)
    assert more_s == pytest.approx(FACTOR * 463 * 2 * 12 * 2**20 / 25e6)


@pytest.mark.parametrize("slower", [2, 10, 100])
def test_a_slower_line_has_more_time(slower: int) -> None:
    slow = slower_rack(slower)
    for limit in (*map(collective_limit_s, COLLECTIVES), transport_limit_s, still_limit_s):
        assert limit(slow, SETTINGS, 4, 1) > limit(RACK, SETTINGS, 4, 1)
    # For a long run the transfer time decides.
    limit = collective_limit_s("all_reduce")
    lines = [slower_rack(slower * factor) for factor in (100, 200)]
    one, two = (limit(spec, SETTINGS, 4, 1) - paths_limit_s(spec, SETTINGS, 4, 1) for spec in lines)
    assert two == pytest.approx(2 * one, rel=0.01)  # besides the time to connect


@pytest.mark.parametrize(
    ("repeats", "communicators", "of_each"),
    [(5, 1, 5), (2, 1, 2), (2, 3, 3), (9, 3, 3), (10, 3, 4), (20, 4, 5)],
)
def test_repeats_are_spread_over_communicators(
    repeats: int, communicators: int, of_each: int
) -> None:
    assert repeats_of_each(repeats, communicators) == of_each


def test_more_communicators_have_more_time() -> None:
    fabric = RACK.criteria.fabric
    assert fabric is not None
    assert fabric.all_reduce_busbw is not None
    more = fabric.all_reduce_busbw.model_copy(update={"communicators": 6})
    model = CollectiveModel(Platform.of(RACK), "all_reduce", 4, 1, "gloo")
    few_s, many_s = (sweep_s(promise, model) for promise in (fabric.all_reduce_busbw, more))
    size = fabric.all_reduce_busbw.sizes_bytes[-1]
    least_s = 9 * size * 1.5 / (0.85 * 0.025e9)  # on three more communicators, three calls each
    assert many_s - few_s > least_s


def slower_rack(slower: int) -> Spec:
    rate = RACK.fabric.line_rate_bits_s / slower
    return RACK.model_copy(
        update={"fabric": RACK.fabric.model_copy(update={"line_rate_bits_s": rate})}
    )


@pytest.mark.parametrize(
    ("nodes", "every_path", "at_least_s", "at_most_s"),
    [
        (2, False, 20, 30),
        (16, False, 30, 45),
        (64, False, 70, 90),
        (512, False, 30, 60),
        (512, True, 400, 500),
    ],
)
def test_a_search_has_time_for_its_rounds(
    nodes: int, every_path: bool, at_least_s: float, at_most_s: float
) -> None:
    """On accelerators each pair is connected anew; a budget that is given stays."""
    cluster = load_spec(Path(__file__).parents[2] / "fixtures/clusters/h100-ib.yaml")
    budget_s = locating_s(None, cluster, nodes, every_path=every_path)
    assert at_least_s <= budget_s <= at_most_s
    assert locating_s(None, RACK, nodes, every_path=every_path) <= budget_s
    assert locating_s(5.0, cluster, nodes) == 5.0
    settings: Any = SimpleNamespace(locate_budget_s=None)
    assert paths_limit_s(cluster, settings, nodes, 8) > 90 + budget_s
