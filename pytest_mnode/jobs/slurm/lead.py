"""The batch script's program, on the first node of a submitted job: `python -m … PLAN`.

It finds a place where all nodes meet, starts one torchrun a node with srun, and waits. Where ranks
were told to end and the job may be started again, it asks the scheduler for that, as users' scripts
do; a lost node is the scheduler's own business.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.jobs.slurm.files import Plan, Status, read_status, write_start
from pytest_mnode.jobs.torchrun import Start

_LIST = "SLURM_JOB_NODELIST"
_ASK_S = 30.0
_TAKEN_S = 120.0
"""How long the scheduler may take to end a job that it starts again."""


def main(plan_path: Path) -> int:
    """Start and wait; the exit status of the job."""
    plan = Plan.read(plan_path)
    directory, job = plan_path.parent, os.environ["SLURM_JOB_ID"]
    requeue = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if requeue > plan.job.requeues:
        print(f"started again {requeue} times, {plan.job.requeues} were allowed", flush=True)
        return 1
    given = _ask(["scontrol", "show", "hostnames", os.environ[_LIST]]).split()
    if not given:
        print(f"Slurm named no node of this job ({_LIST}={os.environ[_LIST]})", flush=True)
        return 1
    strange = [name for name in given if name not in plan.places]
    if strange:
        print(f"started on {', '.join(strange)}, where it has no business", flush=True)
        return 1
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    nodes = tuple(plan.places[name].name for name in given)
    address = plan.places[given[0]].address
    [(family, *_), *_] = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    with socket.create_server((address, 0), family=family) as free:
        port = free.getsockname()[1]
    start = Start(plan.job_id, nodes, requeue, address, port)
    path = write_start(directory, start)
    code = subprocess.call(step(len(nodes), os.environ, sys.executable, plan_path, path))
    statuses = [read_status(directory, name, requeue) for name in nodes]
    if not told and goes_again(statuses, requeue, plan.job.requeues):
        _ask(["scontrol", "requeue", job])
        time.sleep(_TAKEN_S)
    return code


def step(
    nodes: int, env: Mapping[str, str], python: str, plan_path: Path, start_path: Path
) -> Sequence[str]:
    """The srun command that starts `onnode` on each node of the job."""
    # What sbatch was asked for is not passed on to steps by every version.
    cpus = env.get("SLURM_CPUS_PER_TASK", "1")
    return (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus}", "--mpi=none", "--export=ALL"),
        # A node that fails tells the others by torchrun; what they say then is worth reading.
        *("--input=none", "--kill-on-bad-exit=0", "--wait=0"),
        *(python, "-m", "pytest_mnode.jobs.slurm.onnode", str(plan_path), str(start_path)),
    )


def goes_again(statuses: Sequence[Status | None], requeue: int, allowed: int) -> bool:
    """Whether the job has to be started again because it was told to end, and may be.

    Not where it came to its end all the same. A node without a status may be lost: the scheduler
    knows better, and soon.
    """
    ended = [status for status in statuses if status is not None]
    well = len(ended) == len(statuses) and not any(status.code for status in ended)
    preempted = any(status.preempted or status.told for status in ended)
    return preempted and not well and requeue < allowed


def _ask(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False)
    if done.returncode:
        print(f"{' '.join(argv)}: {done.stderr.strip()}", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
