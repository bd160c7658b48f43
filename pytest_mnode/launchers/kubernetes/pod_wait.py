"""The main process of a run's pod: waits until the run is over, or has been silent for too long.

Only the standard library; its source is an argument of the image's Python. Arguments: the path of a
file that remote_exec touches while the run lives, and two limits of silence in seconds after which
the run is over: until the first touch, while the run waits for other pods, and from then on.
"""

import os
import signal
import sys
import time


def wait(path: str, first_s: float, silence_s: float) -> None:
    """Return once the file was not touched for `first_s`, or for `silence_s` after a touch."""
    touched, heard = 0, time.monotonic()
    while time.monotonic() - heard < (silence_s if touched else first_s):
        try:
            now = os.stat(path).st_mtime_ns  # noqa: PTH116  pathlib would cost its import
        except OSError:
            now = 0
        if now != touched:
            touched, heard = now, time.monotonic()
        time.sleep(1)


def end(number: int, _: object) -> None:
    os._exit(128 + number)  # with 0, a Job would not replace a pod that is deleted


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the pod's orphans are reaped
    wait(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
