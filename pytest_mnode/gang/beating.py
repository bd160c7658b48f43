"""The program of every rank: it writes a line several times a second, and ends by itself.

Run as a file or by -c, by any Python of the node, without this package:
    python beating.py DIRECTORY SECONDS JOB LIFE RANK NODE
the last four being names of variables that say where it is. Lines go to a file of its own.
"""

import os
import signal
import sys
import time

EVERY_S = 0.2


def main(directory: str, seconds: float, names: list[str]) -> None:
    job, life, rank, node = (os.environ.get(name) or "0" for name in names)
    path = os.path.join(directory, f"{job}.{life}.{rank}.beats")  # noqa: PTH118  starts faster
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: told.append(n))
    until = time.monotonic() + seconds
    # No directory: the experiment is over, and whoever still gets nodes gives them back at once.
    with open(path, "a", buffering=1) as file:  # noqa: PTH123
        while True:
            over = time.monotonic() >= until
            what = "told" if told else "end" if over else "beat"
            file.write(f"{what} {job} {life} {rank} {node} {time.time():.3f}\n")
            if told or over or not os.path.exists(path):  # noqa: PTH110
                break
            time.sleep(EVERY_S)
    sys.exit(1 if told else 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:7])
