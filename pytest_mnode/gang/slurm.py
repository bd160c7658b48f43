"""The engine for Slurm: a gang is one job of N whole nodes.

Heartbeats are files in a directory that all nodes see. All jobs of a run have one name, which no
other has: by it they are found, and ended by `guarding` whatever becomes of the controller.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.gang import beating, guarding
from pytest_mnode.gang.beats import read_beats
from pytest_mnode.gang.engine import Ask, Beat, Capacity, Look, Refused
from pytest_mnode.gang.slurmjobs import ON, jobs_on, others_of, record_of
from pytest_mnode.gang.slurmneeds import Needs, for_sbatch
from pytest_mnode.gang.slurmplaces import NEVER, ONLY, Place, left_out, without
from pytest_mnode.launchers.slurm import NodeState, Slurm, SlurmError
from pytest_mnode.launchers.slurm.reservations import reserved_nodes

NAMES = ("partition", "account", "qos", "reservation", "constraint")
"""Of `scheduler.names`: those that sbatch has options for."""
_PLACE = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURMD_NODENAME")
_NO_SERVER = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes")
_GUARD_LIMIT_S = guarding.SOON_S + 2 * guarding.COMMAND_S


def options_of(names: Mapping[str, str]) -> list[str]:
    """sbatch's options for `scheduler.names`. Raises UsageError for a name that is none."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"scheduler.names: {name}: accepted for slurm: {', '.join(NAMES)}")
    return [f"--{name}={value}" for name, value in names.items()]


def script(python: str, directory: Path, runs_s: float) -> str:
    """What is submitted: a rank a node, each with a file for its heartbeats."""
    program = Path(beating.__file__).read_text()
    words = [python, "-I", "-S", "-c", program, str(directory), f"{runs_s:.3f}", *_PLACE]
    step = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpu-bind=none", "--mpi=none"]
    return f"#!/bin/sh\nexec {shlex.join([*step, *words])}\n"


class SlurmEngine:
    """See Engine. Made by `opened`; `close` ends all of its jobs.

    shared: a directory that all nodes see, in which one for this run is made. python: on the
    nodes. args: further words for sbatch, such as --partition=gpu. names: of the spec's scheduler.
    """

    name = "slurm"

    def __init__(
        self,
        shared: Path,
        *,
        python: str = "",
        args: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        given = [*for_sbatch(args), *options_of(names or {})]
        self._place, self._needs = Place.read(given), Needs.read(given)
        # Which nodes are left out is said once: the last --exclude wins.
        self._options = without(without(given, *ONLY), *NEVER)
        self._python = python or sys.executable
        self._slurm = Slurm()
        self._submitter = Slurm(dict.fromkeys(left_out(os.environ)))
        self._job_name = f"mnode-gang-{uuid.uuid4().hex[:12]}"
        try:
            self.directory = Path(tempfile.mkdtemp(prefix=".mnode-gang-", dir=shared))
        except OSError as error:
            raise UsageError(
                f"no directory for heartbeats in {shared}: {error.strerror}; give one that all "
                "nodes see, --mnode-shared-dir"
            ) from None
        self._read: dict[str, int] = {}
        self._submitted = self._unanswered = False
        self._names: tuple[str, ...] = ()
        guard = [sys.executable, "-I", "-S", guarding.__file__, str(self.directory)]
        # What is completing holds no rank, and may stay so while a node is away.
        shows = "squeue --noheader --all --states=PENDING,RUNNING,SUSPENDED"
        self._guard = subprocess.Popen(
            [*guard, *(f"{does} --name={self._job_name}" for does in (shows, "scancel --full"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def capacity(self) -> Capacity:
        """See Engine: nodes of the partitions, or the reservation, that jobs go to, and those of
        them that are idle."""
        place = replace(self._place, partitions=self._place.partitions or (self._default(),))
        there = self._slurm.nodes()
        out = {*place.out([node.name for node in there]), *self._lacking(there)}
        usable = [node for node in place.nodes(there, self._reserved()) if node.name not in out]
        free = [
            node.name
            for node in usable
            if node.state == "IDLE" and "COMPLETING" not in node.flags and not node.cpus_allocated
        ]
        return Capacity(tuple(node.name for node in usable), tuple(free))

    def others(self, nodes: Sequence[str]) -> dict[str, str]:
        """See Engine."""
        there = self._place.unreserved(self._slurm.nodes(nodes))
        # Of these nodes only: all jobs of a large cluster take long, and meanwhile nothing is seen.
        said = self._slurm.run(
            *("squeue", "--all", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"),
            *(f"--nodelist={','.join(nodes)}", ON),
        )
        return others_of(nodes, jobs_on(said), there, self._job_name)

    def submit(self, ask: Ask) -> tuple[str, ...]:
        """See Engine."""
        return (self._sbatch(ask, ask.nodes),)

    def _sbatch(self, ask: Ask, nodes: int) -> str:
        """One job; its id."""
        others: list[str] = []
        if ask.among or self._place.only or self._place.never:
            # Asked for once: on large clusters it is much, and nodes seldom come.
            self._names = self._names or tuple(node.name for node in self._slurm.nodes())
            others = self._place.out(self._names, ask.among)
        minutes = max(1, math.ceil(ask.limit_s / 60))
        options = [
            *self._options,
            f"--job-name={self._job_name}",
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            "--exclusive",
            f"--time={minutes}",
            "--requeue" if ask.requeue else "--no-requeue",
            *([f"--exclude={','.join(others)}"] if others else []),
            f"--chdir={self.directory}",
            f"--output={self.directory}/%j.out",
            "--open-mode=append",
        ]
        text = script(self._python, self.directory, ask.runs_s)
        self._submitted = self._unanswered = True  # it may be taken though no answer comes
        try:
            said = self._submitter.run("sbatch", "--parsable", *options, text_in=text)
        except SlurmError as error:
            if error.returncode in (None, 126, 127) or any(w in error.told for w in _NO_SERVER):
                raise
            self._unanswered = False
            raise Refused(error.told) from None
        self._unanswered = False
        job = said.strip().partition(";")[0]
        if not job.isdigit():
            raise ClusterError(f"sbatch: {said.strip()!r} is no job id")
        return job

    def observe(self) -> Look:
        """See Engine."""
        asked = time.time()
        try:
            jobs = self._slurm.jobs(self._job_name)
            records = {str(job.job_id): record_of(job) for job in jobs}
        except ClusterError as error:
            return Look(asked, time.time(), None, *self._beats(), why=str(error))
        answered = time.time()
        return Look(asked, answered, records, *self._beats())

    def cancel(self, jobs: Sequence[str]) -> None:
        """See Engine."""
        self._slurm.cancel(*map(int, jobs))

    def close(self) -> None:
        """End all jobs of this run, and remove its directory. Raises ClusterError."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(b"" if self._unanswered else guarding.ANSWERED)
                self._guard.stdin.close()
        try:
            code = self._guard.wait(_GUARD_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0 and self._submitted:
            raise ClusterError(
                f"jobs named {self._job_name} may be left: scancel did not end them, and is tried "
                f"on for an hour; or run scancel --name={self._job_name}"
            )

    def _reserved(self) -> tuple[str, ...]:
        """Nodes of the reservation that jobs go to, if they go to one."""
        if (name := self._place.reservation) is None:
            return ()
        return reserved_nodes(
            self._slurm.run("scontrol", "--oneliner", "show", "reservation"), name
        )

    def _lacking(self, there: Sequence[NodeState]) -> set[str]:
        """Nodes that have not what each node of a job must have."""
        if not self._needs.any:
            return set()
        text = self._slurm.run("scontrol", "--all", "--oneliner", "show", "node")
        return {node.name for node in there} - self._needs.met(text)

    def _default(self) -> str:
        """The partition where jobs go that name none."""
        named = self._slurm.run("sinfo", "--noheader", "--format=%P").split()
        default = [name.rstrip("*") for name in named if name.endswith("*")]
        if not default:
            raise ClusterError(
                f"Slurm has no default partition; name one of {', '.join(named)} in the spec, "
                "scheduler: {names: {partition: …}}"
            )
        return default[0]

    def _beats(self) -> tuple[tuple[Beat, ...], int]:
        """Heartbeats that were written since the last time, whole lines only."""
        beats: list[Beat] = []
        unreadable = 0
        try:
            paths = sorted(self.directory.glob("*.beats"))
        except OSError:
            return (), 1
        for path in paths:
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path.name, 0))
                    data = file.read()
            except OSError:  # a file system that is away: what is in it is not known
                unreadable += 1
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            some, wrong = read_beats(whole.decode(errors="replace"))
            beats += some
            unreadable += wrong
        return tuple(beats), unreadable


def default_shared(root: Path) -> Path:
    """Where heartbeats go unless something is said: below the root of the tests, if one may write
    there, else below the home directory."""
    return root if os.access(root, os.W_OK) else Path.home()
