"""Runs one command under a hard time limit and leaves no process of it behind.

The command has its own session and dies with this process. This process adopts its descendants
when their parents end (PR_SET_CHILD_SUBREAPER), so that none escapes the final kill.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode import processes

_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a command. Times are `time.time()` seconds, like the processes' stamps.

    code: exit status; None if the limit ended it.
    left: command lines of processes that still ran at its end and had to be killed.
    """

    code: int | None
    started: float
    ended: float
    output: str
    left: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def run(argv: Sequence[str], limit_s: float, env: Mapping[str, str], cwd: Path) -> Finished:
    """Run `argv` with `env` added to this process's environment, and output to a file in `cwd`."""
    processes.adopt_orphans()
    parent = os.getpid()
    path = cwd / "output.txt"
    with path.open("wb") as file:
        started = time.time()
        program = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with_parent(parent),  # noqa: PLW1509  no threads here
        )
        code: int | None
        try:
            code = program.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        ended = time.time()
    left = _survivors() if code is not None else []
    program.kill()
    program.wait()
    processes.kill_descendants()
    return Finished(code, started, ended, path.read_text(errors="replace"), tuple(left))


def _survivors() -> list[str]:
    """Descendants of this process that still run after those that are exiting have ended."""
    end = time.monotonic() + _SETTLE_S
    while True:
        processes.reap()
        below = processes.descendants(os.getpid())
        if not below or time.monotonic() > end:
            return [name for pid in below if (name := _name(pid))]
        time.sleep(0.02)


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words[:4]).strip()
