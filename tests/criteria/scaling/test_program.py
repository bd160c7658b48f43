"""Conversion of the reference job's records by ranks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.scaling.timings import JobTimings, Step
from pytest_mnode.reference_job.records import StepRecord

PARTS = {
    **{"input": 0.001, "forward": 0.1, "backward": 0.2, "exposed": 0.03, "metrics": 0.004},
    **{"optimiser": 0.005, "checkpoint": 0.0, "rest": 0.002},
}
RECORD = StepRecord(
    rank=0,
    world_size=2,
    node="node0",
    pid=1,
    incarnation="0.0",
    step=1,
    epoch=0,
    samples=(1, 2),
    loss=1.0,
    tokens=3,
    lr=0.1,
    rng="",
    began=0.0,
    ended=0.4,
    wall_s=0.342,
    parts=PARTS,
)


def step_of(record: StepRecord, wall_s: float) -> Step:
    from pytest_mnode.criteria.scaling import program  # the import takes seconds, in every worker

    return program.step_of(record, wall_s)


def test_a_step_has_the_parts_of_its_record_and_the_time_after_it() -> None:
    step = step_of(RECORD, 0.350)
    assert step.wall_s == 0.350
    assert (step.compute, step.exposed) == pytest.approx((0.3, 0.034))
    assert step.rest == pytest.approx(0.002 + 0.008)
    assert sum(step.parts) == pytest.approx(step.wall_s)
    assert step.missed == pytest.approx(0)


def test_time_missing_in_a_record_is_unattributed() -> None:
    parts = {**PARTS, "forward": 0.05}
    assert step_of(replace(RECORD, parts=parts), 0.350).missed == pytest.approx(0.05 / 0.350)


def test_a_run_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mnode.criteria.scaling import program

    found: list[list[str]] = []

    class OneTurn(program.Program):
        """Trains one step in one process, on no device."""

        def __init__(self, _: object, __: object, ___: object, directory: str) -> None:
            self.directory = directory
            self._timings = JobTimings(1, "gloo", "cpu", 0, (), ())
            self.plan: Any = SimpleNamespace(
                nodes=("node0",),
                promise=SimpleNamespace(warmup=0, steps=1),
            )

        def run(self) -> None:
            turn: Any = SimpleNamespace(round=0, count=1, groups=None)
            self._train(turn)
            found.append(os.listdir(self.directory))  # noqa: PTH208

        def _make_groups(self, _: object) -> None: ...

        def _group_of(self, _: object) -> tuple[int, ...]:
            return (0,)

        def _ranks_of(self, _: object) -> tuple[int, ...]:
            return (0,)

        def _meet(self, _: object) -> None: ...

        def _timed(self, _: object) -> Any:
            return None

        def _trainer(self, _: object, __: object, directory: str) -> Any:
            Path(directory, "rank0.jsonl").touch()
            return SimpleNamespace(
                spans=SimpleNamespace(pace=None),
                close=lambda: None,
                model=SimpleNamespace(parameters=list),
            )

    monkeypatch.setattr(program, "Program", OneTurn)
    monkeypatch.setattr(program, "device_of", lambda *_: None)
    monkeypatch.setattr(program, "get_temp_dir", lambda: str(tmp_path))
    plan: Any = SimpleNamespace(training={"device": "cpu"})
    world: Any = SimpleNamespace(local_rank=0)
    program.train(plan, world)
    assert found == [[]]
    assert list(tmp_path.iterdir()) == []
