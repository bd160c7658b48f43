"""A run is observed through the files of its ranks, also with lines that a kill cut off."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.restart.kill_run import _between
from pytest_mnode.criteria.restart.run_files import (
    _AWAIT,
    _NOT_SEEN,
    SeenBetween,
    _seen,
    await_steps,
)

START, TORN = '{"kind":"start","rank":1}\n', '{"kind":"step","rank":1,"wor\n'


def steps(first: int, last: int) -> str:
    return "".join(f'{{"kind":"step","step":{n}}}\n' for n in range(first, last + 1))


@pytest.mark.parametrize(
    ("text", "starts", "step", "status"),
    [
        (START + steps(1, 6), 1, 6, 0),
        (START + steps(1, 5), 1, 6, _NOT_SEEN),
        (START + steps(1, 6) + TORN + START + steps(5, 8), 2, 8, 0),
        (START + steps(1, 6) + TORN + START, 2, 0, _NOT_SEEN),
        (START + '{"kind":"step"}\n{"kind":"step","step":null}\n' + steps(1, 1), 1, 1, 0),
    ],
)
def test_exit_status_of_the_wait_for_a_step(
    tmp_path: Path, text: str, starts: int, step: int, status: int
) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "rank1.jsonl").write_text(text)
    words = [str(tmp_path), "1", str(starts), str(step), "0.1"]
    done = subprocess.run([sys.executable, "-S", "-c", _AWAIT, *words], check=False, timeout=20)
    assert done.returncode == status


def test_the_error_says_how_long_the_step_was_missing(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    file = tmp_path / "records" / "rank1.jsonl"
    file.write_text(START)
    argv = [sys.executable, "-S", "-c", _AWAIT, str(tmp_path), "1", "1", "1", "20"]
    began = time.monotonic()
    watcher = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    time.sleep(1.0)
    with file.open("a") as more:
        more.write(steps(1, 1))
    written_s = time.monotonic() - began
    output, _ = watcher.communicate(timeout=20)
    assert watcher.returncode == 0
    assert 0.0 < float(output) < written_s
    at_once = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    assert float(at_once.stdout) == 0.0


def test_observations_have_times_of_the_observer_and_of_this_clock() -> None:
    assert _seen(100.0, 103.0, "2.5\n") == SeenBetween(102.5, 103.0)
    assert _seen(100.0, 103.0, "0.0\n") == SeenBetween(None, 103.0)
    assert _seen(100.0, 103.0, "") == SeenBetween(None, 103.0)
    assert _between(90.0, 92.0, SeenBetween(102.5, 103.0)) == (10.5, 13.0)
    assert _between(90.0, 92.0, SeenBetween(None, 103.0)) == (0.0, 13.0)
    assert _between(90.0, 92.0, None) is None


def test_the_watcher_on_a_node_ends_with_the_wait(tmp_path: Path) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(argv: list[str], _: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True))
        return started[0]

    cluster: Any = SimpleNamespace(python=sys.executable, start=start)
    found = await_steps(
        cluster, "n0", str(tmp_path), ranks=1, step=1, limit_s=60.0, over=lambda: True
    )
    assert found is None
    assert started[0].returncode == -signal.SIGKILL
