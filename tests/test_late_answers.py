"""What comes late, but within its limit, is awaited."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.restart.run_files import await_steps
from pytest_mnode.criteria.storage.meeting import Directory, Meeting
from pytest_mnode.jobs import LaunchedJob
from pytest_mnode.jobs.kubernetes import in_pod

LIMIT_S = 60.0


def turns(*answers: object) -> Callable[..., Any]:
    """Gives one answer after the other; all of them must be asked for."""
    left = list(answers)
    _left.append(left)
    return lambda *_, **__: left.pop(0)


_left: list[list[object]] = []


@pytest.fixture(autouse=True)
def _all_are_asked_for() -> Iterator[None]:
    _left.clear()
    yield
    assert [left for left in _left if left] == []


def test_the_end_of_a_job() -> None:
    job: Any = SimpleNamespace(poll=turns(None, "its result"), _where=str)
    assert str(LaunchedJob.wait(job, LIMIT_S)) == "its result"


def test_a_step_of_a_run(tmp_path: Path) -> None:
    watcher = SimpleNamespace(poll=turns(None, 0, 0), kill=list, wait=lambda _: 0)
    cluster: Any = SimpleNamespace(
        python="python", run_id=str(tmp_path), start=lambda *_, **__: watcher
    )
    seen = await_steps(
        cluster, "n0", str(tmp_path), ranks=1, step=1, limit_s=LIMIT_S, over=lambda: False
    )
    assert seen is not None


def test_processes_beside_an_ended_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_pod, "LINGER_S", LIMIT_S)
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(os, "listdir", turns(["1", "7"], ["1"]))
    in_pod.linger()


def test_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SimpleNamespace(add=lambda *_: 1, check=turns(False, False, True))
    monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", lambda *_: store)
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "1")
    place = Directory("/p", "x", True, 0, 0.5, LIMIT_S, LIMIT_S, 1)
    world: Any = SimpleNamespace(size=2)
    Meeting(place, world).barrier()
