"""Which processes a style of launch starts on each node, with which variables. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.launching.described import LaunchJob

TORCHRUN = ("python", "-m", "torch.distributed.run")
"""The torchrun command, by the interpreter that the user's PATH finds first."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a node: argv, and variables beside those of the login.

    In argv, {home} stands for the user's home there.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs: nodes in the order of ranks, and where they meet."""

    nodes: tuple[str, ...]
    address: str
    port: int


def processes(
    job: LaunchJob,
    place: Placement,
    pins: Mapping[str, Mapping[str, str]],
    by_deepspeed: bool = False,
) -> dict[str, tuple[Process, ...]]:
    """What to start on each node, by its name, for a job that is placed.

    pins: variables of the site, by node: which interface collectives use. The job's own win.
    by_deepspeed: deepspeed's launcher is there and starts the ranks of its style; else they are
    started here, one by one, with the variables that it would set.
    """
    found = {}
    for number, node in enumerate(place.nodes):
        env = {**pins.get(node, {}), **job.env}
        match job.style:
            case "torchrun":
                started = [Process((*_torchrun(job, place, number), *_program(job)), env)]
            case "deepspeed" if by_deepspeed:
                started = [Process((*_deepspeed(job, place, number), *job.command), env)]
            case "deepspeed":
                started = _each(job, number, env, _as_deepspeed(job, place, number))
            case "megatron":
                started = _each(job, number, env, _as_scheduler(job, place, number))
            case "plain":
                started = [Process(job.command, env)]
        found[node] = tuple(started)
    return found


def _each(
    job: LaunchJob, number: int, env: Mapping[str, str], common: Mapping[str, str]
) -> list[Process]:
    """One process a rank of this node."""
    names = (
        ("RANK", "LOCAL_RANK") if job.style == "deepspeed" else ("SLURM_PROCID", "SLURM_LOCALID")
    )
    first = number * job.rank_count
    return [
        Process(
            job.command,
            {**env, **common, names[0]: str(first + local), names[1]: str(local)},
        )
        for local in range(job.rank_count)
    ]


def _program(job: LaunchJob) -> Sequence[str]:
    """The command as torchrun takes it: a Python program or module, or any other command.

    Options of the interpreter torchrun does not know, so that a command with some is any other.
    """
    python, *words = job.command
    plain = python == "python" and words and (words[0] == "-m" or not words[0].startswith("-"))
    return words if plain else ("--no-python", *job.command)


def _torchrun(job: LaunchJob, place: Placement, number: int) -> Sequence[str]:
    return (
        *TORCHRUN,
        *("--nnodes", str(len(place.nodes)), "--nproc-per-node", str(job.rank_count)),
        *("--node-rank", str(number)),
        *("--master-addr", place.address, "--master-port", str(place.port)),
        # Left alone it leaves a folder of logs in /tmp.
        *("--log-dir", "{home}/torchrun"),
    )


def _deepspeed(job: LaunchJob, place: Placement, number: int) -> Sequence[str]:
    """What the deepspeed command runs on each node of its hostfile."""
    world = {node: list(range(job.rank_count)) for node in place.nodes}
    info = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    return (
        *("python", "-m", "deepspeed.launcher.launch", f"--world_info={info}"),
        *(f"--node_rank={number}", f"--master_addr={place.address}"),
        *(f"--master_port={place.port}", "--no_python", "--no_local_rank"),
    )


def _as_deepspeed(job: LaunchJob, place: Placement, number: int) -> dict[str, str]:
    """The variables of deepspeed's launcher (deepspeed/launcher/launch.py) but for the rank's."""
    return {
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        "WORLD_SIZE": str(len(place.nodes) * job.rank_count),
        "CROSS_RANK": str(number),
        "CROSS_SIZE": str(len(place.nodes)),
        "LOCAL_SIZE": str(job.rank_count),
    }


def _as_scheduler(job: LaunchJob, place: Placement, number: int) -> dict[str, str]:
    """What srun tells a task (srun(1), OUTPUT ENVIRONMENT VARIABLES) but for the task's own.

    The node list is of what others reach the nodes by: the first one's address, then names.
    """
    return {
        "MASTER_PORT": str(place.port),
        "SLURM_NTASKS": str(len(place.nodes) * job.rank_count),
        "SLURM_NODEID": str(number),
        "SLURM_JOB_NUM_NODES": str(len(place.nodes)),
        "SLURM_JOB_NODELIST": ",".join((place.address, *place.nodes[1:])),
    }
