"""Files that ranks map: their room is reserved, so that a full disk is an error that names it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pytest_mnode.protocol.rank_files import new_map


def refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_its_room_is_reserved(tmp_path: Path) -> None:
    mapped = new_map(tmp_path / "rank0.calls", 70_000)
    assert bytes(mapped[-4:]) == bytes(4)
    assert (tmp_path / "rank0.calls").stat().st_blocks * 512 >= 70_000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: int) -> None:
        raise refuse(number)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"free some space there, or set TMPDIR.*rank0\.calls"):
        new_map(tmp_path / "rank0.calls", 4096)


def test_a_file_system_that_cannot_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: int) -> None:
        raise refuse(errno.EOPNOTSUPP)

    monkeypatch.setattr(os, "posix_fallocate", unable)
    assert len(new_map(tmp_path / "rank0.calls", 4096)) == 4096
