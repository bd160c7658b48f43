"""Which node slows all others, from the rates that were reached without each of them."""

from __future__ import annotations

import pytest

from pytest_mnode.bench.leave_one_out import only_restorer

ENOUGH = 85.0


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
