"""`python -m pytest_mnode why`: culprit and cause of a job that has failed, from what it left."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.commands import main
from tests.logs.test_flight_recorder import AT_2, DONE, WORLD
from tests.logs.test_stacks import PY_SPY

WATCHDOG = (
    "[rank{rank}]:[E1121 02:00:00 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
    "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)
FELL_OFF = "[81.2] NVRM: Xid (PCI:0000:9b:00): 79, pid=17, GPU has fallen off the bus.\n"


def dump(*calls: dict[str, Any]) -> bytes:
    return pickle.dumps({"version": "2.10", "pg_config": WORLD, "entries": list(calls)}, 2)


def left(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def why(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    status = main(["why", "--format=json", *map(str, arguments)])
    return status, json.loads(capsys.readouterr().out)


LATE: dict[str, str | bytes] = {
    "dumps/nccl_trace_rank_0": dump(DONE, AT_2),
    "dumps/nccl_trace_rank_1": dump(DONE, AT_2),
    "dumps/nccl_trace_rank_2": dump(DONE),
    "dumps/nccl_trace_rank_3": dump(DONE, AT_2),
    "logs/rank_0.log": WATCHDOG.format(rank=0),
    "logs/rank_3.log": WATCHDOG.format(rank=3),
}


def test_dumps_say_who_did_not_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = why(capsys, left(tmp_path, LATE))
    assert (status, found["cause"]["cause"]) == (0, "rank did not join")
    assert found["cause"]["ranks"] == [2]
    assert {one["cause"] for one in found["followed_by"]} == {"collective timed out"}
    assert any("no log of ranks 2" in line for line in found["missing"])
    assert found["files"] == 6
    assert any("py-spy" in line for line in found["missing"])


def test_a_stack_says_where_the_culprit_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = why(capsys, left(tmp_path, LATE | {"py-spy_rank_2.txt": PY_SPY}))
    assert found["cause"]["detail"].endswith("rank 2 is at train.py:23 in load")
    assert not any("py-spy" in line for line in found["missing"])


def test_what_broke_comes_before_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress(FELL_OFF.encode())
    status, found = why(capsys, left(tmp_path, {**LATE, "node1/dmesg.gz": packed}))
    assert (status, found["cause"]["device"]) == (0, "0000:9b:00")
    assert found["cause"]["file"] == "node1/dmesg.gz"
    assert [one["ranks"] for one in found["others"]] == [[2]]
    assert found["missing"] == []


def test_a_rank_is_known_by_the_name_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = why(capsys, left(tmp_path, {"rank_5/stderr.log": text}))[1]
    assert found["cause"]["ranks"] == [5]


def test_without_a_cause_it_says_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = why(capsys, left(tmp_path, {"a.log": "step 1\nstep 2\n"}))
    assert (status, found["cause"]) == (1, None)
    assert any("TORCH_NCCL_DUMP_ON_TIMEOUT" in line for line in found["missing"])


def test_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(left(tmp_path, LATE))]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "culprit: rank 2"
    assert second.startswith("cause: rank did not join (")
    assert "followed by: collective timed out, in 2 files" in rest


def test_an_unreadable_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = why(capsys, left(tmp_path, {**LATE, "cut.log.gz": gzip.compress(b"x" * 99)[:-9]}))[1]
    assert found["cause"]["ranks"] == [2]
    assert any("cut.log.gz" in line for line in found["missing"])


def test_a_folder_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "/no/such"]) == 2
    assert "/no/such: no such file or folder" in capsys.readouterr().err
