"""Ends jobs in a scheduler's queue when their submitter is gone, however it ended.

Run by path with `python -I -S`; it needs only the standard library:

    queue_cleanup.py SHOW END TEXT [DIRECTORY]

SHOW prints one line for each remaining job; END ends them all. Both are one argument each, in
shell syntax. TEXT goes to the system's log if some are left in the end. The program waits for the
end of its standard input, whose last line is

    done       no job is left
    answered   every submission was answered, so none can still arrive
    (nothing)  the controller is gone, and a submission may be under way

Then it ends jobs until none is shown, and removes DIRECTORY after a minute at the latest. If the
scheduler does not answer, as during a restart or an upgrade, the program retries for an hour, with
growing pauses.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import syslog
import time

DONE, ANSWERED = b"done\n", b"answered\n"
SOON_S, LIMIT_S = 60.0, 3600.0
"""Limits for ending jobs: before the directory is removed regardless, and after that."""
COMMAND_S = 20.0
_LATE_S = 3.0
"""How long after its sender is gone a submission may still arrive."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


def main(show: str, end: str, text: str, directory: str = "") -> int:
    """0 if no job is left."""
    # PR_SET_NAME: who kills all that is called python does not mean this one.
    ctypes.CDLL(None).prctl(15, b"mnode-cleanup", 0, 0, 0)
    # Ctrl-C and a closed terminal are for the controller only.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    last = sys.stdin.buffer.read()
    if last.endswith(DONE) or clean_up(last, show, end, directory):
        return 0
    syslog.syslog(syslog.LOG_ERR, f"mnode: {text}")  # nobody else listens after an hour
    return 1


def clean_up(last: bytes, show: str, end: str, directory: str = "") -> bool:
    """End all jobs and remove the directory; True if none is left. last: last line of input."""
    shows, ends = shlex.split(show), shlex.split(end)
    late_s = 0.0 if last.endswith(ANSWERED) else _LATE_S
    try:
        gone = _none_left(shows, ends, late_s, SOON_S)
    except OSError:  # the scheduler's commands are not installed here
        _remove(directory)
        return False
    _remove(directory)
    with contextlib.suppress(OSError):
        return gone or _none_left(shows, ends, 0.0, LIMIT_S)
    return False


def _none_left(shows: list[str], ends: list[str], late_s: float, limit_s: float) -> bool:
    began = time.monotonic()
    ended_all = False
    while time.monotonic() < began + limit_s:
        asked_at = time.monotonic()
        left = _run(shows)
        if left is not None and not _running(left):
            if asked_at >= began + late_s:
                if ended_all or not (late_s or left.strip()):
                    return True
                # Once more: END also finds jobs that SHOW hides or that complete to be requeued.
                ended_all = _run(ends) is not None
        else:
            _run(ends)  # also if the remaining jobs are unknown
        longer_s = (time.monotonic() - began) / 20
        time.sleep(min(max(_PAUSE_S, longer_s), _LONGEST_PAUSE_S))
    return False


def _running(shown: str) -> list[str]:
    """Jobs to end; one that is completing has no rank, and stays so while its node is down."""
    return [line for line in shown.splitlines() if line.strip() and "COMPLETING" not in line]


def _remove(directory: str) -> None:
    """Remove a directory; it is renamed first, so that no file is added during the removal."""
    if directory:
        away = f"{directory}.gone"
        with contextlib.suppress(OSError):
            os.rename(directory, away)  # noqa: PTH104  starts faster without pathlib
        shutil.rmtree(away, ignore_errors=True)


def _run(argv: list[str]) -> str | None:
    """Output of a command; None if it failed or reached its limit. Raises OSError."""
    # With these variables users hide jobs from lists, or are prompted before a cancellation.
    hidden = ("SQUEUE_", "SCANCEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
            env=env,
        )
        return done.stdout if done.returncode == 0 else None
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
