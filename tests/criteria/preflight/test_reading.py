"""What a survey reads of its machine: versions, directories, queues; and how facts travel."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.preflight import places
from pytest_mnode.criteria.preflight.facts import (
    NodeFacts,
    PathFacts,
    Place,
    Rail,
    Token,
    decode,
    encode,
    paired,
)
from tests.criteria.preflight.made import healthy


def test_facts_come_back_as_they_went_and_nothing_else_is_taken() -> None:
    facts = healthy().nodes[1].facts
    paths = healthy().nodes[1].paths
    assert decode(NodeFacts, encode(facts)) == facts
    assert decode(PathFacts, encode(paths)) == paths
    for bad in (
        "",
        "{}",
        '{"hostname": 3}',
        encode(facts).replace('"tcp_port":4000', '"tcp_port":"4"'),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  pydantic's own words
            decode(NodeFacts, bad)
    with pytest.raises(ValueError, match="Unexpected"):
        decode(NodeFacts, encode(facts)[:-1] + ',"more":1}')


def _rails(*names: str) -> tuple[Rail, ...]:
    return tuple(Rail(name, "10.0.0.1", 1, 2) for name in names)


def test_rails_are_paired_by_name_else_by_place() -> None:
    def names(mine: tuple[Rail, ...], theirs: tuple[Rail, ...]) -> list[tuple[str, str]]:
        return [(a.interface, b.interface) for a, b in paired(mine, theirs)]

    assert names(_rails("a", "b", "c"), _rails("a", "c")) == [("a", "a"), ("c", "c")]
    assert names(_rails("ens1", "ens2"), _rails("eth4", "eth5")) == [
        ("ens1", "eth4"),
        ("ens2", "eth5"),
    ]
    assert names(_rails(), _rails("a")) == []


def _visit(path: Path, **changes: object) -> tuple[list[Token], object]:
    noted: list[Token] = []
    place = Place("checkpoints", str(path), **changes)  # type: ignore[arg-type]
    return noted, places.visit(place, "ab" * 8, 3, noted.append)


def test_a_place_is_read_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).write_text(name)
    noted, facts = _visit(tmp_path, writable=True, sample_files=2, sample_bytes=10)
    assert facts.problem == facts.write_problem == ""  # type: ignore[attr-defined]
    assert [s.name for s in facts.samples] == ["a", "b"]  # type: ignore[attr-defined]
    [token] = noted
    assert [s.problem for s in places.seen([token], 0)] == [""]
    places.remove(token)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "sub"]


def test_what_is_wrong_with_a_place_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _visit(tmp_path / "missing")[1].problem == "not there"  # type: ignore[attr-defined]
    (tmp_path / "file").touch()
    assert _visit(tmp_path / "file")[1].problem == "not a directory"  # type: ignore[attr-defined]
    monkeypatch.setattr(places, "_SEEN_LIMIT_S", 0.0)
    token = Token("checkpoints", 1, str(tmp_path / "gone"), "x")
    assert places.seen([token], 0)[0].problem == "no such file or directory"
    (tmp_path / "gone").write_text("y")
    assert places.seen([token], 0)[0].problem == "holds something else"
    assert places.seen([token], 1) == ()


@pytest.mark.parametrize(
    ("error", "user", "mount", "refuses"),
    [
        (errno.EACCES, 0, "nfs4 filer:/ckpt", True),
        (errno.EPERM, 0, "lustre mds@tcp:/fs", True),
        (errno.EACCES, 1000, "nfs4 filer:/ckpt", False),
        (errno.EACCES, 0, "ext4 /dev/sda1", False),
        (errno.EROFS, 0, "nfs4 filer:/ckpt", False),
        (errno.EACCES, 0, None, False),
    ],
)
@pytest.mark.parametrize("what", ["scandir", "open"])
def test_whether_it_is_root_that_a_file_server_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    what: str,
    error: int,
    user: int,
    mount: str | None,
    refuses: bool,
) -> None:
    def refused(*_args: object) -> object:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, what, refused)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(places, "file_system", lambda _: mount)
    facts: Any = _visit(tmp_path, writable=True)[1]
    monkeypatch.undo()
    assert (facts.problem or facts.write_problem) == os.strerror(error).lower()
    assert facts.refuses_root is refuses


def test_what_a_killed_survey_left_is_removed_later(tmp_path: Path) -> None:
    old, new = tmp_path / ".mnode-preflight-1-1", tmp_path / ".mnode-preflight-2-2"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    noted, _ = _visit(tmp_path, writable=True)
    places.remove(noted[0])
    assert [p.name for p in tmp_path.iterdir()] == [new.name]


def test_mounts_are_told_by_the_longest_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /data rw shared:1 - nfs4 filer:/data rw\n"
        "31 22 0:41 / /data\\040two rw - lustre mgs:/two rw\n"
        "cut\n"
    )
    assert places.file_system("/data/x", str(mounts)) == "nfs4 filer:/data"
    assert places.file_system("/data two/x", str(mounts)) == "lustre mgs:/two"
    assert places.file_system("/database", str(mounts)) == "ext4 /dev/sda1"
    assert places.file_system("/x", str(tmp_path / "missing")) is None
