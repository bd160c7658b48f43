"""The order of a job's starts, and kills that did not happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_mnode.criteria.restart.experiments import Killed, judge_killed
from pytest_mnode.criteria.restart.history import History, history_of
from pytest_mnode.criteria.restart.judging import KillReport
from pytest_mnode.criteria.restart.plan import plan
from pytest_mnode.reference_job.records import CheckpointRecord, StartRecord
from pytest_mnode.spec.restart import RestartCriterion


def test_a_slow_clock_does_not_change_the_order_of_starts() -> None:
    records: list[Any] = []

    def start(rank: int, ranks: int, at: float, loaded: int | None, step: int) -> None:
        origin = {"rank": rank, "world_size": ranks, "node": f"node{rank}", "pid": 1}
        place: dict[str, Any] = {**origin, "incarnation": "0.0"}
        records.append(StartRecord(**place, time=at, loaded=loaded))
        saved: dict[str, Any] = {"seconds": 0.1, "write_s": 0.1, "bytes": 1}
        saved |= {"step": step, "begun": at + 5, "ended": at + 5}
        records.append(CheckpointRecord(**place, **saved))

    for rank in range(2):
        start(rank, 2, 1000, None, 8)
    for rank in range(4):
        start(rank, 4, 1020 - 60 * (rank == 3), 8, 20)  # node3's clock is a minute behind
    starts = [(one.size, one.loaded) for one in history_of(records).incarnations]
    assert starts == [(2, 0), (4, 8)]


def test_without_a_kill_nothing_is_compared(tmp_path: Path) -> None:
    promise = RestartCriterion.model_validate({"within": "60 s", "tolerance": 0.001})
    planned = plan(promise, ("node0", "node1", "node2"), 1, "cpu")
    kept = tmp_path / f"whole-{planned.digest()}"
    kept.mkdir()
    np.savez(kept / "parameters.npz", w=np.ones(2))
    report = KillReport("no kill", 0.0, "nobody", missed="there was no kill: step 6 not reached")
    killed = Killed(planned, History(()), History(()), report, (), {"w": np.zeros(2)})
    [found] = judge_killed("rank", promise, killed, tmp_path)
    assert found.verdict == "inconclusive"
