"""Dumps of flight recorders: who keeps the others waiting."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.logs.flight_recorder import Dump, dump_causes, read_dump

RECORDED = json.loads(
    (Path(__file__).parents[2] / "fixtures/recordings/flight-recorder-gloo.json").read_text()
)
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
PAIRS = {
    **WORLD,
    "1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"},
    "2": {"name": "2", "desc": "tp", "ranks": "[2, 3]"},
    "3": {"name": "3", "desc": "dp", "ranks": "[1, 2]"},
}


def call(
    op: str,
    number: int,
    group: Sequence[str] = ("0", "default_pg"),
    state: str = "scheduled",
    size: int = 4,
) -> dict[str, Any]:
    """An entry as NCCL's recorder writes it."""
    message = "<-" in op or "->" in op
    return {
        "process_group": tuple(group),
        "collective_seq_id": 0 if message else number,
        "p2p_seq_id": number if message else 0,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [[size, 8]],
        "input_dtypes": ["BFloat16"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": message,
        "frames": [
            {"filename": "/x/torch/distributed/c10d.py", "line": 1, "name": "all_reduce"},
            {"filename": "/home/user/train.py", "line": 87, "name": "train_step"},
        ],
    }


DONE = call("all_reduce", 1, state="completed")


def dumps(calls: Mapping[int, Sequence[dict[str, Any]]], groups: Any = None) -> list[Dump]:
    found = [
        read_dump(
            f"nccl_trace_rank_{rank}",
            pickle.dumps({"version": "2.10", "pg_config": groups or WORLD, "entries": list(some)}),
        )
        for rank, some in calls.items()
    ]
    assert None not in found
    return [one for one in found if one is not None]


AT_2 = call("all_reduce", 2)
RUNS = call("all_reduce", 2, state="started")
FREE = [("1", "tp"), ("2", "tp"), ("3", "dp")]
CASES: dict[str, tuple[Mapping[int, Sequence[dict[str, Any]]], Any, str, tuple[int, ...]]] = {
    "one is late": (
        {0: [DONE, AT_2], 1: [DONE, AT_2], 2: [DONE], 3: [DONE, AT_2]},
        WORLD,
        "rank did not join",
        (2,),
    ),
    "two are late": (
        {0: [DONE, AT_2], 1: [DONE], 2: [DONE], 3: [DONE, AT_2]},
        WORLD,
        "rank did not join",
        (1, 2),
    ),
    "one left no dump": (
        {0: [DONE, AT_2], 1: [DONE, AT_2], 3: [DONE, AT_2]},
        WORLD,
        "rank lost",
        (2,),
    ),
    "one had enqueued more": (  # its old calls are overwritten: it is not late
        {0: [DONE, AT_2], 1: [DONE], 2: [DONE, AT_2], 3: [call("all_reduce", 9)]},
        WORLD,
        "rank did not join",
        (1,),
    ),
    "another collective": (
        {0: [DONE, AT_2], 1: [DONE, AT_2], 2: [DONE, call("broadcast", 2)], 3: [DONE, AT_2]},
        WORLD,
        "ranks' collectives differ",
        (2,),
    ),
    "another size": (
        {0: [AT_2], 1: [AT_2], 2: [AT_2], 3: [call("all_reduce", 2, size=5)]},
        WORLD,
        "ranks' collectives differ",
        (3,),
    ),
    "sizes that may differ": (
        {0: [call("all_to_all", 2)], 1: [call("all_to_all", 2, size=9)], 2: [DONE], 3: [DONE]},
        WORLD,
        "rank did not join",
        (2, 3),
    ),
    "the others' devices have begun": (
        {0: [RUNS], 1: [RUNS], 2: [AT_2], 3: [RUNS]},
        WORLD,
        "collective timed out",
        (2,),
    ),
    "all have begun": (
        {0: [RUNS], 1: [RUNS], 2: [RUNS], 3: [RUNS]},
        WORLD,
        "collective timed out",
        (0, 1, 2, 3),
    ),
    "a chain of groups": (  # 0 waits for 1, 1 for 2, 2 for 3
        {
            0: [DONE, call("all_reduce", 1, FREE[0])],
            1: [DONE, call("all_reduce", 1, FREE[2])],
            2: [DONE, call("all_reduce", 1, FREE[1])],
            3: [DONE],
        },
        PAIRS,
        "rank did not join",
        (3,),
    ),
    "a circle of groups": (
        {
            1: [DONE, call("all_reduce", 1, ("3", "dp"))],
            2: [DONE, call("all_reduce", 1, ("4", "pp"))],
        },
        {
            "3": {"name": "3", "desc": "dp", "ranks": "[1, 2]"},
            "4": {"name": "4", "desc": "pp", "ranks": "[1, 2]"},
        },
        "ranks' collectives differ",
        (1, 2),
    ),
    "a message without a sender": (
        {0: [DONE], 1: [DONE, call("recv 1<-3", 1)], 2: [DONE], 3: [DONE]},
        WORLD,
        "rank did not join",
        (3,),
    ),
    "a message of two": (
        {0: [DONE], 1: [call("recv 1<-3", 1, state="started")], 2: [], 3: [call("send 3->1", 1)]},
        WORLD,
        "collective timed out",
        (3,),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_keeps_the_others_waiting(case: str) -> None:
    calls, groups, name, ranks = CASES[case]
    [found] = dump_causes(dumps(calls, groups))
    assert (found.name, found.ranks) == (name, ranks)
    if ranks == (2,) and name == "rank did not join":
        assert "train.py:87 train_step" in (found.detail or "")


@pytest.mark.parametrize(
    ("case", "ranks", "said"),
    [
        ("absent", (2,), "ranks 0-1,3 wait in all_reduce"),
        ("chain", (3,), "only these wait nowhere"),
    ],
)
def test_recorded_dumps_of_gloo(case: str, ranks: tuple[int, ...], said: str) -> None:
    found = [read_dump(f"dump_{r}", json.dumps(d).encode()) for r, d in RECORDED[case].items()]
    [cause] = dump_causes(one for one in found if one is not None)
    assert (cause.name, cause.ranks) == ("rank did not join", ranks)
    assert said in (cause.detail or "")


def test_a_job_in_which_nobody_waits_has_no_cause() -> None:
    assert dump_causes(dumps({rank: [DONE] for rank in range(4)})) == []
    assert dump_causes([]) == []


class Runs:
    """A value that would run code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rank_0", pickle.dumps({"entries": [Runs()]})),
        ("rank_0", pickle.dumps({"entries": [{"state": "x"}]})),
        ("rank_0", pickle.dumps([1])),
        ("rank_0", b"\x80cut"),
        ("rank_0.json", b'{"entries": 1}'),
        ("rank_0.json", b"{"),
        ("rank", pickle.dumps({"entries": []})),
        ("rank_0", b"a line"),
        ("rank_0", b""),
    ],
)
def test_other_files_are_no_dumps(
    name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_dump(name, content) is None
    assert capsys.readouterr().out == ""
