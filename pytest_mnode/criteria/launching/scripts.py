"""What users of Slurm write to start each style of job: a batch script, and what each task does.

Pure. The batch script says what the user's profile and the site would set, finds out where ranks
meet, and starts tasks with srun; facts of a task are Slurm's own.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.launching.described import LaunchJob
from pytest_mnode.criteria.launching.styles import TORCHRUN

FREE_PORT = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1])"
ADDED = (
    *("SLURM", "SRUN_", "SBATCH_", "PMI", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TMPDIR", "HOSTNAME", "MASTER_"),
)
"""Beginnings of what Slurm and the script itself add in every style."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of a job on a site. login: variables of a login there; pins: of the site, by node.

    directory: one that all nodes see, for what comes of the job. image: whether srun takes one.
    """

    login: Mapping[str, str]
    pins: Mapping[str, Mapping[str, str]]
    directory: str
    image: bool = False


def tasks_per_node(job: LaunchJob) -> int:
    """How many the scheduler starts on each node; torchrun is one, and starts its ranks itself."""
    return 1 if job.style in ("torchrun", "plain") else job.rank_count


def batch_lines(job: LaunchJob, around: Surroundings, task_path: str) -> list[str]:
    """The batch script after its options."""
    lines = [
        # Set by --export=NONE, which would go on for srun.
        "unset SLURM_EXPORT_ENV",
        *_exports(around.login),
        *_exports(job.env),
        f"MASTER_PORT=$(python -I -S -c {shlex.quote(FREE_PORT)})",
        "export MASTER_PORT",
    ]
    if job.style != "megatron":  # there the user's own script finds it
        first = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
        lines += [f"MASTER_ADDR=$({first})", "export MASTER_ADDR"]
    tasks = tasks_per_node(job)
    command = [
        *("srun", f"--ntasks-per-node={tasks}", "--export=ALL", "--mpi=none"),
        f"--cpus-per-task={job.rank_count // tasks or 1}",
        *("--input=none", "--kill-on-bad-exit=0", "--wait=0"),
    ]
    if around.image and job.image:
        mounts = f"--container-mounts={around.directory}:{around.directory}"
        command += [f"--container-image={job.image}", mounts]
    return [*lines, shlex.join([*command, "sh", task_path])]


def task_text(job: LaunchJob, around: Surroundings) -> str:
    """What each task runs. What it prints and its exit status go to files of its own: srun would
    name them for the host, which a node need not be called for, and says the largest status."""
    match job.style:
        case "torchrun":
            variables, command = [], _torchrun(job, around.directory)
        case "deepspeed":
            variables, command = _DEEPSPEED, shlex.join(job.command)
        case _:
            variables, command = [], shlex.join(job.command)
    out, code = (
        f'{shlex.quote(around.directory)}/{what}-"$SLURMD_NODENAME-$SLURM_PROCID"'
        for what in ("out", "code")
    )
    lines = ["#!/bin/sh", f"exec >{out} 2>&1", *_pins(job, around.pins), *variables, command]
    return "\n".join([*lines, "code=$?", f'echo "$code" >{code}', 'exit "$code"']) + "\n"


_DEEPSPEED = [
    'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS"',
    'export CROSS_RANK="$SLURM_NODEID" CROSS_SIZE="$SLURM_JOB_NUM_NODES"',
    "export LOCAL_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))",
]
"""The variables of deepspeed's launcher (deepspeed/launcher/launch.py)."""


def _torchrun(job: LaunchJob, directory: str) -> str:
    program = job.command[1:] if job.command[0] == "python" else ("--no-python", *job.command)
    return " ".join(
        (
            shlex.join(TORCHRUN),
            f'--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {job.rank_count}',
            '--node-rank "$SLURM_NODEID"',
            '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"',
            # Left alone it leaves a folder of logs in /tmp.
            f"--log-dir {shlex.quote(directory)}/torchrun-$SLURM_NODEID",
            shlex.join(program),
        )
    )


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _pins(job: LaunchJob, by_node: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
    """The site's, but those that the job sets itself; nodes that have the same ones together."""
    nodes_of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, pins in by_node.items():
        own = tuple((name, value) for name, value in pins.items() if name not in job.env)
        nodes_of.setdefault(own, []).append(node)
    if len(nodes_of) == 1:
        return _exports(dict(next(iter(nodes_of))))
    cases = [
        f"{'|'.join(nodes)}) {'; '.join(_exports(dict(pins))) or ':'} ;;"
        for pins, nodes in nodes_of.items()
    ]
    return ['case "$SLURMD_NODENAME" in', *cases, "esac"] if cases else []


def srun_takes_images(help_text: str) -> bool:
    """Whether srun has a plugin (pyxis) that runs tasks in images; from `srun --help`."""
    return "--container-image" in help_text
