"""The daemon's task for the bridge of a run: the program that holds the streams to its nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import DEVNULL

from pytest_mnode.launchers.cleanup import child
from pytest_mnode.processes import KILLED_S, last_line

POLL_S = 0.02


class BridgeTask:
    """A program that makes its socket once it is up. Implements Task.

    within_s: limit of that. end_s: time that it may take to end. report(…) takes up=True,
    failed=reason, or ended=reason.
    """

    on_nodes = True

    def __init__(
        self,
        argv: Sequence[str],
        socket: str,
        within_s: float,
        end_s: float,
        report: Callable[..., None],
    ) -> None:
        self._socket, self._end_s, self._report = Path(socket), end_s, report
        self._errors = self._socket.with_name(f"{self._socket.name}.errors")
        self._until = time.monotonic() + within_s
        self._up = False
        self._program: subprocess.Popen[bytes] | None = None
        try:
            with self._errors.open("wb") as errors:
                self._program = child.start(argv, DEVNULL, DEVNULL, errors)
        except (OSError, subprocess.SubprocessError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            report(failed=f"cannot start {argv[0]} on this machine: {reason}")

    @property
    def busy(self) -> bool:
        return self._program is not None and not self._up

    def descriptors(self) -> Iterable[int]:
        return ()

    def turn(self) -> None:
        if self._program is None:
            return
        if self._ended():
            code = self._reap()
            why = last_line(self._errors.read_bytes()) or f"it ended with status {code}"
            self._report(**{"ended" if self._up else "failed": why})
        elif not self._up and self._socket.exists():
            self._up = True
            self._report(up=True)
        elif not self._up and time.monotonic() > self._until:
            self._reap()
            self._report(failed="not up in time")

    def end(self) -> None:
        if self._program is None:
            return
        self._signal(signal.SIGTERM)
        end = time.monotonic() + self._end_s
        while not self._ended() and time.monotonic() < end:
            time.sleep(POLL_S)
        self._reap()

    def _ended(self) -> bool:
        """Whether it has ended; it is not reaped, so that its process group keeps its number."""
        assert self._program is not None
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._program.pid, how) is not None

    def _signal(self, number: int) -> None:
        assert self._program is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._program.pid, number)

    def _reap(self) -> int:
        """Kill its process group; its status, that of SIGKILL if it outlives this."""
        assert self._program is not None
        self._signal(signal.SIGKILL)
        code = -int(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits inside the kernel
            code = self._program.wait(KILLED_S)
        self._program = None
        return code
