"""`meet` in forked ranks, and the error lines that name absent ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.criteria.launching.gathering import Arrival, came_late, never_came

Outcomes = list[tuple[str, float]]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcomes]:
    """Result of each rank of each meeting, with its seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.criteria.launching.meetings"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Outcomes] = json.loads(done.stdout)
    return found


def texts(outcomes: Outcomes) -> list[str]:
    return [re.sub(r"pid \d+", "pid N", re.sub(r":\d+ ", ":PORT ", text)) for text, _ in outcomes]


def test_all_meet_and_the_group_has_the_default_timeout(outcomes: dict[str, Outcomes]) -> None:
    assert texts(outcomes["all"]) == ["sum 4 limit 1800 sum 4 limit 1800"] * 4


def test_keys_of_killed_ranks_in_a_kept_store_do_not_count(outcomes: dict[str, Outcomes]) -> None:
    assert texts(outcomes["killed while waiting"]) == ["killed"] * 3
    assert texts(outcomes["in the same store"]) == ["sum 4 limit 1800 sum 4 limit 1800"] * 4
    assert texts(outcomes["after a meeting that never ended"]) == ["sum 4 limit 1800"] * 4
    assert texts(outcomes["after a meeting that failed"]) == ["sum 4 limit 1800"] * 4


@pytest.mark.parametrize(
    ("meeting", "ranks", "line"),
    [
        ("one absent", 3, r"rank 2 of 4 \(\S+\) never came within 5 s \(ranks 0-1,3 on \S+ did"),
        (
            "rank 0 absent, store kept",
            3,
            r"rank 0 of 4 \(\S+\) never came .*\(ranks 1-3 on \S+ did",
        ),
        ("rank 1 twice", 4, r"rank 2 .*; rank 1 came twice, from \S+ \(pid N\) and \S+ \(pid N\)"),
    ],
)
def test_every_rank_names_the_absent_one(
    outcomes: dict[str, Outcomes], meeting: str, ranks: int, line: str
) -> None:
    found = texts(outcomes[meeting])
    assert len(found) == ranks
    assert len(set(found)) == 1
    assert re.match(f"TimeLimitError: {line}", found[0]), found[0]
    assert all(seconds < 45 for _, seconds in outcomes[meeting])


@pytest.mark.parametrize(("rank", "others"), [(0, "1-3"), (3, "0-2")])
def test_a_late_rank_gets_the_error_of_the_others(
    outcomes: dict[str, Outcomes], rank: int, others: str
) -> None:
    before = texts(outcomes[f"rank {rank} late, others before"])[0]
    assert re.match(rf"TimeLimitError: rank {rank} of 4 .*never came .*\(ranks {others} on", before)
    [late] = texts(outcomes[f"rank {rank} late"])
    error = before.removeprefix("TimeLimitError: ")
    who = rf"TimeLimitError: rank {rank} of 4 on \S+ came after the others had given up: "
    assert re.fullmatch(who + re.escape(error), late), late


def test_all_meet_after_a_late_rank(outcomes: dict[str, Outcomes]) -> None:
    for meeting in ("in time again", "after one that was late"):
        assert texts(outcomes[meeting]) == ["sum 4 limit 1800"] * 4


@pytest.mark.parametrize(
    ("meeting", "line"),
    [
        (
            "store absent",
            r"TimeLimitError: rank 1 of 4 on \S+ could not reach the store at 127.0.0.1:PORT "
            r"within 5 s: connection refused; rank 0 hosts the store: it may be absent, or the",
        ),
        ("unknown name", r"TimeLimitError: .*'no-such-node.invalid' cannot be resolved \("),
        ("store lost", r"WorldError: rank 1 of 4 on \S+ lost the store while it waited"),
        ("wrong port", r"EnvironmentContractError: MASTER_PORT='29x' is not a number$"),
        (
            "too high a port",
            r"EnvironmentContractError: MASTER_PORT=99999 is not a port; accepted: 1",
        ),
        (
            "too low a port",
            r"EnvironmentContractError: MASTER_PORT=-1 is not a port; accepted: 1 to",
        ),
        ("outside", r"EnvironmentContractError: RANK=4 is outside WORLD_SIZE=4$"),
    ],
)
def test_errors_name_the_cause(outcomes: dict[str, Outcomes], meeting: str, line: str) -> None:
    first = texts(outcomes[meeting])[0]
    assert re.match(line, first), first


def test_two_processes_with_rank_0(outcomes: dict[str, Outcomes]) -> None:
    assert any("could not host the store" in text for text in texts(outcomes["rank 0 twice"]))
    kept = texts(outcomes["rank 0 twice, store kept"])
    assert sum("another process joined as rank 0" in text for text in kept) == 1, kept
    assert sum("rank 3 of 4" in text and "never came" in text for text in kept) == 3, kept


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
def test_absent_ranks_are_named_with_their_nodes(came: dict[int, Arrival], line: str) -> None:
    assert never_came(4, came, 30) == line


def test_a_rank_that_came_twice() -> None:
    came = {0: ONE_A_NODE[0], 1: ONE_A_NODE[1]}
    line = never_came(3, came, 2.5, {1: "node1 (pid 7) and node2 (pid 9)"})
    assert line == (
        "rank 2 of 3 never came within 2.5 s (ranks 0-1 on node0,node1 did); rank 1 came twice, "
        "from node1 (pid 7) and node2 (pid 9): RANK must be different in every process"
    )


def test_if_all_ranks_came_no_rank_is_named() -> None:
    assert never_came(4, ONE_A_NODE, 2) == "all 4 ranks came, but not all of them within 2 s"
    line = never_came(4, ONE_A_NODE, 2, {1: "a (pid 1) and b (pid 2)"})
    assert line.startswith("all 4 ranks came, but not all of them within 2 s; rank 1 came twice")


def test_the_line_of_a_late_rank() -> None:
    before = never_came(4, {0: ONE_A_NODE[0], 1: ONE_A_NODE[1]}, 2)
    late = {2: ONE_A_NODE[2], 3: ONE_A_NODE[3]}
    assert came_late(4, late, before) == (
        "ranks 2-3 of 4 on node2,node3 came after the others had given up: "
        "ranks 2-3 of 4 never came within 2 s (ranks 0-1 on node0,node1 did)"
    )


def test_clients_of_a_store_leave_no_file_or_thread_open(outcomes: dict[str, Outcomes]) -> None:
    assert texts(outcomes["clients of a store"]) == ["8 clients, errors (), 0 left"]
