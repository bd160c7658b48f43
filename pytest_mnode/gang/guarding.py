"""Ends what an experiment left in a scheduler's queue, however the experiment ended.

Run as a file, by any Python: `guarding.py DIRECTORY COMMAND…`. When its standard input ends, with
the controller or because the controller closed it, the command runs and the directory goes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

TRIES = 5
PAUSE_S = 0.5
LIMIT_S = 20.0


def main(directory: str, command: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    done = False
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=False,
            ).returncode == 0  # fmt: skip
        except OSError:
            break  # no such command: it will not be there the next time either
        except subprocess.TimeoutExpired:
            done = False
        if done:
            break
        time.sleep(PAUSE_S)
    # Ranks end where it is gone, also those of jobs that start later. Renamed first, so that none
    # puts a file into what is being removed.
    gone = f"{directory}.gone"
    with contextlib.suppress(OSError):
        os.rename(directory, gone)  # noqa: PTH104  starts faster without pathlib
    shutil.rmtree(gone, ignore_errors=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
