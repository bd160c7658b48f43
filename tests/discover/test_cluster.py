from __future__ import annotations

import pytest

from pytest_mnode.discover.cluster import agreed, alike, named, where


@pytest.mark.parametrize(
    ("values", "value", "differences"),
    [
        ({"a": 1, "b": 1, "c": 1}, 1, ""),
        ({"a": 1, "b": 1, "c": 2}, 1, "c: 2"),
        ({"a": 1, "b": 1, "c": None}, 1, "c: unknown"),
        ({"a": 1, "b": 1, "c": 2, "d": 2}, None, "a, b: 1; c, d: 2"),
        ({"a": 1, "b": 2}, None, "a: 1; b: 2"),
        ({"a": 1, "b": None}, 1, "b: unknown"),
        ({"a": None, "b": None}, None, ""),
        ({}, None, ""),
    ],
)
def test_the_majority_value(
    values: dict[str, int | None], value: int | None, differences: str
) -> None:
    found = agreed(values)
    assert found.value == value
    assert found.differences == differences


def test_false_and_zero_are_values() -> None:
    assert agreed({"a": False, "b": False, "c": True}).value is False
    assert agreed({"a": 0, "b": 0, "c": None}).value == 0


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([], {}),
        ([None], {}),
        ([0, 5, None], {0: 0, 5: 5}),
        ([105, 100, 111, 110], {100: 100, 105: 100, 110: 100, 111: 111}),
    ],
)
def test_sizes_within_a_tenth_give_the_smallest(
    sizes: list[int | None], found: dict[int, int]
) -> None:
    assert alike(sizes) == found


def test_nodes_by_name() -> None:
    many = [f"node{i}" for i in range(12)]
    assert named(many).endswith("node7, and 4 more")
    assert where(many, 12) == "all 12 nodes"
    assert where(["node0"], 1) == "node0"
    assert where(["node0", "node2"], 3) == "2 of 3 nodes (node0, node2)"
