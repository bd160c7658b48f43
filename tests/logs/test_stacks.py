"""Where a rank is, by its stacks."""

from __future__ import annotations

import json

import pytest

from pytest_mnode.logs.causes import causes
from pytest_mnode.logs.stacks import located, not_joined, where

FAULTHANDLER = """\
Thread 0x00007f01 (most recent call first):
  File "/x/observer.py", line 9 in _dump_when_asked
  File "/usr/lib/python3.11/threading.py", line 975 in run

Thread 0x00007f02 (most recent call first):
  File "/v/site-packages/torch/autograd/graph.py", line 9 in backward
  File "/notes/sitecustomize.py", line 99 in first
  File "/job/train.py", line 23 in load
  File "/job/train.py", line 31 in <module>
"""
PY_SPY = """\
Process 71: python -u train.py --layers 4
Python v3.11.9 (/usr/bin/python3.11)

Thread 71 (idle): "MainThread"
    read (torch/utils/data/dataloader.py:12)
    load (train.py:23)
    <module> (train.py:31)
Thread 80 (idle): "Thread-1 (watch)"
    wait (threading.py:320)
    watch (other.py:5)
"""
THREADS = [
    {"thread_name": "Thread-1", "frames": [{"name": "watch", "filename": "/o.py", "line": 5}]},
    {
        "thread_name": "MainThread",
        "frames": [
            {"name": "read", "filename": "/v/torch/utils/data/dataloader.py", "line": 12},
            {"name": "load", "filename": "/job/train.py", "line": 23},
            {"name": "<module>", "filename": "/job/train.py", "line": 31},
        ],
    },
]


@pytest.mark.parametrize("text", [FAULTHANDLER, PY_SPY, json.dumps(THREADS)])
def test_where_a_rank_is(text: str) -> None:
    assert where(text) == "train.py:23 in load"


@pytest.mark.parametrize(
    "text",
    ["", "[", "[3]", json.dumps(THREADS[:1]), '[{"thread_name": "MainThread"}]', "[" * 99_999],
)
def test_what_is_no_stack(text: str) -> None:
    assert not where(text)


def test_a_cause_has_the_stacks_of_its_ranks() -> None:
    [cause] = causes("[rank2]: CUDA error: device-side assert triggered")
    assert cause.ranks == (2,)
    texts = {"stack_rank_2.txt": PY_SPY, "rank3.json": json.dumps(THREADS), "rank20.txt": PY_SPY}
    detail = located(cause, texts).detail or ""
    assert detail.endswith("rank 2 is at train.py:23 in load")
    assert "rank 3" not in detail
    assert located(cause, {"rank_3.txt": PY_SPY}) == cause


def test_a_rank_in_no_collective_did_not_join() -> None:
    waits = PY_SPY.replace(
        "    load (", "    all_reduce (torch/distributed/distributed_c10d.py:99)\n    load ("
    )
    texts = {"rank_0.txt": PY_SPY, "rank_0.log": "(started)", "rank_1.txt": waits}
    assert not [*not_joined(texts)]
    [cause] = not_joined({**texts, "rank_2.txt": waits})
    assert (cause.name, cause.ranks) == ("rank did not join", (0,))
    assert cause.detail == "2 other ranks are in all_reduce"
    assert not [*not_joined(dict.fromkeys(("rank_1", "rank_2"), waits))]
