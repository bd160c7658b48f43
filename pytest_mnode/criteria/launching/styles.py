"""The job file of a user; and for each style of launch the processes on nodes.

Pure, but for reading the file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from pytest_mnode.errors import UsageError
from pytest_mnode.spec.fields import Section, Some, Text
from pytest_mnode.spec.load import read_model
from pytest_mnode.spec.quantity import shown

HERE, RANKS = "{here}", "{ranks_per_node}"
"""Placeholders in a command: the folder of the job file, and the number of ranks per node."""
Word = Annotated[str, StringConstraints(min_length=1)]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _or_all(least: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not whole and value != "all":
            raise ValueError(f"{shown(value)}; accepted: a whole number of {least} or more, or all")
        return value

    return BeforeValidator(check)


class LaunchJob(Section):
    """A job as a user describes it."""

    name: Text
    """Name of the job."""
    image: Text | None = None
    """Container image that the command runs in; left out: none."""
    nodes: Annotated[int | Literal["all"], _or_all(1)]
    """Number of nodes, or all."""
    accelerators_per_node: Annotated[int | Literal["all"], _or_all(0)]
    """Number of accelerators per node; 0 if ranks compute on CPUs."""
    ranks_per_node: Some | None = None
    """Number of ranks per node where ranks compute on CPUs; left out: 1. On accelerators it is one
    rank per accelerator."""
    command: Annotated[tuple[Word, ...], Field(min_length=1)]
    """Program and arguments, word by word; {here} stands for the folder of this file, and
    {ranks_per_node} for the number of ranks per node."""
    style: Literal["torchrun", "deepspeed", "megatron", "plain"] = "torchrun"
    """What starts the ranks: one torchrun per node; deepspeed's launcher; the scheduler, with one
    task per rank; or nothing: the command runs once per node."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every process."""

    @field_validator("env")
    @classmethod
    def _leaves_the_contract(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                raise ValueError(
                    f"{name} would be the same in every process; accepted: variables that the "
                    "launcher does not set"
                )
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(name)}; accepted: names of variables, such as NCCL_DEBUG")
        return env

    @field_validator("ranks_per_node")
    @classmethod
    def _is_one_per_accelerator(cls, ranks: int | None, info: ValidationInfo) -> int | None:
        each = info.data.get("accelerators_per_node")
        if isinstance(each, int) and each and ranks not in (None, each):
            raise ValueError(
                f"{ranks} with accelerators_per_node {each}; accepted: {each}, one per "
                "accelerator, or left out"
            )
        return ranks

    def placed(self, nodes: int, accelerators: int, *, every: int | None = None) -> Self:
        """The job with numbers in place of `all`.

        nodes: the most that it may have. accelerators: per node, of the spec. every: the number of
        nodes that `all` means, if that is not `nodes`. Raises UsageError if the job requests more
        than there is.
        """
        count = (every or nodes) if self.nodes == "all" else self.nodes
        each = accelerators if self.accelerators_per_node == "all" else self.accelerators_per_node
        if count > nodes:
            raise UsageError(f"job {self.name}: nodes {count}; accepted: up to {nodes}")
        if each > accelerators:
            raise UsageError(
                f"job {self.name}: accelerators_per_node {each}; the spec has {accelerators} "
                "per node"
            )
        ranks = each or self.ranks_per_node or 1
        placed = self.model_copy(
            update={"nodes": count, "accelerators_per_node": each, "ranks_per_node": ranks}
        )
        words = tuple(word.replace(RANKS, str(placed.rank_count)) for word in self.command)
        return placed.model_copy(update={"command": words})

    @property
    def node_count(self) -> int:
        assert isinstance(self.nodes, int), "not placed"
        return self.nodes

    @property
    def rank_count(self) -> int:
        return 1 if self.style == "plain" else self.ranks_per_node or 1


def read_job(path: Path) -> LaunchJob:
    """The job in the YAML file `path`.

    Raises UsageError, one line with the file, the dotted key, the value met and the accepted form.
    """
    job = read_model(path, LaunchJob)
    here = str(path.absolute().parent)
    command = tuple(word.replace(HERE, here) for word in job.command)
    return job.model_copy(update={"command": command})


TORCHRUN = ("python", "-m", "torch.distributed.run")
"""The torchrun command, with the first Python of the user's PATH."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a node. env: variables to add to those of the login.

    In argv, {logs} stands for a directory of the user on that node, which is removed afterwards.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs: nodes in the order of ranks, and the rendezvous."""

    nodes: tuple[str, ...]
    address: str
    port: int


def processes(
    job: LaunchJob,
    place: Placement,
    pins: Mapping[str, Mapping[str, str]],
    by_deepspeed: bool = False,
) -> dict[str, tuple[Process, ...]]:
    """The processes to start on each node, by its name, for a placed job.

    pins: variables of the site by node, such as the interface for collectives; the job's own
    variables win. by_deepspeed: whether deepspeed's launcher is installed and starts the ranks of
    its style; if not, they are started one by one with the variables that it sets.
    """
    found = {}
    for number, node in enumerate(place.nodes):
        env = {**pins.get(node, {}), **job.env}
        match job.style:
            case "torchrun":
                started = [Process((*_torchrun(job, place, number), *program(job)), env)]
            case "deepspeed" if by_deepspeed:
                started = [Process((*_deepspeed(job, place, number), *job.command), env)]
            case "deepspeed":
                started = _one_per_rank(job, number, env, _as_deepspeed(job, place, number))
            case "megatron":
                started = _one_per_rank(job, number, env, _as_scheduler(job, place, number))
            case "plain":
                started = [Process(job.command, env)]
        found[node] = tuple(started)
    return found


def _one_per_rank(
    job: LaunchJob, number: int, env: Mapping[str, str], common: Mapping[str, str]
) -> list[Process]:
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


def program(job: LaunchJob) -> Sequence[str]:
    """The command in torchrun's form: a Python program or module, or --no-python and a command.

    torchrun cannot pass options to the interpreter, so a Python command with options needs
    --no-python.
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
        # By default, torchrun leaves a folder of logs in /tmp.
        *("--log-dir", "{logs}"),
    )


def _deepspeed(job: LaunchJob, place: Placement, number: int) -> Sequence[str]:
    """The command that deepspeed runs on each node of its hostfile."""
    world = {node: list(range(job.rank_count)) for node in place.nodes}
    info = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    return (
        *("python", "-m", "deepspeed.launcher.launch", f"--world_info={info}"),
        *(f"--node_rank={number}", f"--master_addr={place.address}"),
        *(f"--master_port={place.port}", "--no_python", "--no_local_rank"),
    )


def _as_deepspeed(job: LaunchJob, place: Placement, number: int) -> dict[str, str]:
    """Variables of deepspeed's launcher (deepspeed/launcher/launch.py), except the rank's own."""
    return {
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        "WORLD_SIZE": str(len(place.nodes) * job.rank_count),
        "CROSS_RANK": str(number),
        "CROSS_SIZE": str(len(place.nodes)),
        "LOCAL_SIZE": str(job.rank_count),
    }


def _as_scheduler(job: LaunchJob, place: Placement, number: int) -> dict[str, str]:
    """Variables of an srun task (srun(1), OUTPUT ENVIRONMENT VARIABLES), without the task's own.

    The node list has the address of the first node, then the names of the others.
    """
    return {
        "MASTER_PORT": str(place.port),
        "SLURM_NTASKS": str(len(place.nodes) * job.rank_count),
        "SLURM_NODEID": str(number),
        "SLURM_JOB_NUM_NODES": str(len(place.nodes)),
        "SLURM_JOB_NODELIST": ",".join((place.address, *place.nodes[1:])),
    }
