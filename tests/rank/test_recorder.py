"""The record of a rank's calls, while a thread of the test makes calls too."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pytest_mnode.rank.recorder import Recorder, _handled, _is_complete


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)
    dist.destroy_process_group()


def test_a_thread_that_calls_breaks_no_summary(tmp_path: Path, group_of_one: None) -> None:
    recorder, ended = Recorder(tmp_path / "calls", 1), threading.Event()

    def call() -> None:
        tensor = torch.ones(1)
        for tag in itertools.cycle(range(200)):
            if ended.is_set():
                return
            recorder.enter("isend", {"tensor": tensor, "dst": 0, "tag": tag})

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(10):
            recorder.begin()
            while len(made := recorder.made() or ()) < 200:
                assert thread.is_alive()
            assert {count > 0 for _, count, _ in made} == {True}
    finally:
        ended.set()
        thread.join(10)
        recorder.stop()
    assert not thread.is_alive()


def parsed() -> object:
    return json.loads("{")


def compiled() -> object:
    raise SyntaxError("torn", ("spec.py", 3, 1, "x ="))


@pytest.mark.parametrize(
    ("fails", "text"),
    [(parsed, "json.decoder.JSONDecodeError: "), (compiled, "SyntaxError: torn")],
)
def test_an_error_that_is_handled_is_shown_at_the_last_line_of_the_user(
    fails: Callable[[], object], text: str
) -> None:
    """Not in Python's own modules, nor in a call that our own code handles."""
    assert _handled() == ""
    try:
        fails()
    except (ValueError, SyntaxError):
        found = _handled()
    line = fails.__code__.co_firstlineno + 1
    assert found.startswith(f", after test_recorder.py:{line} raised {text}")
    scope: dict[str, Any] = {"fails": fails, "handled": _handled}
    own = "try: fails()\nexcept (ValueError, SyntaxError): found = handled()"
    exec(compile(own, "/lib/pytest_mnode/rank/debugger.py", "exec"), scope)
    assert scope["found"] == ""


ON_CPU, ON_DEVICE = torch.ones(1), torch.ones(1, device="meta")


@pytest.mark.parametrize(
    ("name", "named", "complete"),
    [
        ("barrier", {}, True),
        ("all_reduce", {"tensor": ON_CPU}, True),
        ("all_reduce", {"tensor": ON_CPU, "async_op": True}, False),
        ("all_reduce", {"tensor": ON_DEVICE}, False),
        ("all_gather", {"tensor_list": [ON_CPU] * 2}, True),
        ("all_gather", {"tensor_list": [ON_DEVICE] * 2}, False),
        ("all_gather", {"tensor_list": []}, True),
        ("send", {"tensor": ON_DEVICE}, False),
        ("isend", {"tensor": ON_CPU}, False),
    ],
)
def test_a_call_ends_when_it_returns_only_on_cpus_and_without_a_handle(
    name: str, named: dict[str, object], complete: bool
) -> None:
    assert bool(_is_complete(name, named)) is complete
