"""What is asked of sbatch: options and the script, from values to text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.slurm.names import Names
from pytest_mnode.launchers.slurm.fields import records, text_of

KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Variables by which Slurm's commands find their cluster; all others that begin with SLURM_ are
facts of an allocation or a step, and would be taken for options by what a job starts."""


@dataclass(frozen=True, slots=True)
class Site:
    """What the run's own allocation was given, and a job of it is submitted with, too.

    None: the cluster's default.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None


def site_of(text: str) -> Site:
    """What an allocation was given, from `scontrol --oneliner show job`."""
    found = next(records(text, "JobId"), {})
    names = ("Partition", "Account", "QOS", "Reservation")
    return Site(*(text_of(found.get(name)) for name in names))


@dataclass(frozen=True, slots=True)
class Request:
    """A job for sbatch.

    fewest: nodes that it may start with; None: all of `nodes`. begin_on: it starts on these, all
    of them. never_on: names of nodes that it may never get. tasks_per_node: of its steps.
    cpus_per_task, gpus_per_node: 0 GPUs are not asked for. again: the scheduler may start it again;
    moves: on other nodes than at first.
    output: of the batch script, on the first node. export: what it has of the environment that it
    is submitted from; None: all. Its time is the partition's default.
    """

    name: str
    nodes: int
    output: str
    directory: str
    fewest: int | None = None
    begin_on: Sequence[str] = ()
    never_on: Sequence[str] = ()
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    again: bool = False
    moves: bool = False
    export: str | None = None
    site: Site = field(default_factory=Site)

    def options(self) -> list[str]:
        """Those of sbatch, all of them long, so that they can stand in a script as well."""
        most = str(self.nodes)
        count = most if self.fewest in (None, self.nodes) else f"{self.fewest}-{most}"
        asked = {
            "job-name": self.name,
            "nodes": count,
            "ntasks-per-node": str(self.tasks_per_node),
            "cpus-per-task": str(self.cpus_per_task),
            "gpus-per-node": str(self.gpus_per_node) if self.gpus_per_node else None,
            "nodelist": ",".join(self.begin_on) or None,
            "exclude": ",".join(self.never_on) or None,
            "partition": self.site.partition,
            "account": self.site.account,
            "qos": self.site.qos,
            "reservation": self.site.reservation,
            "output": self.output,
            "open-mode": "append",  # what an earlier start said is wanted as well
            "chdir": self.directory,
            "export": self.export,
        }
        found = [f"--{name}={value}" for name, value in asked.items() if value is not None]
        return [*found, "--requeue" if self.again else "--no-requeue"]


def request_of(
    job: Job, nodes: Sequence[str], names: Names, site: Site, *, gpus: int, directory: str
) -> Request:
    """What a job asks for that begins on these nodes; its name and output are yet to be given.

    Pinned to them at first, it must be kept from nodes that are not its own where it may move.
    """
    moves = bool(job.spares) or job.fewest_nodes is not None
    return Request(
        name="mnode",
        nodes=len(nodes),
        fewest=job.fewest_nodes if job.requeues else None,
        begin_on=names.for_slurm(nodes),
        never_on=names.others if moves and job.requeues else (),
        cpus_per_task=job.procs_per_node,
        gpus_per_node=gpus,
        again=job.requeues > 0,
        moves=moves and job.requeues > 0,
        output="/dev/null",
        directory=directory,
        site=site,
    )


def script(request: Request, lines: Sequence[str]) -> str:
    """A batch script that a user could submit by hand: options as comments, then the lines."""
    options = [f"#SBATCH {shlex.quote(option)}" for option in request.options()]
    return "\n".join(("#!/bin/sh", *options, *lines)) + "\n"


def submitting(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to submit from: without facts of the allocation that a run may be in."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("SLURM_") or name in KEPT
    }
