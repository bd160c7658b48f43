"""Programs that end with the process that started them, such as ssh and srun."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO


def start(
    argv: Sequence[str],
    stdin: int,
    stdout: int,
    stderr: int | IO[bytes],
    at_parents_end: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; this process must have only one thread.

    Raises OSError, or SubprocessError.
    """
    prctl = ctypes.CDLL(None).prctl
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # BatchMode does not reach the ssh to a jump host, which would ask in a window.
        env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        preexec_fn=lambda: prctl(1, at_parents_end, 0, 0, 0),  # noqa: PLW1509  PR_SET_PDEATHSIG
    )
