"""Runs torchrun on one node of a submitted job: `python -m … PLAN START`, one task of a step.

What torchrun prints goes to the node's own file, and so does how it ended: srun's exit status is
the largest of all tasks. Told to end, it waits for torchrun, which the same signal reaches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pytest_mnode.jobs.slurm.files import (
    Plan,
    Status,
    log_of,
    read_start,
    write_status,
    write_told,
)
from pytest_mnode.jobs.torchrun import was_preempted


def main(plan_path: Path, start_path: Path) -> int:
    """Run it; the exit status of torchrun, 128 + signal where one ended it."""
    plan, start = Plan.read(plan_path), read_start(start_path)
    directory, place = plan_path.parent, plan.places[os.environ["SLURMD_NODENAME"]]
    node = place.name
    log = log_of(directory, node, start.requeue)
    argv = start.argv(plan.job, node, place.address, f"{log}-ranks")
    env = {**os.environ, **start.env(plan.job, node, place.interface, os.environ)}
    # What killed processes leave in temporary files goes with the job.
    env.setdefault("TMPDIR", str(directory))
    told: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(time.time()))
    with log.open("ab") as output:
        torchrun = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
        )
    said = False
    while True:
        try:
            code = torchrun.wait(0.1)
        except subprocess.TimeoutExpired:
            code = None
        if told and not said:
            said = True
            write_told(directory, node, start.requeue, torchrun.pid, told[0])
        if code is not None:
            break
    code = code if code >= 0 else 128 - code
    preempted = was_preempted([log.read_text(errors="replace")])
    write_status(directory, node, start.requeue, Status(code, preempted, bool(told)))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
