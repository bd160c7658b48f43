"""sbatch: requests of jobs, their submission, and whether a job could start now."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.slurm import Slurm, SlurmError
from pytest_mnode.launchers.slurm.command_lines import is_submitted
from pytest_mnode.launchers.slurm.records import records, text_of

_SOON = timedelta(seconds=30)
"""A job with a later expected start waits for another job to end: most likely this run's."""
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Site:
    """The site of the run's own allocation, used for its jobs too. None for Slurm's default."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None


def site_of(text: str) -> Site:
    """The site of an allocation, from `scontrol --oneliner show job`."""
    found = next(records(text, "JobId"), {})
    names = ("Partition", "Account", "QOS", "Reservation")
    return Site(*(text_of(found.get(name)) for name in names))


@dataclass(frozen=True, slots=True)
class Request:
    """A job for sbatch.

    fewest: the smallest number of nodes it may start on; None for `nodes`. begin_on: nodes of its
    first start. never_on: nodes that it must not get. gpus_per_node: 0 requests none.
    again: Slurm may requeue it. moves: a requeued job may get other nodes.
    output: file of the batch script, on the first node. export: variables that it gets from the
    submitting environment (--export); None for all.
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
        """Long options of sbatch, for its command line or for a script."""
        most = str(self.nodes)
        count = most if self.fewest in (None, self.nodes) else f"{self.fewest}-{most}"
        asked = {
            "job-name": self.name,
            "nodes": count,
            "ntasks-per-node": str(self.tasks_per_node),
            "cpus-per-task": str(self.cpus_per_task),
            "gpus-per-node": str(self.gpus_per_node) if self.gpus_per_node else None,
            "nodelist": ",".join(self.begin_on) or None,
            "exclude": compress(self.never_on, tails=False) or None,
            "partition": self.site.partition,
            "account": self.site.account,
            "qos": self.site.qos,
            "reservation": self.site.reservation,
            "output": self.output,
            "open-mode": "append",  # keep the output of earlier starts
            "chdir": self.directory,
            "export": self.export,
        }
        found = [f"--{name}={value}" for name, value in asked.items() if value is not None]
        return [*found, "--requeue" if self.again else "--no-requeue"]


def request_of(
    job: Job, nodes: Sequence[str], names: Names, site: Site, *, gpus: int, directory: str
) -> Request:
    """The request of a job that starts on these nodes; the caller sets its name and output.

    A job that may move to other nodes is kept from nodes that the run does not have.
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
    """A batch script that a user could submit: options as comments, then the lines."""
    options = [f"#SBATCH {shlex.quote(option)}" for option in request.options()]
    return "\n".join(("#!/bin/sh", *options, *lines)) + "\n"


def submitting(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to submit from: the job gets it, in place of one of the node's own.

    It lacks the variables of an allocation around this run, and what no node gets.
    """
    return {name: value for name, value in environ.items() if is_submitted(name, value)}


def submit(script: str, env: Mapping[str, str], options: Sequence[str]) -> int:
    """Queue a batch script; returns the job's number. Raises SlurmError, one line.

    options: for the command line, where they override SBATCH_ variables; a script's do not.
    """
    words = ("sbatch", "--parsable", *options)
    answer = Slurm().run(*words, text_in=script, env=env).strip()
    number = answer.partition(";")[0]
    if not number.isdigit():
        raise SlurmError("sbatch", 0, f"{answer!r} is not a job id")
    return int(number)


def why_not_submitted(request: Request, allocation: int) -> str:
    """Why Slurm would not start this job now beside the run's allocation; "" if it would.

    Slurm itself decides (`sbatch --test-only`), as it knows the processors, memory, GPUs, limits
    and the queue. Raises SlurmError if Slurm does not answer.
    """
    try:
        text = Slurm().run(
            *("sbatch", "--test-only", *request.options()),
            text_in="#!/bin/sh\ntrue\n",
            env=submitting(os.environ),
            with_errors=True,
        )
    except SlurmError as error:
        if error.returncode in (None, 126, 127):
            raise
        text = error.text
    return no_room(text, datetime.now(), allocation)


def no_room(text: str, now: datetime, allocation: int) -> str:
    """Why a job would not start now, from the output of `sbatch --test-only`; "" if it would.

    now: local time, like the times that Slurm prints.
    """
    met = _START.search(text)
    if met is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = (
            lines[-1].removeprefix("sbatch: ").removeprefix("error: ") if lines else "no output"
        )
        return f"Slurm would not start it beside allocation {allocation} of this run ({reason})"
    at = datetime.fromisoformat(met[1])
    if at <= now + _SOON:
        return ""
    return (
        f"allocation {allocation} of this run holds the nodes: a submitted job would start at "
        f"{at:%Y-%m-%d %H:%M:%S} only"
    )
