"""Programs that end with the process that started them, such as ssh and srun."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

_TIED = (
    "import ctypes,os,resource,sys\nctypes.CDLL(None).prctl(1,15,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1)\n"
    "files=resource.RLIMIT_NOFILE\n"
    "resource.setrlimit(files,(int(sys.argv[2]),resource.getrlimit(files)[1]))\n"
    "os.execvp(sys.argv[3],sys.argv[3:])"
)


def tied(argv: Sequence[str], open_files: int | None = None) -> list[str]:
    """The command that runs a program which gets SIGTERM when the thread that starts it ends.

    open_files: its soft limit of open files; None for that of this process.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), str(files), *argv]


def start(
    argv: Sequence[str], stdin: int, stdout: int, stderr: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which is killed when this process ends; it must have
    only one thread.

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
        preexec_fn=lambda: prctl(1, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509  PR_SET_PDEATHSIG
    )
