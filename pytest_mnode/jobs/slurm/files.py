"""The directory of a submitted job, which all nodes see: its files, and how they are read.

For start number R of the job, from 0:

    plan.json       what to run
    start.R.json    where to run: nodes in the order of ranks, and their rendezvous
    NODE.R          output of torchrun and the ranks of a node
    NODE.R.sigterm  "PID TIME": when torchrun got SIGTERM, by the node's clock
    NODE.R.status   how torchrun ended there
    slurm.out       output of Slurm and of the batch script

A reader lists the directory and opens only listed files, because an NFS client caches a failed
lookup of a name for half a minute and more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.torchrun import Start

PLAN, OUTPUT = "plan.json", "slurm.out"
LOST = 128 + 9
"""Exit status of torchrun on a node that was lost, or killed by Slurm, before it wrote one."""


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node that the job may run on, by its name in the run."""

    name: str
    address: str
    interface: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The job, its possible nodes by Slurm's names, and more arguments of its step. `job_id` is
    MNODE_JOB."""

    job_id: str
    job: Job
    nodes: Mapping[str, JobNode]
    srun_arguments: tuple[str, ...] = ()

    def write(self, directory: Path) -> Path:
        path = directory / PLAN
        path.write_text(json.dumps(asdict(self), default=dict))
        return path

    @classmethod
    def read(cls, path: Path) -> Plan:
        data = json.loads(path.read_text())
        nodes = {name: JobNode(**node) for name, node in data["nodes"].items()}
        return cls(data["job_id"], Job(**data["job"]), nodes, tuple(data.get("srun_arguments", ())))


@dataclass(frozen=True, slots=True)
class Status:
    """How torchrun ended on a node.

    code: exit status; 128 + signal. preempted: a rank exited because it was preempted.
    sigterm: torchrun got SIGTERM.
    """

    code: int
    preempted: bool
    sigterm: bool


def write_start(directory: Path, start: Start) -> Path:
    path = directory / f"start.{start.requeue}.json"
    _write(path, json.dumps(asdict(start)))
    return path


def read_start(path: Path) -> Start:
    data = json.loads(path.read_text())
    return Start(**{**data, "nodes": tuple(data["nodes"])})


def write_status(directory: Path, node: str, requeue: int, status: Status) -> None:
    _write(directory / f"{node}.{requeue}.status", json.dumps(asdict(status)))


def read_status(directory: Path, node: str, requeue: int) -> Status | None:
    """How torchrun ended on a node; None if it has not ended, or was lost with its node."""
    text = read(directory, f"{node}.{requeue}.status")
    return None if text is None else Status(**json.loads(text))


def write_sigterm(directory: Path, node: str, requeue: int, pid: int, time_s: float) -> None:
    _write(directory / f"{node}.{requeue}.sigterm", f"{pid} {time_s:.6f}")


def read_sigterm(directory: Path, node: str, requeue: int) -> tuple[int, float] | None:
    """(pid of torchrun, time of its SIGTERM); None if it got none."""
    text = read(directory, f"{node}.{requeue}.sigterm")
    if text is None:
        return None
    pid, at = text.split()
    return int(pid), float(at)


def log_of(directory: Path, node: str, requeue: int) -> Path:
    return directory / f"{node}.{requeue}"


def read(directory: Path, name: str) -> str | None:
    """A file's text; None if the directory does not list it."""
    with os.scandir(directory) as entries:
        there = any(entry.name == name for entry in entries)
    return (directory / name).read_text(errors="replace") if there else None


def _write(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the whole file or none."""
    made = path.with_name(f".{path.name}")
    made.write_text(text)
    made.replace(path)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Reads the files of a job's programs. Each method is about nodes of start `requeue`."""

    directory: Path

    def statuses(self, nodes: Sequence[str], requeue: int) -> dict[str, Status | None]:
        """How torchrun ended on each node; None for a node without a status."""
        return {name: read_status(self.directory, name, requeue) for name in nodes}

    def running(self, nodes: Sequence[str], requeue: int) -> list[str]:
        return [name for name, end in self.statuses(nodes, requeue).items() if end is None]

    def sigterms(self, nodes: Sequence[str], requeue: int) -> dict[str, tuple[int, float]]:
        """Pid of torchrun and time of its SIGTERM by the node's clock, on nodes that got one."""
        found = {name: read_sigterm(self.directory, name, requeue) for name in nodes}
        return {name: sent for name, sent in found.items() if sent is not None}

    def preempted(self, nodes: Sequence[str], requeue: int) -> bool:
        """Whether torchrun got SIGTERM, or a rank reported that it was preempted."""
        ends = self.statuses(nodes, requeue).values()
        return any(end.preempted or end.sigterm for end in ends if end is not None)

    def codes(self, nodes: Sequence[str], requeue: int) -> dict[str, int]:
        ends = self.statuses(nodes, requeue).items()
        return {name: LOST if end is None else end.code for name, end in ends}

    def output(self, node: str, requeue: int, first: bool) -> str:
        """Output of a node in all starts up to this one. first: adds the output of Slurm."""
        logs = [log_of(self.directory, node, number).name for number in range(requeue + 1)]
        logs += [OUTPUT] if first else []
        return "".join(read(self.directory, name) or "" for name in logs)
