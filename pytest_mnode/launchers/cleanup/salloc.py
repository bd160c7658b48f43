"""The daemon's task for Slurm: salloc, which holds the run's own allocation.

`salloc.py --inside` is the allocation's command; it is run by its path, without site-packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[3])
from pytest_mnode.launchers.cleanup import child
from pytest_mnode.launchers.cleanup.queue_cleanup import ANSWERED, SlurmCleanup
from pytest_mnode.processes import end_programs

INSIDE = "--inside"
ASK_END_S = 6.0
"""Time for salloc to release the allocation after the allocation's command has ended."""
SCANCEL_S = 10.0
_NUMBER = re.compile(r"job allocation (\d+)")


def inside() -> None:
    """The command of the allocation: prints Slurm's variables, and ends with its input."""
    found = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    os.write(1, json.dumps(found).encode() + b"\n")
    while os.read(0, 4096):
        pass


class Salloc:
    """A running salloc. name: name of its job, which no other job has. Implements Task.

    report(…) takes a line of salloc's output, the number of its job, the variables of the granted
    allocation, the number of an allocation whose end is retried ("" if unknown), and salloc's exit
    status.
    """

    busy = False
    on_nodes = True

    def __init__(self, argv: Sequence[str], name: str, report: Callable[..., None]) -> None:
        self._name = name
        self._report = report
        self._job: str | None = None
        self._granted = self._ended = False
        self._pending: dict[int, bytes] = {}
        self._streams: dict[int, IO[bytes]] = {}
        self._salloc: subprocess.Popen[bytes] | None = None
        command = [*argv, sys.executable, "-S", "-E", "-s", __file__, INSIDE]
        try:
            # On SIGTERM, a salloc that waits withdraws its request.
            self._salloc = child.start(command, PIPE, PIPE, PIPE, signal.SIGTERM)
        except (OSError, subprocess.SubprocessError) as error:
            self._report(line=f"salloc: error: {getattr(error, 'strerror', error)}")
            self._report_end(127)
            return
        out, err = self._salloc.stdout, self._salloc.stderr
        assert out is not None
        assert err is not None
        self._out = out.fileno()
        self._streams = {out.fileno(): out, err.fileno(): err}

    def descriptors(self) -> Iterable[int]:
        return self._streams

    def turn(self) -> None:
        if self._ended:
            return
        ready = select.select(list(self._streams), [], [], 0)[0] if self._streams else []
        for fd in ready:
            data = os.read(fd, 1 << 16)
            self._take(fd, data)
            if not data:
                del self._streams[fd]
        # If salloc was killed, the command inside keeps the streams open.
        if not ready and self._salloc is not None and self._salloc.poll() is not None:
            self.end()

    def _take(self, fd: int, data: bytes) -> None:
        *lines, self._pending[fd] = (self._pending.get(fd, b"") + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            if fd == self._out:
                with contextlib.suppress(ValueError):
                    self._report(granted=json.loads(text))
                    self._granted = True
            elif text:
                self._report(line=text)
                if self._job is None and (found := _NUMBER.search(text)):
                    self._job = found[1]
                    self._report(job=int(self._job))

    def end(self) -> None:
        """Release the allocation; no job of it is queued when this returns, if Slurm answers."""
        salloc = self._salloc
        if salloc is None or self._ended:
            return
        assert salloc.stdin is not None
        with contextlib.suppress(OSError):
            salloc.stdin.close()  # the command inside ends, and with it the allocation
        if not self._granted or not self._waited(salloc, ASK_END_S / 2):
            salloc.terminate()  # a salloc that waits in the queue ends only on SIGTERM
        waits = not self._waited(salloc, ASK_END_S)
        if (waits or salloc.returncode < 0) and not self._scancel():
            # Killed by a signal, salloc releases nothing. The clean-up of queues goes on for an
            # hour, also when this process has ended.
            cleanup = SlurmCleanup(self._name)
            cleanup.finish(ANSWERED if self._job else b"")
            if cleanup.wait(SCANCEL_S) != 0:
                self._report(left=self._job or "")
        if waits:
            end_programs([salloc])
        self._report_end(-signal.SIGKILL if salloc.returncode is None else salloc.returncode)

    def _report_end(self, status: int) -> None:
        self._ended = True
        self._streams.clear()
        self._report(ended=status)

    def _waited(self, salloc: subprocess.Popen[bytes], limit_s: float) -> bool:
        """Whether salloc ended in time. Its output is read meanwhile, so that it cannot block."""
        end = time.monotonic() + limit_s
        while salloc.poll() is None:
            if time.monotonic() > end:
                return False
            for fd in select.select(list(self._streams), [], [], 0.02)[0]:
                if not os.read(fd, 1 << 16):
                    del self._streams[fd]
        return True

    def _scancel(self) -> bool:
        """Cancel the allocation; whether Slurm answered that it did."""
        which = [self._job] if self._job else [f"--name={self._name}", "--me"]
        # With these variables scancel skips jobs, or asks before it cancels.
        env = {k: v for k, v in os.environ.items() if not k.startswith("SCANCEL_")}
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                ["scancel", *which],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                timeout=SCANCEL_S,
                env=env,
                check=False,
            )
            return done.returncode == 0
        return False


if __name__ == "__main__":
    inside()
