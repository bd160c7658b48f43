"""Runs one command under a hard limit and leaves nothing of it behind.

The command gets a session of its own, dies with this process, and whatever it started comes back
to this process when its parent ends (PR_SET_CHILD_SUBREAPER), so that nothing escapes the end.
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
    """How a command ended. Times are `time.time()` seconds, the clock its processes stamp with.

    code: exit status, None where the limit ended it.
    left: command names of processes that outlived it and had to be killed.
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
    """Run `argv` with `env` over this process's environment, output in a file of `cwd`."""
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
    """Names of what still runs below this process once the command's own exits have settled."""
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
