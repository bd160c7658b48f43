"""The programs of a submitted job on its nodes. They need neither torch nor pytest.

    python -m pytest_mnode.jobs.slurm.on_node batch PLAN         in the batch script, first node
    python -m pytest_mnode.jobs.slurm.on_node task PLAN START    one task per node, by srun

`batch` picks a rendezvous, starts one task per node and waits. It requeues a preempted job, as
users' scripts do; a job that lost a node is requeued by Slurm. `task` runs torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.errors import MnodeError
from pytest_mnode.jobs.slurm import files
from pytest_mnode.jobs.slurm.files import Plan, Status
from pytest_mnode.jobs.torchrun import Start, was_preempted
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.launchers.slurm import Slurm, SlurmError

_LIST = "SLURM_JOB_NODELIST"
_REQUEUE_S = 120.0
"""Longest time that Slurm takes to end a job that it requeues."""


def batch(plan_path: Path) -> int:
    """Start one task per node and wait; returns the exit status of the job."""
    plan = Plan.read(plan_path)
    directory, job = plan_path.parent, os.environ["SLURM_JOB_ID"]
    requeue, allowed = int(os.environ.get("SLURM_RESTART_COUNT", "0")), plan.job.requeues
    if requeue > allowed:
        print(f"started again {requeue} times, {allowed} were allowed", flush=True)
        return 1
    given = expand(os.environ.get(_LIST, ""))
    if not given:
        print(f"Slurm named no node of this job ({_LIST})", flush=True)
        return 1
    strange = [name for name in given if name not in plan.nodes]
    if strange:
        where = ", ".join(strange)
        print(f"Slurm started this job on {where}, not part of this run", flush=True)
        return 1
    got_sigterm: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: got_sigterm.append(1))
    nodes = tuple(plan.nodes[name].name for name in given)
    address = plan.nodes[given[0]].address
    [(family, *_), *_] = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    with socket.create_server((address, 0), family=family) as free:
        port = free.getsockname()[1]
    start = files.write_start(directory, Start(plan.job_id, nodes, requeue, address, port))
    how = (len(nodes), os.environ, plan.srun_arguments)
    code = subprocess.call(step(*how, sys.executable, plan_path, start))
    statuses = [files.read_status(directory, name, requeue) for name in nodes]
    if not got_sigterm and is_requeued(statuses, requeue, allowed):
        try:
            Slurm().run("scontrol", "requeue", job)
        except SlurmError as error:
            print(error, flush=True)
        time.sleep(_REQUEUE_S)
    return code


def step(
    nodes: int, env: Mapping[str, str], arguments: Sequence[str], python: str, *paths: Path
) -> Sequence[str]:
    """The srun command that starts `task` on each node of the job. arguments: more, which win."""
    # Not every version of Slurm passes sbatch's options on to steps.
    cpus = env.get("SLURM_CPUS_PER_TASK", "1")
    return (
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus}", "--mpi=none", "--export=ALL"),
        # srun kills no task: torchrun tells nodes of a failed one, and their last output is useful.
        *("--input=none", "--kill-on-bad-exit=0", "--wait=0", *arguments),
        *(python, "-m", "pytest_mnode.jobs.slurm.on_node", "task", *map(str, paths)),
    )


def is_requeued(statuses: Sequence[Status | None], requeue: int, allowed: int) -> bool:
    """Whether the job has to be requeued because it was preempted, and may be.

    False if all nodes ended well. A node without a status may be lost: Slurm detects that itself.
    """
    ended = [status for status in statuses if status is not None]
    well = len(ended) == len(statuses) and not any(status.code for status in ended)
    preempted = any(status.preempted or status.sigterm for status in ended)
    return preempted and not well and requeue < allowed


def task(plan_path: Path, start_path: Path) -> int:
    """Run torchrun; returns its exit status, 128 + signal if a signal ended it.

    Output and status go to files of this node, because srun's exit status is the largest of all. A
    SIGTERM reaches torchrun too; this program notes it and waits for torchrun.
    """
    plan, start = Plan.read(plan_path), files.read_start(start_path)
    directory, own = plan_path.parent, plan.nodes[os.environ["SLURMD_NODENAME"]]
    node = own.name
    log = files.log_of(directory, node, start.requeue)
    argv = start.argv(plan.job, node, own.address, f"{log}-ranks")
    env = {**os.environ, **start.env(plan.job, node, own.interface, os.environ)}
    # Temporary files that killed processes leave are removed with the job.
    env.setdefault("TMPDIR", str(directory))
    got_sigterm: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: got_sigterm.append(time.time()))
    with log.open("ab") as output:
        torchrun = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
        )
    noted, code = False, None
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = torchrun.wait(0.1)
        if got_sigterm and not noted:
            noted = True
            files.write_sigterm(directory, node, start.requeue, torchrun.pid, got_sigterm[0])
    code = code if code >= 0 else 128 - code
    preempted = was_preempted([log.read_text(errors="replace")])
    status = Status(code, preempted, bool(got_sigterm))
    files.write_status(directory, node, start.requeue, status)
    return code


def main(what: str, *paths: str) -> int:
    """A failure is one line of the job's output."""
    try:
        return (batch if what == "batch" else task)(*map(Path, paths))
    except MnodeError as error:
        print(error, flush=True)
    except OSError as error:
        print(f"{error.filename or 'rendezvous'}: {error.strerror}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
