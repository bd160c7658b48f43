"""Conversion of the reference job's records by ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.scaling.timings import Step
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


def timed(monkeypatch: pytest.MonkeyPatch, record: StepRecord, wall_s: float) -> Step:
    from pytest_mnode.criteria.scaling import program  # the import takes seconds, in every worker

    trainer: Any = SimpleNamespace(step=lambda: record)
    clock = SimpleNamespace(perf_counter=iter([7.0, 7.0 + wall_s]).__next__)
    monkeypatch.setattr(program, "time", clock)
    return program.timed(trainer)


def test_a_step_has_the_parts_of_its_record_and_the_time_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = timed(monkeypatch, RECORD, 0.350)
    assert step.wall_s == pytest.approx(0.350)
    assert (step.compute, step.exposed) == pytest.approx((0.3, 0.034))
    assert step.rest == pytest.approx(0.002 + 0.008)
    assert sum(step.parts) == pytest.approx(step.wall_s)
    assert step.missed == pytest.approx(0)
    less = replace(RECORD, parts={**PARTS, "forward": 0.05})
    assert timed(monkeypatch, less, 0.350).missed == pytest.approx(0.05 / 0.350)


def test_a_run_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mnode.criteria.scaling import program

    class Program:
        def __init__(self, _: object, __: object, ___: object, directory: str) -> None:
            self.directory = Path(directory)

        def run(self) -> None:
            assert self.directory.parent == tmp_path
            (self.directory / "0-1").mkdir()

    monkeypatch.setattr(program, "Program", Program)
    monkeypatch.setattr(program, "device_of", lambda *_: None)
    monkeypatch.setattr(program, "get_temp_dir", lambda: str(tmp_path))
    given: Any = SimpleNamespace(training={"device": "cpu"}, local_rank=0)
    program.train(given, given)
    assert list(tmp_path.iterdir()) == []
