"""The file of a run's evidence: each line is one whole row, and a torn last one is ignored."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.file import (
    BEGAN,
    END,
    NAME,
    RECORD,
    ROWS,
    TORN,
    EvidenceFile,
    read,
    record_rows,
    rows_from_json,
    rows_to_json,
)
from pytest_mnode.evidence.row import Row, row

EVERYTHING = Row(
    metric="rate",
    value=171.5,
    unit="Gbit/s",
    node="node1",
    rank=0,
    device="mlx5_3",
    peer="node2",
    size_bytes=1 << 30,
    communicator=0,
    repeat=2,
    time_s=1764354000.25,
)
ROWS_OF_A_CHECK = [
    EVERYTHING,
    row("driver", "550.90", node="node0"),
    row("errors", 0, node="node0"),
    row("clock", why="no such file", node="node0"),
    row("é\udcff", "\n"),
]


@pytest.fixture
def evidence(tmp_path: Path) -> EvidenceFile:
    return EvidenceFile(tmp_path / "new" / "report")


def test_each_row_is_in_the_file_before_the_next_is_made(evidence: EvidenceFile) -> None:
    """A controller that is killed loses none: nothing waits in a buffer of the process."""
    for number in range(3):
        evidence.append(BEGAN, {"test": f"test {number}"})
        found = [one["test"] for one in read(evidence.path)]
        assert found == [f"test {n}" for n in range(number + 1)]


def test_rows_of_checks_are_read_back_as_they_were(evidence: EvidenceFile) -> None:
    evidence.append(ROWS, *rows_to_json("preflight.it", ROWS_OF_A_CHECK))
    found = [rows_from_json(values) for values in read(evidence.path)]
    assert [check for check, _ in found] == ["preflight.it"] * len(ROWS_OF_A_CHECK)
    *others, odd = [one for _, one in found]
    assert others == ROWS_OF_A_CHECK[:-1]
    assert (odd.metric, odd.value) == ("é?", "\n")  # no encoding has a lone surrogate


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_lacks_is_a_reason(value: float) -> None:
    [plain] = rows_to_json("it", [row("rate", value)])
    assert rows_from_json(plain)[1] == row("rate", why=f"read {value}")


def test_wherever_the_file_ends_rows_that_were_flushed_are_read(evidence: EvidenceFile) -> None:
    """A torn last row is ignored; no other is lost."""
    whole = {evidence.path.stat().st_size: 0}
    for number in range(4):
        evidence.append(BEGAN, {"test": f"test {number}"})
        whole[evidence.path.stat().st_size] = number + 1
    content = evidence.path.read_bytes()
    for length in range(min(whole), len(content) + 1):
        evidence.path.write_bytes(content[:length])
        found = [one.get("test") for one in read(evidence.path) if one["kind"] != TORN]
        complete = max(number for size, number in whole.items() if size <= length)
        # A row may be there before the mark of its flush is.
        assert found == [f"test {n}" for n in range(len(found))]
        assert len(found) in {complete, complete + 1}


def test_a_torn_last_row_is_said(tmp_path: Path) -> None:
    lines = b'{"kind":"evidence","version":1}\n{"kind":"began","test":"a"}\n'
    (tmp_path / NAME).write_bytes(gzip.compress(lines + b'{"kind"'))
    assert [one["kind"] for one in read(tmp_path / NAME)] == [BEGAN, TORN]


@pytest.mark.parametrize("hole", [b"\0" * 600, b"\xff" * 600])
def test_rows_before_a_hole_that_a_loss_of_power_left_are_read(
    evidence: EvidenceFile, hole: bytes
) -> None:
    tests = [{"test": f"test {number}"} for number in range(3)]
    for one in tests:
        evidence.append(BEGAN, one)
    with evidence.path.open("ab") as file:
        file.write(hole)
    *found, torn = read(evidence.path)
    assert [{"test": one["test"]} for one in found] == tests
    assert torn["kind"] == TORN


def test_a_finished_file_that_was_changed_is_refused(evidence: EvidenceFile) -> None:
    evidence.append(END, {})
    evidence.close()
    content = bytearray(evidence.path.read_bytes())
    content[-8] ^= 1  # of the checksum
    evidence.path.write_bytes(content)
    with pytest.raises(UsageError, match="incorrect data check; accepted: evidence"):
        list(read(evidence.path))


@pytest.mark.parametrize("lines", [slice(1, 2), slice(2, 3)])
def test_a_finished_file_without_one_of_its_rows_is_refused(
    evidence: EvidenceFile, lines: slice
) -> None:
    evidence.append(ROWS, *rows_to_json("it", [row("a", 1), row("b", 2)]))
    evidence.append(END, {})
    evidence.close()
    *whole, end = gzip.decompress(evidence.path.read_bytes()).splitlines(keepends=True)
    del whole[lines]
    evidence.path.write_bytes(gzip.compress(b"".join([*whole, end])))
    with pytest.raises(UsageError, match="line 3: rows before it are not those of the run"):
        list(read(evidence.path))


def test_the_end_of_a_run_counts_only_at_the_end_of_its_file(evidence: EvidenceFile) -> None:
    evidence.append(END, {})
    cut = [one["kind"] for one in read(evidence.path)]
    evidence.close()
    content = evidence.path.read_bytes()
    assert [one["kind"] for one in read(evidence.path)] == [END]
    evidence.path.write_bytes(content[:-1])
    assert [one["kind"] for one in read(evidence.path)] == cut == [END, TORN]


def test_a_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"kind":"evidence","version":1}\n')
    with pytest.raises(UsageError, match="incorrect header check; accepted: evidence"):
        list(read(tmp_path / NAME))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"{}\n", "line 1: no row"),
        (b"[1]\n", "line 1: no row"),
        (b"text\n", "line 1: no JSON"),
        (b'{"kind": "evidence", "version": 2}\n', "line 1: kind evidence, version 2"),
        (b'{"kind": "test", "version": 1}\n', "line 1: kind test, version 1"),
        (b'{"kind": "evidence", "version": 1}\n{"kind"\n{"kind": "end"}\n', "line 2: no JSON"),
        (b'{"kind": "evidence", "version": 1}\n\xff\n', "line 2: no JSON"),
    ],
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(gzip.compress(content))
    with pytest.raises(UsageError) as raised:
        list(read(path))
    assert str(raised.value) == f"{path}: {why}; accepted: evidence of version 1"


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory; accepted: an evidence"):
        list(read(tmp_path / NAME))


def test_a_row_without_a_metric_is_refused() -> None:
    for wrong in ({"check": "it", "value": 1}, {"metric": "rate"}):
        with pytest.raises(UsageError, match="accepted: a check and the keys of Row"):
            rows_from_json(wrong)


def test_evidence_of_an_earlier_run_is_replaced(evidence: EvidenceFile) -> None:
    evidence.append(BEGAN, {"test": "earlier"})
    evidence.close()
    again = EvidenceFile(evidence.path.parent)
    again.close()
    assert list(read(again.path)) == []


def test_rows_go_nowhere_without_a_report() -> None:
    got: list[Any] = []
    config: Any = SimpleNamespace(stash={})
    record_rows(config, "it", ROWS_OF_A_CHECK)
    config.stash[RECORD] = lambda rows: got.extend(map(rows_from_json, rows))
    record_rows(config, "it", ROWS_OF_A_CHECK[:1])
    assert got == [("it", EVERYTHING)]


def test_lines_are_compact_and_dated(evidence: EvidenceFile) -> None:
    evidence.append(BEGAN, {"test": "a"})
    evidence.append(ROWS, *rows_to_json("it", [row("x", 1, node="n")]))
    evidence.close()
    first, second = gzip.decompress(evidence.path.read_bytes()).decode().splitlines()[1:]
    assert json.loads(first)["at"] > 1.7e9
    assert second == '{"kind":"rows","check":"it","metric":"x","value":1,"node":"n"}'
