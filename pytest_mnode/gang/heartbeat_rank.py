"""The program of every rank: it writes a line every 0.2 s, and ends by itself.

Any Python of the node can run it, by path or with -c, without this package:

    heartbeat_rank.py DIRECTORY SECONDS JOB RESTARTS RANK NODE

The last four are names of environment variables. Each rank writes to a file of its own, or to its
standard output if DIRECTORY is "-".
"""

import os
import signal
import sys
import time

EVERY_S = 0.2


def main(directory: str, seconds: float, names: list[str]) -> None:
    job, restarts, rank, node = (os.environ.get(name) or "0" for name in names)
    path: str | int = 1
    if directory != "-":
        path = os.path.join(directory, f"{job}.{restarts}.{rank}.beats")  # noqa: PTH118  starts faster
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: stopped.append(n))
    until = time.monotonic() + seconds
    # A removed directory means that the experiment is over: a rank that starts late ends at once.
    with open(path, "a", buffering=1) as file:  # noqa: PTH123
        while True:
            over = time.monotonic() >= until
            what = "sigterm" if stopped else "end" if over else "beat"
            file.write(f"{what} {job} {restarts} {rank} {node} {time.time():.3f}\n")
            if stopped or over or not os.path.exists(path):  # noqa: PTH110
                break
            time.sleep(EVERY_S)
    sys.exit(1 if stopped else 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:7])
