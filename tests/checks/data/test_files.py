"""Files that ranks read of one data set, the same or not."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.checks.data import At, Digests, judge_files, read_files


def read(*ranks: dict[str, str]) -> list[Digests]:
    return [Digests(At(rank, f"node{rank}"), files) for rank, files in enumerate(ranks)]


def test_heads_of_the_first_files(tmp_path: Path) -> None:
    for name, text in (("a.bin", "same"), ("b.bin", "other"), ("c.bin", "third")):
        (tmp_path / name).write_text(text)
    one = read_files(At(0, "node0"), str(tmp_path), 2, 3)
    assert sorted(one.digests) == ["a.bin", "b.bin"]
    (tmp_path / "a.bin").write_text("samE")  # behind the head that is read
    assert read_files(At(0, "node0"), str(tmp_path), 2, 3).digests == one.digests
    (tmp_path / "a.bin").write_text("Same")
    assert read_files(At(0, "node0"), str(tmp_path), 2, 3).digests != one.digests
    assert read_files(At(1, "node1"), str(tmp_path / "none"), 2, 3).problem == "not there"


def test_the_odd_one_is_named() -> None:
    able, same = judge_files("/data", read({"a": "1"}, {"a": "1"}, {"a": "2"}))
    assert able.passed
    assert same.culprit == "rank 2 on node2 reads a as 2"
    assert judge_files("", read({"a": "1"}, {"a": "1"}))[1].passed
    tied = judge_files("", read({"a": "1"}, {"b": "2"}))[1]
    assert tied.value == 4


def test_a_rank_that_cannot_read_and_nothing_to_read() -> None:
    gone = Digests(At(2, "node2"), {}, "permission denied")
    able, same = judge_files("/data", [*read({"a": "1"}, {"a": "1"}), gone])
    assert able.culprit == "rank 2 on node2: permission denied"
    assert same.passed
    assert judge_files("", read({}, {}))[1].value is None
    assert judge_files("", read({"a": "1"}))[1].value is None
