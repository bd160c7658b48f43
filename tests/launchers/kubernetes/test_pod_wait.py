"""The main process of a pod: how long it stays, and its exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pytest_mnode.launchers.kubernetes import pod_wait
from tests.waiting import until

LIMIT_S = 20.0


def start(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", pod_wait.__file__, *argv])


def test_it_succeeds_after_silence(tmp_path: Path) -> None:
    """Otherwise its Job would start another pod of a run that has ended."""
    alive = tmp_path / "alive"
    alive.touch()
    pod = start(str(alive), "1000", "0.1")
    assert pod.wait(LIMIT_S) == 0
    assert start(str(tmp_path / "none"), "0.1", "1000").wait(LIMIT_S) == 0


def test_it_fails_if_it_is_ended(tmp_path: Path) -> None:
    """Otherwise its Job would not replace it."""
    pod = start(str(tmp_path / "alive"), "1000", "1000")
    signals = Path(f"/proc/{pod.pid}/status")
    caught = f"SigCgt:\t{1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1):016x}"
    until(lambda: caught in signals.read_text())
    pod.terminate()
    assert pod.wait(LIMIT_S) == 128 + signal.SIGTERM
