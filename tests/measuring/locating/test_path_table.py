"""The tables of paths and rails in a certificate, from simulated readings."""

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
    """The result of a search over links with these rates by (sender, receiver, rail)."""
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
    [table] = path_rates(rates, diagnose(rates), names)
    return table


def test_only_a_slow_path_outside_the_ring_fails() -> None:
    found = measured(lambda a, b, _: 95 if (a, b) == (1, 3) else 190)
    assert found.states == ("-ppp", "p-pf", "pp-p", "ppp-")
    assert found.mbits_s[1] == "190 - 190 95"
    assert found.rail_states == ("p", "p", "p", "p")
    assert found.rail_mbits_s == ("190",) * 4
    assert [path[:3] for path in found.paths() if path[2] == "failed"] == [
        ("node1", "node3", "failed")
    ]


def test_all_paths_of_a_slow_node_fail_in_the_slow_direction() -> None:
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


def test_unconfirmed_paths_and_paths_without_a_reading_are_suspect() -> None:
    found = measured(lambda a, b, _: 48 if 2 in (a, b) else 190, rounds=6)
    assert found.states == ("-psp", "p-sp", "ss-s", "pps-")
    assert found.rail_states == ("p", "p", "s", "p")
    found = measured(lambda a, b, _: 0 if (a, b) == (0, 1) else 190)
    assert (found.states[0], found.mbits_s[0]) == ("-spp", "- - 190 190")


def test_a_slow_fabric_fails_every_path() -> None:
    found = measured(lambda a, b, _: 100)
    assert found.states == ("-fff", "f-ff", "ff-f", "fff-")
    assert found.rail_states == ("f", "f", "f", "f")


def test_paths_skipped_for_lack_of_time_are_untested() -> None:
    found = measured(lambda a, b, _: 190, rounds=2)
    assert "".join(found.states).count("p") == 4
    assert found.mbits_s[0].split().count("-") == 3


@pytest.mark.parametrize("nodes", [66, 99])
def test_samples_of_several_days_cover_every_path(nodes: int) -> None:
    seen: set[tuple[str, str]] = set()
    for day in range(20_000, 20_000 + nodes // 8 + 2):
        found = measured(lambda a, b, _: 190, nodes, every_path=False, day=day)
        of_day = {path[:2] for path in found.paths() if path[2] == "passed"}
        assert 8 * (nodes - 1) <= len(of_day) <= 10 * nodes
        seen |= of_day
    assert len(seen) == nodes * (nodes - 1)


def test_a_path_of_two_nodes_that_is_slow_both_ways_fails() -> None:
    assert measured(lambda *_: 95, nodes=2).states == ("-f", "f-")
    assert measured(lambda *_: 190, nodes=2).states == ("-p", "p-")
