"""Files that a survey writes to shared directories, and leftovers of others that it removes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight import directories
from pytest_mnode.criteria.preflight.answers import Directory, Token


def test_recent_files_are_kept_if_clocks_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, stale = (tmp_path / f".mnode-preflight-{name}" for name in ("fresh-1", "stale-1"))
    fresh.touch()
    stale.touch()
    now = time.time()
    os.utime(stale, (now - 7200, now - 7200))
    # This node's clock is hours ahead of the file server's, which sets the times of files.
    monkeypatch.setattr("time.time", lambda: now + 7200)
    order = Directory("checkpoints", str(tmp_path), writable=True, sample_files=0)
    found = directories.visit(order, "run", 0, lambda _: None)
    assert found.token is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".mnode-preflight-fresh-1",
        Path(found.token.path).name,
    ]


def test_temporary_files_are_written_where_programs_of_the_node_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Directory("temporary files", "", writable=True)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left: list[Token] = []
    found = directories.visit(order, "run", 0, left.append)
    assert (found.path, found.write_problem, found.token) == (str(tmp_path), "", left[0])
    assert list(tmp_path.iterdir()) == [Path(left[0].path)]
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    assert directories.visit(order, "run", 0, left.append).problem == "not there"
