"""A process is killed at any moment of saving: the old one or the new one is there, and whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.inner import clean_env

KILLING = Path(__file__).with_name("killing.py")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, str(KILLING), str(tmp_path_factory.mktemp("stores"))],
        env=clean_env() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", ["3", "2"], ids=["later", "again"])
def test_killed_at_every_step(lines: list[list[str]], step: str) -> None:
    of_step = [line for line in lines if line[0] == step]
    killed = [line for line in of_step if line[2] == "True"]
    assert len(killed) > 20
    assert [line[2] for line in of_step[len(killed) :]] == ["False"]
    # What is loaded is the old one up to some step, and from then on the new one.
    values = [line[4] for line in of_step]
    assert set(values) == {"2.0", "9.0"}
    assert values == sorted(values)
    assert all(line[3] == ("3" if line[4] == "9.0" and step == "3" else "2") for line in of_step)


def test_the_next_one_removes_what_was_left(lines: list[list[str]]) -> None:
    for step, number, killed, loaded, value, *left in lines:
        older, newest = left
        assert newest == "step-00000004", (step, number, killed, value)
        # Killed when the new one had no name yet, the old one has kept the one it was given.
        assert older.partition(".replaced-")[0] == f"step-{int(loaded):08d}"
