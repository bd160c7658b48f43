"""A run is observed through the files of its ranks, also with lines that a kill cut off."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
from tests.waiting import until

# As the job writes them: the kind of a record is its last key.
START, TORN = '{"rank":1,"kind":"start"}\n', '{"kind":"step","rank":1,"wor\n'


def steps(first: int, last: int) -> str:
    return "".join(f'{{"step":{n},"kind":"step"}}\n' for n in range(first, last + 1))


KILLED = """
import subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace as Of
from pytest_mnode.limits import Limits
from pytest_mnode.criteria.restart.run_files import run_directory

def run(argv, node, timeout=None):
    done = subprocess.run(argv, capture_output=True, text=True)
    return [Of(ok=done.returncode == 0, stderr=done.stderr)]

with run_directory(Of(run=run, limits=Limits()), "n0", Path(sys.argv[1]), "killed") as directory:
    Path(directory, "checkpoint").touch()
    print(flush=True)
    time.sleep(60)
"""


def test_the_directory_of_a_run_goes_with_a_killed_controller(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        controller.stdout.readline()
        [made] = tmp_path.iterdir()
        assert (made.stat().st_mode & 0o777, [*made.iterdir()]) == (0o700, [made / "checkpoint"])
        controller.kill()
    until(lambda: not made.exists(), "it is removed")


class Waiting:
    """The program that waits for a step of rank 1, run here by a clock that only its sleep moves.

    meanwhile: called with the time after each sleep.
    """

    def __init__(self, directory: Path, text: str) -> None:
        self.directory, self.now_s = directory, 0.0
        self.file = directory / "records" / "rank1.jsonl"
        self.file.parent.mkdir()
        self.file.write_text(text)

    def run(
        self, starts: int, step: int, limit_s: float, meanwhile: Callable[[float], None]
    ) -> object:
        def sleep(seconds: float) -> None:
            self.now_s += seconds
            meanwhile(self.now_s)

        words = [str(self.directory), "1", str(starts), str(step), str(limit_s)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["-c", *words])
            patch.setattr(time, "sleep", sleep)
            patch.setattr(time, "monotonic", lambda: self.now_s)
            with pytest.raises(SystemExit) as ended:
                exec(_AWAIT, {})
        return ended.value.code


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
    waiting = Waiting(tmp_path, text)
    assert waiting.run(starts, step, 5.0, lambda _: None) == status
    assert waiting.now_s == pytest.approx(5.0 if status else 0.0, abs=0.021)


def test_the_output_says_how_long_the_step_was_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = Waiting(tmp_path, START)

    def write_after_1_s(now_s: float) -> None:
        if now_s >= 1.0:
            waiting.file.write_text(START + steps(1, 1))

    assert waiting.run(1, 1, 20.0, write_after_1_s) == 0
    assert 0.95 < float(capsys.readouterr().out.removeprefix("missed ")) <= 1.0
    argv = [sys.executable, "-S", "-c", _AWAIT, str(tmp_path), "1", "1", "1", "20"]
    at_once = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    assert at_once.stdout == "missed 0.0\n"


def test_observations_have_times_of_the_observer_and_of_this_clock() -> None:
    assert _seen(100.0, 103.0, "late\nmissed 2.5\nERROR: ld.so\n") == SeenBetween(102.5, 103.0)
    assert _seen(100.0, 103.0, "missed 0.0\n") == SeenBetween(None, 103.0)
    assert _seen(100.0, 103.0, "") == SeenBetween(None, 103.0)
    assert _between(90.0, 92.0, SeenBetween(102.5, 103.0)) == (10.5, 13.0)
    assert _between(90.0, 92.0, SeenBetween(None, 103.0)) == (0.0, 13.0)
    assert _between(90.0, 92.0, None) is None


def test_the_watcher_on_a_node_ends_with_the_wait(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], _: str, output: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as file:
            started.append(subprocess.Popen(argv, stdout=file, stderr=file))
        return started[0]

    cluster: Any = SimpleNamespace(python=sys.executable, start=start, run_id=str(tmp_path))
    found = await_steps(
        cluster, "n0", str(tmp_path), ranks=1, step=1, limit_s=60.0, over=lambda: True
    )
    assert found is None
    assert started[0].returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
