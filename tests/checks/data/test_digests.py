"""Digests of ranks: equal or different random numbers, and differing files of a data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.data import (
    At,
    Digests,
    judge_alike,
    judge_depends,
    judge_distinct,
    judge_files,
    judge_reproduced,
    read_files,
)


def drawn(*ranks: dict[str, str]) -> list[Digests]:
    return [Digests(At(rank, f"node{rank}"), digests) for rank, digests in enumerate(ranks)]


def test_different_digests_pass() -> None:
    right = drawn({"torch": "a", "numpy": "b"}, {"torch": "c", "numpy": "d"})
    assert judge_distinct("", right).passed
    # Generators of different kinds may draw numbers that look equal.
    same = drawn({"torch": "a", "numpy": "a"}, {"torch": "b", "numpy": "c"})
    assert judge_distinct("", same).passed


def test_equal_seeds_are_named() -> None:
    found = judge_distinct("", drawn({"torch": "a"}, {"torch": "b"}, {"torch": "a"}))
    assert (found.value, found.culprit) == (
        2,
        "rank 0 on node0, rank 2 on node2: the same from torch",
    )
    same = {"torch": "a", "numpy": "b"}
    assert judge_distinct("", drawn(same, same)).culprit == (
        "all 2 ranks: the same from torch, numpy"
    )


def test_loader_workers_have_different_seeds() -> None:
    first = {"torch": "a", "worker 0: torch": "b", "worker 1: torch": "b"}
    second = {"torch": "c", "worker 0: torch": "d", "worker 1: torch": "e"}
    assert judge_distinct("", drawn(first, second)).culprit == (
        "rank 0 on node0, worker 0; rank 0 on node0, worker 1: the same from torch"
    )
    found = judge_distinct("", drawn({"worker 0: torch": "a"}, {"worker 0: torch": "a"}))
    assert found.culprit == "all 2 ranks: worker 0, the same from torch"
    own = judge_distinct("", drawn({"torch": "a", "worker 0: torch": "a"}, {"torch": "b"}))
    assert own.culprit == "rank 0 on node0; rank 0 on node0, worker 0: the same from torch"


def test_one_rank_alone_does_not_pass() -> None:
    assert judge_distinct("", drawn({"torch": "a"})).value is None
    assert judge_distinct("", drawn({}, {})).value is None


def test_a_second_run_must_draw_the_same() -> None:
    first = drawn({"torch": "a", "numpy": "b"}, {"torch": "c", "numpy": "d"})
    assert judge_reproduced("", first, first).passed
    other = drawn({"torch": "a", "numpy": "b"}, {"torch": "c", "numpy": "x"})
    assert judge_reproduced("", first, other).culprit == "rank 1 on node1: others from numpy"
    for gone in (judge_reproduced("", first, first[:1]), judge_reproduced("", first[:1], first)):
        assert (gone.value, gone.culprit) == (None, None)
        assert gone.note.startswith("rank 1 on node1: not in both runs; ")
    assert judge_reproduced("", first, []).value is None
    assert judge_reproduced("", [], first).value is None


def test_another_seed_must_draw_other_numbers() -> None:
    first = drawn({"torch": "a", "numpy": "b"}, {"torch": "c", "numpy": "d"})
    other = drawn({"torch": "e", "numpy": "f"}, {"torch": "g", "numpy": "h"})
    assert judge_depends("", first, other).passed
    stuck = judge_depends("", first, drawn({"torch": "e", "numpy": "b"}, {"numpy": "d"}))
    assert stuck.culprit == "all 2 ranks: the same from numpy"


def test_ranks_that_drew_no_numbers_are_named() -> None:
    both, one = {"torch": "a", "numpy": "b"}, {"torch": "c"}
    found = judge_distinct("", drawn(both, one))
    assert (found.value, found.note) == (
        None,
        "rank 1 on node1: drew nothing from numpy; torch, numpy",
    )
    assert judge_distinct("", drawn(both, {"torch": "a"})).value == 2
    for other in (drawn({}, {}), drawn(both, {})):
        assert judge_reproduced("", drawn(both, both), other).value is None
    assert judge_reproduced("", drawn({}, {}), drawn({}, {})).note == "no rank drew anything"
    assert judge_depends("", drawn({}, {}), drawn({}, {})).note == "no rank drew anything"
    # Another seed gives other numbers: missing numbers are not other numbers.
    found = judge_depends("", drawn(both, one), drawn({"torch": "x", "numpy": "y"}, {}))
    assert (found.value, found.note) == (
        None,
        "rank 1 on node1: drew nothing from torch, numpy; torch, numpy",
    )
    elsewhere = [Digests(At(7, "node7"), {"torch": "e", "numpy": "f"})]
    found = judge_depends("", drawn(both, both), elsewhere)
    assert found.value is None
    assert found.note == "all 3 ranks: not in both runs; torch, numpy"
    # A wrong digest fails, whatever else is missing.
    stuck = judge_depends("", drawn(both, one), drawn(both, {}))
    assert (stuck.value, stuck.culprit) == (2, "rank 0 on node0: the same from torch, numpy")


def test_the_beginnings_of_the_first_files_are_read(tmp_path: Path) -> None:
    for name, text in (("a.bin", "same"), ("b.bin", "other"), ("c.bin", "third")):
        (tmp_path / name).write_text(text)
    one = read_files(At(0, "node0"), str(tmp_path), 2, 3)
    assert sorted(one.digests) == ["a.bin", "b.bin"]
    (tmp_path / "a.bin").write_text("samE")  # after the part that is read
    assert read_files(At(0, "node0"), str(tmp_path), 2, 3).digests == one.digests
    (tmp_path / "a.bin").write_text("Same")
    assert read_files(At(0, "node0"), str(tmp_path), 2, 3).digests != one.digests
    assert read_files(At(1, "node1"), str(tmp_path / "none"), 2, 3).problem == "not there"


def test_the_differing_rank_is_named() -> None:
    able, same = judge_files("/data", drawn({"a": "1"}, {"a": "1"}, {"a": "2"}))
    assert able.passed
    assert same.culprit == "rank 2 on node2 reads a as 2"
    assert judge_files("", drawn({"a": "1"}, {"a": "1"}))[1].passed
    tied = judge_files("", drawn({"a": "1"}, {"b": "2"}))[1]
    assert tied.value == 4


def test_a_rank_that_cannot_read_and_nothing_to_read() -> None:
    gone = Digests(At(2, "node2"), {}, "permission denied")
    able, same = judge_files("/data", [*drawn({"a": "1"}, {"a": "1"}), gone])
    assert able.culprit == "rank 2 on node2: permission denied"
    assert same.passed
    assert judge_files("", drawn({}, {}))[1].value is None
    assert judge_files("", drawn({"a": "1"}))[1].value is None


@pytest.mark.parametrize(
    ("ranks", "value", "nodes", "either"),
    [
        ([{"torch": "a", "numpy": "b"}] * 3, 0, (), ()),
        ([{"torch": "a"}, {"torch": "a"}, {"torch": "c"}], 1, ("node2",), ()),
        ([{"torch": "a"}, {"torch": "a"}, {}], 1, ("node2",), ()),
        ([{"torch": "a"}, {"torch": "c"}], 2, (), (("node0",), ("node1",))),
        ([{"torch": "a"}], None, (), ()),
        ([{}, {}], None, (), ()),
    ],
)
def test_digests_unlike_those_of_most_ranks_are_named(
    ranks: list[dict[str, str]], value: int | None, nodes: tuple[str, ...], either: object
) -> None:
    found = judge_alike("seeds", drawn(*ranks), "one seed", "draws")
    assert found.value == value
    if (culprit := found.culprit) is None:
        assert (nodes, either) == ((), ())
    else:
        assert tuple(sorted(culprit.nodes)) == nodes
        assert tuple(sorted(map(tuple, culprit.either))) == either
        assert not nodes or culprit.startswith("rank 2 on node2 draws torch as ")
