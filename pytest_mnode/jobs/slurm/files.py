"""What a submitted job's own programs are told: a value, and files in the job's directory.

The directory is one that all nodes see. In it, for start number R of the job, from 0:

    plan.json       what to run
    start.R.json    where: nodes in the order of ranks, and where they meet
    NODE.R          what torchrun and the ranks printed on a node
    NODE.R.told     "PID TIME": torchrun was told to end (SIGTERM), by the node's clock
    NODE.R.status   how torchrun ended there
    slurm.out       what Slurm, and the job's own programs, have to say

Whoever waits for a file reads the directory, and opens only what it lists: NFS remembers of a name
that was looked up in vain that it is not there, for half a minute and more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.torchrun import Start

PLAN, OUTPUT = "plan.json", "slurm.out"


@dataclass(frozen=True, slots=True)
class Place:
    """A node that the job may run on: its name in the run, its address for the others, and the
    fabric's interface."""

    name: str
    address: str
    interface: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and on which nodes it may be, by Slurm's names. `job_id` marks its processes."""

    job_id: str
    job: Job
    places: Mapping[str, Place]

    def write(self, directory: Path) -> Path:
        """Into its file there; the path."""
        path = directory / PLAN
        told = {
            "job_id": self.job_id,
            "argv": list(self.job.argv),
            "procs_per_node": self.job.procs_per_node,
            "env": dict(self.job.env),
            "torchrun": list(self.job.torchrun),
            "restarts": self.job.restarts,
            "requeues": self.job.requeues,
            "places": {name: asdict(place) for name, place in self.places.items()},
        }
        path.write_text(json.dumps(told))
        return path

    @classmethod
    def read(cls, path: Path) -> Plan:
        """From its file."""
        told = json.loads(path.read_text())
        places = {name: Place(**place) for name, place in told.pop("places").items()}
        job_id = told.pop("job_id")
        job = Job(**{**told, "torchrun": tuple(told["torchrun"])})
        return cls(job_id, job, places)


@dataclass(frozen=True, slots=True)
class Status:
    """How torchrun ended on a node: exit status (128 + signal), and whether it was preempted.

    told: it had been sent SIGTERM.
    """

    code: int
    preempted: bool
    told: bool


def write_start(directory: Path, start: Start) -> Path:
    """Where a start of the job is; the path."""
    path = directory / f"start.{start.requeue}.json"
    _write(path, json.dumps(asdict(start)))
    return path


def read_start(path: Path) -> Start:
    """From its file."""
    told = json.loads(path.read_text())
    return Start(**{**told, "nodes": tuple(told["nodes"])})


def write_status(directory: Path, node: str, requeue: int, status: Status) -> None:
    """How torchrun ended on a node."""
    _write(directory / f"{node}.{requeue}.status", json.dumps(asdict(status)))


def read_status(directory: Path, node: str, requeue: int) -> Status | None:
    """None where it has not ended, or went with its node."""
    text = read(directory, f"{node}.{requeue}.status")
    return None if text is None else Status(**json.loads(text))


def write_told(directory: Path, node: str, requeue: int, pid: int, time_s: float) -> None:
    """That torchrun, which is that process, was told to end."""
    _write(directory / f"{node}.{requeue}.told", f"{pid} {time_s:.6f}")


def read_told(directory: Path, node: str, requeue: int) -> tuple[int, float] | None:
    """(pid of torchrun, when it was told to end); None: it was not."""
    text = read(directory, f"{node}.{requeue}.told")
    if text is None:
        return None
    pid, at = text.split()
    return int(pid), float(at)


def log_of(directory: Path, node: str, requeue: int) -> Path:
    """What the job printed on a node."""
    return directory / f"{node}.{requeue}"


def read(directory: Path, name: str) -> str | None:
    """A file's text; None where the directory does not list it."""
    with os.scandir(directory) as entries:
        there = any(entry.name == name for entry in entries)
    return (directory / name).read_text(errors="replace") if there else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for whoever looks at the same time."""
    made = path.with_name(f".{path.name}")
    made.write_text(text)
    made.replace(path)
