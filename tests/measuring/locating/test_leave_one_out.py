"""Which node slows all others, from the rates that were reached without each of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.locating import leave_one_out as module
from pytest_mnode.measuring.locating.leave_one_out import only_restorer
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import bus_factor

MIB = 1 << 20

ENOUGH = 85.0
LINE = 100.0


@pytest.mark.parametrize("nodes", [4, 5, 16])
@pytest.mark.parametrize("slow", [0, 1, 3])
@pytest.mark.parametrize(
    ("with_it", "without_it", "named"),
    [
        (60.0, 95.0, True),
        (80.0, 95.0, True),
        (84.0, 86.0, True),
        (60.0, 80.0, False),  # the rate does not come back
        (86.0, 95.0, False),  # it was kept all the time
    ],
)
def test_the_node_whose_absence_brings_the_rate_back(
    nodes: int, slow: int, with_it: float, without_it: float, named: bool
) -> None:
    without = [without_it if node == slow else with_it - 2 for node in range(nodes)]
    assert only_restorer(without, with_it, ENOUGH) == (slow if named else None)


@pytest.mark.parametrize(
    "without", [[95.0, 95.0, 60.0, 60.0], [95.0] * 4, [95.0, 80.0, 60.0, 60.0], [60.0] * 4]
)
def test_several_whose_absence_helps_name_nobody(without: list[float]) -> None:
    assert only_restorer(without, 60.0, ENOUGH) is None


@pytest.mark.parametrize("nodes", [2, 3, 4, 16, 17])
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("slow", [None, 1])
@pytest.mark.parametrize("least", [2, 3])
def test_who_is_named_of_how_many_nodes(
    monkeypatch: pytest.MonkeyPatch, nodes: int, ranks: int, slow: int | None, least: int
) -> None:
    """All_reduce runs at half the line where the slow node is among `least` nodes or more."""
    groups: list[list[int]] = []

    def elapsed_s(*_: object) -> float:
        present = {rank // ranks for rank in groups[-1]}
        half = slow in present and len(present) >= least
        busbw = (0.5 if half else 0.95) * LINE * 1e9
        return 2 * MIB * bus_factor("all_reduce", len(groups[-1])) / busbw

    monkeypatch.setattr(dist, "new_group", groups.append)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda _: None)
    monkeypatch.setattr(module, "elapsed_s", elapsed_s)
    # Rank 0 is left out in turn; then the others tell how long it took.
    monkeypatch.setattr(module, "by_rank", lambda mine, _: [mine, [elapsed_s() if groups else 0.0]])
    names = tuple(f"node{i}" for i in range(nodes))
    world = World(0, nodes * ranks, 0, ranks, "node0", names)
    named = module.slow_in_company(world, MIB, ENOUGH, torch.device("cpu"), 1e9)
    told = slow is not None and 3 <= nodes <= 16 and not (nodes == least == 3)
    assert named.partition(",")[0] == ("node1" if told else "")
