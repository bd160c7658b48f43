"""The node that slows all others, from the rates reached without each node."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.locating import leave_one_out as module
from pytest_mnode.measuring.locating.leave_one_out import Trial, named_by, only_restorer
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import bus_factor

MIB = 1 << 20

ENOUGH = 85.0
LINE = 100.0


@pytest.mark.parametrize(
    ("with_it", "without_it", "named"),
    [
        (60.0, 95.0, True),
        (80.0, 95.0, True),
        (84.0, 86.0, True),
        (60.0, 80.0, False),  # the rate is not restored
        (86.0, 95.0, False),  # the rate was reached with all nodes
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
    trials = iter([*before, _trial(2, whole=ENOUGH), _trial(2), _trial(2)])
    assert named_by(trials, ENOUGH) is None
    assert len(list(trials)) == 2


def _named(
    monkeypatch: pytest.MonkeyPatch, busbw: Callable[[list[int]], float], nodes: int, ranks: int = 1
) -> str:
    """The node named if all_reduce over these ranks has the bus bandwidth given by `busbw`."""
    times_s = [0.0]

    def new_group(ranks: list[int]) -> None:
        factor = bus_factor("all_reduce", len(ranks))
        times_s.append(2 * MIB * factor / (busbw(ranks) * 1e9))

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda _: None)
    monkeypatch.setattr(module, "elapsed_s", lambda *_: times_s[-1])
    # Each round leaves out rank 0; then the others report their time.
    monkeypatch.setattr(module, "by_rank", lambda mine, _: [mine, [times_s[-1]]])
    names = tuple(f"node{i}" for i in range(nodes))
    world = World(0, nodes * ranks, 0, ranks, "node0", names)
    named = module.slow_in_collectives(world, MIB, ENOUGH, torch.device("cpu"), 1e9)
    assert named is None or named.nodes == {named.partition(",")[0]}
    return (named or "").partition(",")[0]


@pytest.mark.parametrize("nodes", [2, 3, 4, 16, 17])
@pytest.mark.parametrize("least", [2, 3])
def test_the_named_node_by_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch, nodes: int, least: int
) -> None:
    """All_reduce runs at half the line rate if the slow node is among `least` or more nodes."""
    for slow, ranks in itertools.product((None, 1), (1, 8)):

        def busbw(group: list[int], slow: int | None = slow, ranks: int = ranks) -> float:
            present = {rank // ranks for rank in group}
            return (0.5 if slow in present and len(present) >= least else 0.95) * LINE

        found = slow is not None and 3 <= nodes <= 16 and not (nodes == least == 3)
        named = _named(monkeypatch, busbw, nodes, ranks)
        assert named == ("node1" if found else ""), (slow, ranks)


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_a_disturbed_trial_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, trial: int
) -> None:
    without_it: list[float] = []

    def busbw(group: list[int]) -> float:
        if 2 in group:
            return 60.0
        without_it.append(80.0 if len(without_it) == trial else 95.0)
        return without_it[-1]

    assert _named(monkeypatch, busbw, nodes=4) == "node2"
    assert len(without_it) == (3 if trial < 2 else 2)
