"""Sees to it that a submitted job goes with whoever submitted it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from pytest_mnode.jobs.slurm import guarding

_END_S = 5.0


class Guard:
    """A process of its own, from before the submission on: see `guarding`."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guarding.__file__)), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the controller alone
        )

    def close(self, done: bool = True) -> None:
        """The job is taken care of; idempotent. Not done: it is left to the guard, for Slurm did
        not do as it was told."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.write("over\n" * done)
                process.stdin.close()
        if not done:
            return
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
