"""Records are read back bit by bit, whatever else the files contain."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.errors import MnodeError
from pytest_mnode.reference_job.records import (
    LINE,
    PARTS,
    CheckpointRecord,
    EndRecord,
    RecordFile,
    StartRecord,
    StepRecord,
    UnreadableRecord,
    Written,
    incarnation,
    read_records,
)

ORIGIN: dict[str, Any] = {
    **{"rank": 1, "world_size": 4, "node": "node1", "pid": 42, "incarnation": "0.0"}
}
START = StartRecord(
    **ORIGIN, time=10.0, loaded=6, loaded_from=2, saved_at=9.5, refused=("step-8: torn",)
)
STEP = StepRecord(
    **ORIGIN,
    step=7,
    epoch=1,
    samples=(3, 1, 2),
    loss=0.1 + 0.2,
    tokens=71,
    lr=1 / 3,
    rng="ab",
    began=10.0,
    ended=10.5,
    wall_s=0.5,
    parts=dict.fromkeys(PARTS, 0.1),
)
SAVED = CheckpointRecord(
    **ORIGIN, step=8, seconds=0.2, write_s=0.1, bytes=2048, begun=11.0, ended=11.2
)
END = EndRecord(**ORIGIN, steps=8, parameters="aa", optimiser="bb", lr=0.0, time=12.0)
ALL: list[Any] = [START, STEP, SAVED, END]


def _line(record: Written) -> str:
    return LINE.dump_json(record).decode()


def _file(directory: Path) -> RecordFile:
    return RecordFile(directory, rank=1, world_size=4, node="node1")


def test_written_records_are_read_back(tmp_path: Path) -> None:
    file = _file(tmp_path / "run" / "records")
    for record in ALL:
        file.append(record)
    file.close()
    assert read_records(tmp_path / "run") == ALL
    assert read_records(tmp_path / "run" / "records") == ALL


def test_each_record_is_stored_before_the_next_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: stored.append(os.fstat(fd).st_size))
    file = _file(tmp_path)
    sizes = []
    for record in ALL:
        file.append(record)
        sizes.append((tmp_path / "rank1.jsonl").stat().st_size)
    file.close()
    assert stored == sizes
    file = RecordFile(tmp_path, rank=2, world_size=4, node="", stored=False)
    file.append(END)
    file.close()
    assert stored == sizes


def test_a_server_that_does_not_store_a_record_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fdatasync", fails)
    file = _file(tmp_path)
    with pytest.raises(MnodeError, match="rank 1: no record written: Disk quota exceeded"):
        file.append(END)
    file.close()


def test_a_record_that_a_full_disk_cuts_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path)
    opened = file._file
    monkeypatch.setattr(
        file, "_file", Mock(wraps=opened, write=lambda line: opened.write(line[:40]))
    )
    with pytest.raises(MnodeError, match=r"rank 1: a record was cut at 40 of \d+ B"):
        file.append(END)
    file.close()
    assert opened.closed


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_a_number_is_read_back(tmp_path: Path, loss: float) -> None:
    (tmp_path / "rank0.jsonl").write_text(_line(replace(STEP, loss=loss)) + "\n")
    [step] = read_records(tmp_path)
    assert isinstance(step, StepRecord)
    assert str(step.loss) == str(loss)


def test_a_truncated_line_is_reported_and_the_next_incarnation_starts_a_new_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank1.jsonl"
    path.write_text(f"{_line(START)}\n{_line(STEP)[:40]}")
    first, torn = read_records(tmp_path)
    assert first == START
    assert isinstance(torn, UnreadableRecord)
    assert (torn.path, torn.line) == (str(path), 2)
    assert torn.reason.startswith("torn: ")
    file = _file(tmp_path)
    file.append(STEP)
    file.close()
    assert [one.kind for one in read_records(tmp_path)] == ["start", "unreadable", "step"]
    assert read_records(tmp_path)[2] == STEP


@pytest.mark.parametrize(
    "line",
    [
        *("\x00\xff", "[]", "null", "7", '"step"', "{}", '{"kind": "other"}', '{"kind": []}'),
        *('{"kind": "step"}', '{"kind": "end", "lr": 7}', "[" * 100_000, '{"kind": "start"'),
        _line(STEP).replace('"samples":[3,1,2]', '"samples":7'),
        _line(SAVED).replace('"bytes"', '"octets"'),
        _line(STEP).replace('"step":7', '"step":"7"'),
        _line(STEP).replace('"parts":{', '"parts":{"more":null,'),
        _line(END).replace('"lr":0.0', '"lr":"0.5"'),
        _line(STEP).replace(f'"loss":{STEP.loss}', '"loss":null'),
    ],
)
def test_no_content_raises(tmp_path: Path, line: str) -> None:
    content = f"{_line(START)}\n{line}\n{_line(END)}\n"
    (tmp_path / "rank1.jsonl").write_bytes(content.encode("latin-1"))
    before, bad, after = read_records(tmp_path)
    assert (before, after) == (START, END)
    assert isinstance(bad, UnreadableRecord)
    assert bad.line == 2
    assert "torn" not in bad.reason


def test_every_rank_is_read_in_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"rank{rank}.jsonl").write_text(
            _line(END).replace('"rank":1', f'"rank":{rank}') + "\n"
        )
    (tmp_path / "rank3.jsonl").mkdir()
    (tmp_path / "notes.txt").write_text("not ours")
    found = read_records(tmp_path)
    assert [one.rank for one in found if isinstance(one, EndRecord)] == [0, 2, 10]
    [directory] = [one for one in found if isinstance(one, UnreadableRecord)]
    assert "cannot be read" in directory.reason


def test_a_missing_directory_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "nowhere") == []


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank1.jsonl").symlink_to("/dev/full")
    file = _file(tmp_path)
    with pytest.raises(MnodeError, match="rank 1: no record written: No space left on device"):
        file.append(END)
    file.close()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file")
    with pytest.raises(MnodeError, match=r"rank1.jsonl: records cannot be written: (File|Not)"):
        _file(tmp_path / "records")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "0.0"),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, "0.2"),
        ({"TORCHELASTIC_RESTART_COUNT": "0", "MNODE_REQUEUE": "1"}, "1.0"),
    ],
)
def test_incarnations_of_a_run_have_different_names(env: dict[str, str], expected: str) -> None:
    assert incarnation(env) == expected
