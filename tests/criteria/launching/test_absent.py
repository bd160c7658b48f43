"""Who never came, in words."""

from __future__ import annotations

import pytest

from pytest_mnode.criteria.launching.gathering import Arrival, came_late, never_came

ONE_A_NODE = {rank: Arrival(f"node{rank}", 1) for rank in range(4)}
TWO_A_NODE = {rank: Arrival(f"node{rank // 2}", 2) for rank in range(4)}


@pytest.mark.parametrize(
    ("came", "line"),
    [
        (
            {r: c for r, c in ONE_A_NODE.items() if r != 3},
            "rank 3 of 4 never came within 30 s (ranks 0-2 on node0,node1,node2 did)",
        ),
        (
            {r: c for r, c in TWO_A_NODE.items() if r != 3},
            "rank 3 of 4 (node1) never came within 30 s (ranks 0-2 on node0,node1 did)",
        ),
        (
            {0: TWO_A_NODE[0]},
            "ranks 1-3 of 4 (node0) never came within 30 s (rank 0 on node0 did)",
        ),
        (
            {2: Arrival("node1", None)},
            "ranks 0-1,3 of 4 never came within 30 s (rank 2 on node1 did)",
        ),
        ({}, "ranks 0-3 of 4 never came within 30 s (nobody did)"),
    ],
)
def test_names_ranks_and_nodes(came: dict[int, Arrival], line: str) -> None:
    assert never_came(4, came, 30) == line


def test_names_who_came_twice() -> None:
    came = {0: ONE_A_NODE[0], 1: ONE_A_NODE[1]}
    line = never_came(3, came, 2.5, {1: "node1 (pid 7) and node2 (pid 9)"})
    assert line == (
        "rank 2 of 3 never came within 2.5 s (ranks 0-1 on node0,node1 did); rank 1 came twice, "
        "from node1 (pid 7) and node2 (pid 9): RANK must be different in every process"
    )


def test_where_all_came_nobody_is_named() -> None:
    assert never_came(4, ONE_A_NODE, 2) == "all 4 ranks came, but not all of them within 2 s"
    line = never_came(4, ONE_A_NODE, 2, {1: "a (pid 1) and b (pid 2)"})
    assert line.startswith("all 4 ranks came, but not all of them within 2 s; rank 1 came twice")


def test_who_came_late_is_told_what_was_said_of_it() -> None:
    before = never_came(4, {0: ONE_A_NODE[0], 1: ONE_A_NODE[1]}, 2)
    late = {2: ONE_A_NODE[2], 3: ONE_A_NODE[3]}
    assert came_late(4, late, before) == (
        "ranks 2-3 of 4 on node2,node3 came after the others had given up: "
        "ranks 2-3 of 4 never came within 2 s (ranks 0-1 on node0,node1 did)"
    )
