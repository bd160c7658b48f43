"""Takes a job out of Slurm's queue when whoever submitted it is gone: `guarding.py NAME`.

Run by its path with `python -I -S`. Whoever submits holds the other end of standard input: it says
"over" when the job is taken care of, and where the input just ends, jobs of that name are cancelled
until there are none. A submission that was under way is waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

LIMIT_S = 120.0
_COMMAND_S = 20.0
_LATE_S = 3.0
"""How long a submission may still arrive whose sender is gone."""


def main(name: str) -> int:
    """0 where nothing is left in the queue."""
    # Ctrl-C and a terminal that goes away are the controller's affair.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline().strip() == "over":
        return 0
    began, sure = time.monotonic(), False
    while time.monotonic() < began + LIMIT_S:
        asked = run(["squeue", "--all", "--noheader", "--name", name, "--format=%A %T"])
        left = None if asked is None else [line for line in asked.splitlines() if line.strip()]
        late = left == [] and time.monotonic() > began + _LATE_S
        if late and sure:
            return 0
        if late or left is None or any("COMPLETING" not in line for line in left):
            # Once more where nothing is listed: scancel finds jobs that are shown to nobody.
            sure = run(["scancel", "--name", name]) is not None and late
        time.sleep(0.5)
    return 1


def run(argv: list[str]) -> str | None:
    """What a command printed; None where it failed or did not end."""
    # By these the user has jobs left out of lists, or is asked before anything is cancelled.
    liked = ("SQUEUE_", "SCANCEL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(liked)}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            env=env,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
