"""What a survey reads of its machine: versions, directories, queues; and how facts travel."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.preflight import directories
from pytest_mnode.criteria.preflight.answers import (
    NodeFacts,
    PathFacts,
    Rail,
    Token,
)
from pytest_mnode.criteria.preflight.orders import Directory
from pytest_mnode.criteria.preflight.tcp import paired
from pytest_mnode.machine.encoding import decode, encode
from pytest_mnode.machine.mounts import Mount
from tests.criteria.preflight.made import healthy


def test_facts_come_back_as_they_went_and_nothing_else_is_taken() -> None:
    facts = healthy().nodes[1].facts
    paths = healthy().nodes[1].paths
    assert decode(NodeFacts, encode(facts)) == facts
    assert decode(PathFacts, encode(paths)) == paths
    for bad in (
        "",
        "{}",
        '{"tcp_port": 3}',
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
    directory = Directory("checkpoints", str(path), **changes)  # type: ignore[arg-type]
    return noted, directories.visit(directory, "ab" * 8, 3, noted.append)


def test_a_place_is_read_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).write_text(name)
    noted, facts = _visit(tmp_path, writable=True, sample_files=2, sample_bytes=10)
    assert facts.problem == facts.write_problem == ""  # type: ignore[attr-defined]
    assert [s.name for s in facts.samples] == ["a", "b"]  # type: ignore[attr-defined]
    [token] = noted
    assert [s.problem for s in directories.seen([token], 0)] == [""]
    directories.remove(token)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "sub"]


def test_what_is_wrong_with_a_place_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _visit(tmp_path / "missing")[1].problem == "not there"  # type: ignore[attr-defined]
    (tmp_path / "file").touch()
    assert _visit(tmp_path / "file")[1].problem == "not a directory"  # type: ignore[attr-defined]
    monkeypatch.setattr(directories, "_SEEN_LIMIT_S", 0.0)
    token = Token("checkpoints", 1, str(tmp_path / "gone"), "x")
    assert directories.seen([token], 0)[0].problem == "no such file or directory"
    (tmp_path / "gone").write_text("y")
    assert directories.seen([token], 0)[0].problem == "holds something else"
    assert directories.seen([token], 1) == ()


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
    kind, _, source = (mount or "").partition(" ")
    of_path = Mount("/", kind, source, writable=True) if mount else None
    monkeypatch.setattr(directories, "_mount", lambda _: of_path)
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
    directories.remove(noted[0])
    assert [p.name for p in tmp_path.iterdir()] == [new.name]
