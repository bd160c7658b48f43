"""The node that slows all others, from the rates reached without each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pytest_mnode.measuring.locating.leave_one_out import (
    Trial,
    named_by,
    only_restorer,
    slow_in_collectives,
)

ENOUGH = 85.0
LINE = 100.0


@pytest.mark.parametrize(
    ("with_it", "without_it", "named"),
    [
        (60.0, 95.0, True),
        (80.0, 95.0, True),
        (84.0, 89.0, True),
        (86.0, 95.0, True),  # close above the rate that other communicators missed
        (84.0, 86.0, False),  # hardly faster
        (60.0, 80.0, False),  # the rate is not restored
        (90.0, 99.0, False),  # the rate was reached with all nodes
    ],
)
def test_the_node_whose_removal_restores_the_rate_is_named(
    with_it: float, without_it: float, named: bool
) -> None:
    for slow, nodes in ((0, 4), (1, 5), (3, 4), (15, 16)):
        without = [without_it if node == slow else with_it - 2 for node in range(nodes)]
        assert only_restorer(without, with_it, ENOUGH) == (slow if named else None), slow


@pytest.mark.parametrize(
    "without", [[95.0, 95.0, 60.0, 60.0], [95.0] * 4, [95.0, 80.0, 60.0, 60.0], [60.0] * 4]
)
def test_several_nodes_whose_removal_helps_name_no_node(without: list[float]) -> None:
    assert only_restorer(without, 60.0, ENOUGH) is None


def _trial(named: int | None, whole: float = 60.0, rate: float = 95.0) -> Trial:
    """A trial of four nodes that names one of them; None: disturbed, names no node."""
    return Trial(whole, tuple(rate if node == named else 60.0 for node in range(4)))


@pytest.mark.parametrize(
    ("named", "found", "tried"),
    [
        ([2, 2, 2], 2, 2),
        ([None, 2, 2, 2], 2, 3),
        ([2, None, 2, 2], 2, 3),
        ([None, None, None, 2, 2], 2, 5),
        ([2], None, 1),  # no time left after that
        ([], None, 0),
        ([None] * 7, None, 5),
        ([2, 1, 2, 2, 2, 2], None, 5),  # the rate was restored without node 1 as well
        ([2, 1, 1, 2, 0, 3], None, 5),
    ],
)
def test_trials_go_on_until_two_name_the_same_node(
    named: list[int | None], found: int | None, tried: int
) -> None:
    trials = iter([_trial(node) for node in named])
    one = named_by(trials, ENOUGH)
    assert (one and one[0], len(named) - len(list(trials))) == (found, tried)


def test_the_best_readings_of_all_trials_are_reported() -> None:
    trials = [_trial(2, 61.0, 90.0), _trial(2, 70.0, 80.0), _trial(2, 65.0, 91.0)]
    found = named_by(iter(trials), ENOUGH)
    assert found == (2, Trial(70.0, (60.0, 60.0, 91.0, 60.0)))


def test_a_half_restored_rate_in_another_trial_names_no_node() -> None:
    trials = [_trial(2), _trial(0, rate=79.0), _trial(2), _trial(2)]
    assert named_by(iter(trials), ENOUGH) is None


@pytest.mark.parametrize("before", [[], [_trial(2)], [_trial(None), _trial(2)]])
def test_trials_end_once_all_nodes_reach_the_rate(before: list[Trial]) -> None:
    trials = iter([*before, _trial(2, whole=90.0), _trial(2), _trial(2)])
    assert named_by(trials, ENOUGH) is None
    assert len(list(trials)) == 2


def _named(busbw: Callable[[set[int]], float], nodes: int) -> str:
    """The nodes named if all_reduce over nodes has the bus bandwidth given by `busbw`."""
    names = [f"node{i}" for i in range(nodes)]

    def rates(groups: Sequence[Sequence[int]]) -> list[float]:
        together = [node for group in groups for node in group]
        assert len(together) == len(set(together)), "no node is in two groups at once"
        return [busbw(set(group)) for group in groups]

    found = slow_in_collectives(names, lambda _: ENOUGH, rates)
    either = sorted(map(sorted, found.either)) if found else []
    return "/".join(",".join(some) for some in ([*sorted(found.nodes)] if found else [], *either))


@pytest.mark.parametrize("nodes", [2, 3, 4, 16, 17, 40, 64])
@pytest.mark.parametrize("least", [2, 3])
def test_the_named_node_by_number_of_nodes(nodes: int, least: int) -> None:
    """All_reduce runs at half the line rate if the slow node is among `least` or more nodes."""
    for slow in (None, 1, nodes - 1):

        def busbw(group: set[int], slow: int | None = slow) -> float:
            return (0.5 if slow in group and len(group) >= least else 0.95) * LINE

        found = slow is not None and nodes >= 3 and not (nodes == least == 3)
        assert _named(busbw, nodes) == (f"node{slow}" if found else ""), slow


def test_slow_nodes_of_several_groups_are_all_named() -> None:
    assert _named(lambda group: 60.0 if group & {3, 30} else 95.0, 40) == "node3,node30"
    # Two of one group restore nothing one by one: any of it may be to blame.
    rest = ",".join(sorted(f"node{i}" for i in range(13)))
    assert _named(lambda group: 60.0 if group & {3, 4, 30} else 95.0, 40) == f"node30/{rest}"
    # A group close above the rate keeps it.
    assert _named(lambda group: 60.0 if 30 in group else 86.0, 40) == "node30"


def test_only_slow_groups_are_tried_without_their_nodes() -> None:
    tried: list[int] = []

    def rates(groups: Sequence[Sequence[int]]) -> list[float]:
        tried.append(len(groups))
        return [60.0 if 30 in group else 95.0 for group in groups]

    assert slow_in_collectives([f"n{i}" for i in range(48)], lambda _: ENOUGH, rates) is not None
    assert tried == [3, *[1] * 16] + [1] * 17


@pytest.mark.parametrize("rounds", [0, 1, 5, 9])
def test_a_trial_that_time_cuts_off_names_nobody(rounds: int) -> None:
    left = iter([True] * rounds)

    def rates(groups: Sequence[Sequence[int]]) -> list[float] | None:
        return [60.0 if 1 in group else 95.0 for group in groups] if next(left, None) else None

    assert slow_in_collectives([f"n{i}" for i in range(4)], lambda _: ENOUGH, rates) is None


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_a_disturbed_trial_is_followed_by_another(trial: int) -> None:
    without_it: list[float] = []

    def busbw(group: set[int]) -> float:
        if 2 in group:
            return 60.0
        without_it.append(80.0 if len(without_it) == trial else 95.0)
        return without_it[-1]

    assert _named(busbw, nodes=4) == "node2"
    assert len(without_it) == (3 if trial < 2 else 2)
