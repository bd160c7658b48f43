"""`meet` in forked ranks, and the error lines that name absent ranks."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from pytest_mnode.criteria.launching.meeting import Arrival, came_late, never_came
from tests import warm

Outcomes = list[tuple[str, float]]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcomes]:
    """Result of each rank of each meeting, with its seconds."""
    argv = [sys.executable, "-m", "tests.criteria.launching.meetings"]
    status, printed = warm.run(argv, warm.ROOT, os.environ, 120)
    assert status == 0, printed
    found: dict[str, Outcomes] = json.loads(printed.splitlines()[-1])
    return found


def texts(outcomes: Outcomes) -> list[str]:
    return [re.sub(r"pid \d+", "pid N", re.sub(r":\d+ ", ":PORT ", text)) for text, _ in outcomes]


@pytest.mark.parametrize(
    ("meeting", "times"),
    [
        ("all", 2),
        ("in the same store", 2),
        ("after a meeting that never ended", 1),
        ("after a meeting that failed", 1),
        ("after rank 0 was late", 1),
        ("after rank 3 was late", 1),
    ],
)
def test_all_meet_and_the_group_has_the_default_timeout(
    outcomes: dict[str, Outcomes], meeting: str, times: int
) -> None:
    """Keys that killed or late ranks left in a kept store do not count."""
    assert texts(outcomes[meeting]) == [" ".join(["sum 4 limit 1800"] * times)] * 4
    assert texts(outcomes["killed while waiting"]) == ["killed"] * 3


@pytest.mark.parametrize(
    ("meeting", "ranks", "line"),
    [
        ("one absent", 3, r"rank 2 of 4 \(\S+\) never came within 12 s \(ranks 0-1,3 on \S+ did"),
        ("rank 0 absent, store kept", 3, r"rank 0 of 4 \(\S+\) never .*\(ranks 1-3 on \S+ did"),
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


CONTRACT = "EnvironmentContractError: "


@pytest.mark.parametrize(
    ("meeting", "line"),
    [
        (
            "store absent",
            r"TimeLimitError: rank 1 of 4 on \S+ could not reach the store at 127.0.0.1:PORT "
            r"within 12 s: connection refused; rank 0 hosts the store: it may be absent, or the",
        ),
        ("unknown name", r"TimeLimitError: .*'no-such-node.invalid' cannot be resolved \("),
        ("store lost", r"WorldError: rank 1 of 4 on \S+ lost the store while it waited"),
        ("wrong port", CONTRACT + "MASTER_PORT='29x' is not a number$"),
        ("too high a port", CONTRACT + "MASTER_PORT=99999 is not a port; accepted: 1"),
        ("too low a port", CONTRACT + "MASTER_PORT=-1 is not a port; accepted: 1 to"),
        ("outside", CONTRACT + "RANK=4 is outside WORLD_SIZE=4$"),
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


def test_clients_of_a_store_leave_no_file_or_thread_open(outcomes: dict[str, Outcomes]) -> None:
    assert texts(outcomes["clients of a store"]) == ["8 clients, errors (), 0 left"]


ONE_A_NODE = {rank: Arrival(f"node{rank}", 1) for rank in range(4)}
TWO_A_NODE = {rank: Arrival(f"node{rank // 2}", 2) for rank in range(4)}


def first_three(came: dict[int, Arrival]) -> dict[int, Arrival]:
    return {rank: came[rank] for rank in range(3)}


TWICE = {1: "node1 (pid 7) and node2 (pid 9)"}


@pytest.mark.parametrize(
    ("came", "twice", "line"),
    [
        (first_three(ONE_A_NODE), {}, "rank 3 of 4 {}ranks 0-2 on node0,node1,node2 did)"),
        (first_three(TWO_A_NODE), {}, "rank 3 of 4 (node1) {}ranks 0-2 on node0,node1 did)"),
        ({0: TWO_A_NODE[0]}, {}, "ranks 1-3 of 4 (node0) {}rank 0 on node0 did)"),
        ({2: Arrival("node1", None)}, {}, "ranks 0-1,3 of 4 {}rank 2 on node1 did)"),
        ({}, {}, "ranks 0-3 of 4 {}nobody did)"),
        (
            {rank: ONE_A_NODE[rank] for rank in (0, 1, 3)},
            TWICE,
            "rank 2 of 4 {}ranks 0-1,3 on node0,node1,node3 did); rank 1 came twice, "
            "from node1 (pid 7) and node2 (pid 9): RANK must be different in every process",
        ),
        (ONE_A_NODE, {}, "all 4 ranks came, but not all of them within 2.5 s"),
    ],
)
def test_absent_ranks_are_named_with_their_nodes(
    came: dict[int, Arrival], twice: dict[int, str], line: str
) -> None:
    assert never_came(4, came, 2.5, twice) == line.format("never came within 2.5 s (")


def test_if_all_ranks_came_one_that_came_twice_is_named() -> None:
    line = never_came(4, ONE_A_NODE, 2, TWICE)
    assert line.startswith("all 4 ranks came, but not all of them within 2 s; rank 1 came twice")


def test_the_line_of_late_ranks() -> None:
    late = {2: ONE_A_NODE[2], 3: ONE_A_NODE[3]}
    line = "ranks 2-3 of 4 on node2,node3 came after the others had given up: the line before"
    assert came_late(4, late, "the line before") == line
