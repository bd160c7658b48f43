"""The batch script of a job, and the script of its tasks. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.launching.styles import TORCHRUN, LaunchJob, program
from pytest_mnode.launchers.nodes import FREE_PORT

ADDED = (
    *("SLURM", "SRUN_", "SBATCH_", "PMI", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TMPDIR", "HOSTNAME", "MASTER_"),
)
"""Prefixes of variables that Slurm and the script add in every style."""


@dataclass(frozen=True, slots=True)
class SiteEnvironment:
    """The site's part of a batch job. login: variables of a login on a node.

    pins: variables of the site, by node. directory: for the job's output, visible on all nodes.
    image: whether srun runs images. step: more options of srun, which win. port: MASTER_PORT, if
    the script does not run on the first node.
    """

    login: Mapping[str, str]
    pins: Mapping[str, Mapping[str, str]]
    directory: str
    image: bool = False
    step: Sequence[str] = ()
    port: int | None = None


def tasks_per_node(job: LaunchJob) -> int:
    """Number of tasks that the scheduler starts per node; torchrun is one task and starts ranks."""
    return 1 if job.style in ("torchrun", "plain") else job.rank_count


def batch_lines(job: LaunchJob, site: SiteEnvironment, task_path: str) -> list[str]:
    free_port = f"$(python -I -S -c {shlex.quote(FREE_PORT)})"
    lines = [
        # sbatch --export=NONE sets this variable, and srun would obey it.
        "unset SLURM_EXPORT_ENV",
        *_exports(site.login),
        *_exports(job.env),
        f"MASTER_PORT={site.port or free_port}",
        "export MASTER_PORT",
    ]
    if job.style != "megatron":  # in that style the user's script sets it
        first = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
        lines += [f"MASTER_ADDR=$({first})", "export MASTER_ADDR"]
    tasks = tasks_per_node(job)
    command = [
        *("srun", f"--ntasks-per-node={tasks}", "--export=ALL", "--mpi=none"),
        f"--cpus-per-task={job.rank_count // tasks or 1}",
        *("--input=none", "--kill-on-bad-exit=0", "--wait=0"),
    ]
    if site.image and job.image:
        mounts = f"--container-mounts={site.directory}:{site.directory}"
        command += [f"--container-image={job.image}", mounts]
    command += site.step
    return [*lines, f"exec {shlex.join([*command, 'sh', task_path])}"]


def task_text(job: LaunchJob, site: SiteEnvironment) -> str:
    """Script of each task. Output and status go to files per task, because srun names its files by
    host name, which may differ from Slurm's node name, and returns only the largest status."""
    match job.style:
        case "torchrun":
            variables, command = [], _torchrun_of_task(job, site.directory)
        case "deepspeed":
            variables, command = _DEEPSPEED, shlex.join(job.command)
        case _:
            variables, command = [], shlex.join(job.command)
    out, code = (
        f'{shlex.quote(site.directory)}/{what}-"$SLURMD_NODENAME-$SLURM_PROCID"'
        for what in ("out", "code")
    )
    lines = ["#!/bin/sh", f"exec >{out} 2>&1", *_pin_lines(job, site.pins), *variables, command]
    return "\n".join([*lines, "code=$?", f'echo "$code" >{code}', 'exit "$code"']) + "\n"


_DEEPSPEED = [
    'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_NTASKS"',
    'export CROSS_RANK="$SLURM_NODEID" CROSS_SIZE="$SLURM_JOB_NUM_NODES"',
    "export LOCAL_SIZE=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))",
]
"""The variables of deepspeed's launcher (deepspeed/launcher/launch.py)."""


def _torchrun_of_task(job: LaunchJob, directory: str) -> str:
    return " ".join(
        (
            shlex.join(TORCHRUN),
            f'--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {job.rank_count}',
            '--node-rank "$SLURM_NODEID"',
            '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"',
            # By default, torchrun leaves a folder of logs in /tmp.
            f"--log-dir {shlex.quote(directory)}/torchrun-$SLURM_NODEID",
            shlex.join(program(job)),
        )
    )


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _pin_lines(job: LaunchJob, by_node: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
    """Exports of the site's variables that the job does not set, one case per set of variables."""
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
    """Whether srun has the plugin (pyxis) that runs tasks in images; from `srun --help`."""
    return "--container-image" in help_text
