"""Ends what an experiment left in a scheduler's queue, however the experiment ended.

Run as a file, by any Python: `guarding.py DIRECTORY SHOWS ENDS`, two commands as a shell has them:
one that prints a line for each job that is left, and one that ends them all. When its standard
input ends, with the controller or because the controller closed it, jobs are ended until none is
shown, for an hour where the scheduler is away, ever more seldom; and the directory goes, after a
minute in any case. A submission that was under way is waited for, unless the input said
that each had been answered.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

ANSWERED = b"answered\n"
SOON_S, LIMIT_S = 60.0, 3600.0
"""How long jobs are ended before the directory goes whatever is left, and how long after that: a
scheduler that is restarted, or upgraded, comes back within the hour."""
LATE_S = 3.0
"""How long a submission may still arrive whose sender is gone."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
COMMAND_S = 20.0


def main(directory: str, shows: list[str], ends: list[str]) -> int:
    """0 where nothing is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answered = sys.stdin.buffer.read().endswith(ANSWERED)
    return 0 if end(directory, shows, ends, 0.0 if answered else LATE_S) else 1


def end(directory: str, shows: list[str], ends: list[str], late_s: float) -> bool:
    """End jobs and remove the directory; whether none is left."""
    try:
        gone = _none_left(shows, ends, late_s, SOON_S)
    except OSError:  # no such command: it will not be there the next time either
        _remove(directory)
        return False
    _remove(directory)
    with contextlib.suppress(OSError):
        return gone or _none_left(shows, ends, 0.0, LIMIT_S)
    return False


def _remove(directory: str) -> None:
    """Ranks end where it is gone, also those of jobs that start later. Renamed first, so that none
    puts a file into what is being removed."""
    away = f"{directory}.gone"
    with contextlib.suppress(OSError):
        os.rename(directory, away)  # noqa: PTH104  starts faster without pathlib
    shutil.rmtree(away, ignore_errors=True)


def _none_left(shows: list[str], ends: list[str], late_s: float, limit_s: float) -> bool:
    began = time.monotonic()
    while time.monotonic() < began + limit_s:
        asked_s = time.monotonic()
        left = run(shows)
        if left is not None and not left.strip():
            if asked_s >= began + late_s:
                return True
        else:
            run(ends)  # also where it is not known what is left
        longer_s = (time.monotonic() - began) / 20
        time.sleep(min(max(_PAUSE_S, longer_s), _LONGEST_PAUSE_S))
    return False


def run(argv: list[str]) -> str | None:
    """What a command printed; None where it failed or did not end. Raises OSError."""
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
        )
        return done.stdout if done.returncode == 0 else None
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], shlex.split(sys.argv[2]), shlex.split(sys.argv[3])))
