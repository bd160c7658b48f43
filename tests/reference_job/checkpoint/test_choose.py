"""What ranks agree on, who reads what, and what goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.reference_job.checkpoint.choose import Seen, choose, outdated, shares
from pytest_mnode.reference_job.checkpoint.names import step_name

NODES = ["node0", "node0", "node1", "node1"]
A, B = "step-00000010", "step-00000020"
GOOD, OTHER = Seen("aa", None), Seen("bb", None)
TORN = Seen(None, "x is missing")


def test_the_newest_that_all_see_first() -> None:
    choice = choose([{B: GOOD, A: GOOD}] * 4, NODES)
    assert (choice.candidates, choice.refused) == ((B, A), {})
    assert choice.settled


def test_nothing_there_is_nothing_to_wait_for() -> None:
    choice = choose([{}] * 4, NODES)
    assert (choice.candidates, choice.refused, choice.settled) == ((), {}, True)


@pytest.mark.parametrize(
    ("of_b", "reason", "disputed"),
    [
        ([TORN] * 4, "x is missing", False),
        (
            [GOOD, GOOD, None, None],
            "ranks 2-3 of 4 on node1 do not see it: "
            "a file system that is stale, or not the one that all nodes share",
            True,
        ),
        (
            [None, GOOD, GOOD, GOOD],
            "rank 0 of 4 on node0 does not see it: "
            "a file system that is stale, or not the one that all nodes share",
            True,
        ),
        ([GOOD, GOOD, TORN, GOOD], "rank 2 of 4 on node1: x is missing", True),
        ([TORN, TORN, None, None], "x is missing", False),
        (
            [TORN, Seen(None, "torn"), TORN, TORN],
            "ranks 0,2-3 of 4 on node0,node1: x is missing; rank 1 of 4 on node0: torn",
            False,
        ),
        (
            [GOOD, GOOD, GOOD, OTHER],
            "rank 3 of 4 on node1 sees another one than rank 0 on node0: "
            "a file system that is stale, or not the one that all nodes share",
            True,
        ),
    ],
)
def test_ranks_that_see_other_things_are_named(
    of_b: list[Seen | None], reason: str, disputed: bool
) -> None:
    views = [{A: GOOD} | ({} if seen is None else {B: seen}) for seen in of_b]
    choice = choose(views, NODES)
    assert choice.candidates == (A,)
    assert choice.refused == {B: reason}
    assert choice.disputed == (frozenset({B}) if disputed else frozenset())
    assert choice.settled is not disputed


def test_a_dispute_over_an_older_one_changes_nothing() -> None:
    choice = choose([{B: GOOD, A: GOOD}, {B: GOOD}], NODES[:2])
    assert choice.candidates == (B,)
    assert choice.settled


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, 1000), max_size=30),
    st.integers(1, 9),
)
def test_every_file_is_read_once_and_the_work_is_shared(sizes: dict[str, int], ranks: int) -> None:
    found = shares(sizes, ranks)
    assert len(found) == ranks
    assert sorted(name for share in found for name in share) == sorted(sizes)
    work = [sum(sizes[name] + 1 for name in share) for share in found]
    assert max(work) - min(work) <= max(sizes.values(), default=0) + 1


@pytest.mark.parametrize(
    ("complete", "damaged", "keep", "gone"),
    [
        ([10, 20, 30], [], 2, [10]),
        ([10, 20, 30], [], 1, [10, 20]),
        ([10, 20, 30], [], 3, []),
        ([30], [], 1, []),
        ([10, 20, 30], [20], 2, []),  # 10 is the last good one before
        ([5, 10, 20, 30], [20], 2, [5]),
        ([10, 20, 30], [20], 1, [10, 20]),
        ([20, 30], [10], 2, [10]),  # damaged and older than all that are kept
        ([20, 30], [10], 3, []),
        ([10, 30, 40, 50], [], 1, [10]),  # those of later steps are another job's to judge
        ([10, 30], [40], 2, []),
    ],
)
def test_old_ones_go_and_the_last_good_one_never(
    complete: list[int], damaged: list[int], keep: int, gone: list[int]
) -> None:
    names = outdated(
        [step_name(s) for s in complete], {step_name(s) for s in damaged}, step_name(30), keep
    )
    assert names == [step_name(s) for s in gone]


def test_what_was_replaced_goes_once_the_new_one_is_complete() -> None:
    old = f"{B}.replaced-00000000"
    assert outdated([A, old, B], [], B, 2) == [old]
    assert outdated([A, old, step_name(30)], [], step_name(30), 2) == [A]
    assert outdated([A, old, step_name(30)], [B], step_name(30), 2) == [A]


@given(
    st.sets(st.integers(0, 9), max_size=8),
    st.sets(st.integers(0, 9), max_size=4),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_always_kept(complete: set[int], damaged: set[int], saved: int, keep: int) -> None:
    damaged -= {saved}
    names = {step_name(s) for s in complete | {saved}}
    gone = outdated(names, {step_name(s) for s in damaged}, step_name(saved), keep)
    left = sorted(names - set(gone) - {step_name(s) for s in damaged})
    older = [n for n in left if n <= step_name(saved)]
    had = len({s for s in complete - damaged if s < saved})
    assert step_name(saved) in left
    assert len(older) == 1 + min(had, keep - 1)
    assert len(set(gone)) == len(gone)
