"""Replaces torchrun in jobs that must start quickly: static rendezvous, no restarts.

It starts ranks with torchrun's variables, passes SIGTERM on to them, and reports failed ranks in
torchrun's words. A job finds it by PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main(words: list[str]) -> int:
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        options[words[0]] = words[1]
        words = words[2:]
    nodes, ranks = int(options["--nnodes"]), int(options["--nproc-per-node"])
    first = int(options["--node-rank"]) * ranks
    children = []
    for local in range(ranks):
        own = {
            "RANK": str(first + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(nodes * ranks),
            "MASTER_ADDR": options["--master-addr"],
            "MASTER_PORT": options["--master-port"],
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        children.append(subprocess.Popen([sys.executable, *words], env={**os.environ, **own}))

    def hand_on(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    codes = [child.wait() for child in children]
    for local, code in enumerate(codes):
        if code:
            print(f"  rank      : {first + local} (local_rank: {local})\n  exitcode  : {code} (…)")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
