"""A kill or failure at any step of saving leaves the old or the new checkpoint, complete."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.inner import clean_env

ROOT = Path(__file__).parents[3]
KILLING = "tests.reference_job.checkpoint.killing"


class Line(NamedTuple):
    """Result of one step, and the names in the store after the next checkpoint."""

    kill: bool
    step: int
    how: str
    loaded: int
    value: float
    names: list[str]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    argv = [sys.executable, "-m", KILLING, str(tmp_path_factory.mktemp("stores"))]
    status, printed = warm.run(argv, ROOT, clean_env(), 240)
    assert status == 0, printed
    return [Line(*json.loads(line)) for line in printed.splitlines()]


STEPS = pytest.mark.parametrize("step", [3, 2], ids=["later", "again"])
"""With complete checkpoints of steps 1 and 2; those of step 2 have the value 2, new ones 9."""


@STEPS
def test_killed_at_every_step(lines: list[Line], step: int) -> None:
    of_step = [line for line in lines if line.kill and line.step == step]
    assert [line.how for line in of_step] == ["killed"] * (len(of_step) - 1) + ["ended"]
    assert len(of_step) > 20
    # Up to some step the old checkpoint is loaded, and from then on the new one.
    values = [line.value for line in of_step]
    assert set(values) == {2, 9}
    assert values == sorted(values)
    assert all(line.loaded == (step if line.value == 9 else 2) for line in of_step)


@STEPS
def test_every_step_fails(lines: list[Line], step: int) -> None:
    """After an error the old checkpoint is loaded; without an error the new one."""
    of_step = [line for line in lines if not line.kill and line.step == step]
    hows = [line.how for line in of_step]
    assert hows[-1] == "ended"
    assert hows.count("failed") > 10
    assert hows.count("ignored") > 3  # old checkpoints that cannot be removed
    assert set(hows) == {"failed", "ignored", "ended"}
    for line in of_step:
        assert line.value == (2 if line.how == "failed" else 9)


def test_the_next_save_removes_leftovers(lines: list[Line]) -> None:
    for line in (line for line in lines if line.how != "failed"):
        older, newest = line.names
        assert newest.startswith("step-00000004.1-")
        assert older.startswith(f"step-{line.loaded:08d}.")
        assert not older.endswith(".partial")
