"""The tables of paths and rails that a certificate keeps, from simulated readings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_mnode.measuring.locating.diagnosis import diagnose
from pytest_mnode.measuring.locating.path_table import path_rates
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading
from pytest_mnode.measuring.locating.search import search
from pytest_mnode.measuring.locating.wording import Names
from pytest_mnode.path_rates import PathRates

Rate = Callable[[int, int, int], float]


def measured(
    rate: Rate, nodes: int = 4, rails: int = 1, rounds: int = 1000, **how: int | bool
) -> PathRates:
    """What a search finds whose links have the rate of a rule (sender, receiver, rail)."""
    rates = Rates(nodes, rails, 170.0)
    steps = search(rates, every_path=bool(how.get("every_path", True)), day=int(how.get("day", 0)))
    readings = None
    try:
        step = next(steps)
        for number in range(100_000):
            readings = [
                Reading(f.sender, f.receiver, rail, rate(f.sender, f.receiver, rail), step.alone)
                for f in step.flows
                for rail in f.rails
            ]
            step = steps.send(readings if number < rounds else None)
    except StopIteration:
        pass
    names = Names(
        tuple(f"node{i}" for i in range(nodes)),
        "fab",
        tuple(f"fab{rail}" for rail in range(rails)),
        None,
    )
    return path_rates(rates, diagnose(rates), names)


def test_a_slow_path_off_the_ring_has_failed_and_no_other() -> None:
    found = measured(lambda a, b, _: 95 if (a, b) == (1, 3) else 190)
    assert found.states == ("-ppp", "p-pf", "pp-p", "ppp-")
    assert found.mbits_s[1] == "190 - 190 95"
    assert found.rail_states == ("p", "p", "p", "p")
    assert found.rail_mbits_s == ("190",) * 4
    assert [path[:3] for path in found.paths() if path[2] == "failed"] == [
        ("node1", "node3", "failed")
    ]


def test_all_paths_of_a_slow_node_have_failed_in_the_slow_direction() -> None:
    found = measured(lambda a, b, _: 48 if a == 2 else 190)
    assert found.states == ("-ppp", "p-pp", "ff-f", "ppp-")
    assert found.rail_states == ("p", "p", "f", "p")
    assert found.rail_mbits_s[2] == "48"


def test_a_slow_rail_fails_by_itself_and_the_path_has_the_rate_of_the_slowest() -> None:
    found = measured(lambda a, b, rail: 60 if rail == 1 and b == 0 else 190, rails=3)
    assert found.rail_states == ("pfp", "ppp", "ppp", "ppp")
    assert found.rail_mbits_s[0] == "190 60 190"
    assert found.states == ("-ppp", "f-pp", "fp-p", "fpp-")
    assert found.mbits_s[1] == "60 - 190 190"


def test_what_was_not_confirmed_is_suspect_and_what_gave_no_reading_too() -> None:
    found = measured(lambda a, b, _: 48 if 2 in (a, b) else 190, rounds=6)
    assert found.states == ("-psp", "p-sp", "ss-s", "pps-")
    assert found.rail_states == ("p", "p", "s", "p")
    found = measured(lambda a, b, _: 0 if (a, b) == (0, 1) else 190)
    assert (found.states[0], found.mbits_s[0]) == ("-spp", "- - 190 190")


def test_where_the_fabric_is_slow_as_a_whole_everything_has_failed() -> None:
    found = measured(lambda a, b, _: 100)
    assert found.states == ("-fff", "f-ff", "ff-f", "fff-")
    assert found.rail_states == ("f", "f", "f", "f")


def test_what_there_was_no_time_for_was_not_tested() -> None:
    found = measured(lambda a, b, _: 190, rounds=2)
    assert "".join(found.states).count("p") == 4
    assert found.mbits_s[0].split().count("-") == 3


@pytest.mark.parametrize("nodes", [66, 99])
def test_samples_of_days_add_up_to_every_path(nodes: int) -> None:
    seen: set[tuple[str, str]] = set()
    for day in range(20_000, 20_000 + nodes // 8 + 2):
        found = measured(lambda a, b, _: 190, nodes, every_path=False, day=day)
        of_day = {path[:2] for path in found.paths() if path[2] == "passed"}
        assert 8 * (nodes - 1) <= len(of_day) <= 10 * nodes
        seen |= of_day
    assert len(seen) == nodes * (nodes - 1)


def test_of_two_nodes_a_path_that_is_slow_both_ways_has_failed() -> None:
    assert measured(lambda *_: 95, nodes=2).states == ("-f", "f-")
    assert measured(lambda *_: 190, nodes=2).states == ("-p", "p-")
