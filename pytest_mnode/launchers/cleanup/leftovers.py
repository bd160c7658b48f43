"""What a run may leave with a scheduler, and the process that ends it."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from dataclasses import dataclass

from pytest_mnode.launchers.cleanup import queue_cleanup
from pytest_mnode.launchers.cleanup.queue_cleanup import ANSWERED, COMMAND_S, DONE, SOON_S

ENDED_S = SOON_S + 2 * COMMAND_S
"""How long a run waits at its end for the process, which goes on."""
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a run may leave with a scheduler, all of it under one name that nothing else has.

    what: in words. show: the command that prints a line for each one that is left. end: the command
    that ends them all. by_hand: a command for the user.
    """

    name: str
    what: str
    show: tuple[str, ...]
    end: tuple[str, ...]
    by_hand: str

    def __str__(self) -> str:
        return f"{self.what} may be left; their end is retried for an hour; or run {self.by_hand}"


class Cleanup:
    """The process that ends leftovers, however this one ends. It starts before they are made.

    directory: removed with them.
    """

    def __init__(self, leftovers: Leftovers, directory: str = "") -> None:
        self.leftovers, self._directory = leftovers, directory
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        left = self.leftovers
        last_words = f"{left.what} are left after an hour; run {left.by_hand}"
        words = (shlex.join(left.show), shlex.join(left.end), last_words, self._directory)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", queue_cleanup.__file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the controller alone
        )

    def guard(self) -> None:
        """Start the process again if it was killed."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed and self._process.poll() is not None:
            with contextlib.suppress(OSError):  # too many processes: the next call tries again
                self._process = self._started()
                stdin.close()

    def end(self, answered: bool, limit_s: float | None = None) -> str:
        """End them; "" once none is left, else what may be, in words: the process goes on.

        answered: whether every submission was, so that none can still arrive. limit_s: None for
        ENDED_S.
        """
        self.guard()
        self._finish(ANSWERED if answered else b"")
        code = self._wait(ENDED_S if limit_s is None else limit_s)
        return "" if code == 0 else str(self.leftovers)

    def close(self, done: bool) -> None:
        """Idempotent. done: they have ended; else the process goes on ending them."""
        self._finish(DONE if done else b"")
        if done and self._wait(_END_S) is None:
            self._process.kill()
            self._wait(_END_S)

    def _finish(self, last: bytes) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(OSError):
                stdin.write(last)
                stdin.close()

    def _wait(self, limit_s: float) -> int | None:
        """Its exit status; None if it still runs after the limit."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
