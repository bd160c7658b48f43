"""ssh, or srun, as the keeper and the near end start it, which run without site-packages."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO


def start(
    argv: Sequence[str], stdin: int, stdout: int, stderr: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """In a session of its own, ended with this process. Raises OSError, or SubprocessError."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # ssh to a jump host is not told of BatchMode, and would ask for a password in a window.
        env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        preexec_fn=_die_with_parent,  # noqa: PLW1509  there is one thread
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
