"""A real Slurm on a rack: munged and slurmctld on its last node, slurmd on each of the others.

All of it belongs to the rack, and so ends with the process that made it, however that ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from pytest_mnode.launchers.rack import Rack
from pytest_mnode.launchers.slurm import JobState, NodeState
from pytest_mnode.launchers.slurm.jobs import jobs_from_text
from pytest_mnode.launchers.slurm.nodes import nodes_from_text
from pytest_mnode.protocol.launcher_requests import PowerOn
from tests.engines import slurm_conf
from tests.engines.on_rack import OnRack
from tests.inner import need

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol")
COMPUTE_NODES = 4
UP_LIMIT_S = 20.0


def unavailable() -> str | None:
    """Why Slurm cannot run here, in one line; None if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no Slurm here: {', '.join(missing)} not found in PATH"
    if os.geteuid() != 0:
        return "Slurm's daemons on the rack need root"
    return Rack.unavailable("root")


def need_slurm() -> None:
    """Skip if Slurm cannot run here."""
    need(unavailable())


class SlurmOnRack(OnRack):
    """`with SlurmOnRack() as slurm`: `slurm.run("sbatch", …)` runs it on the login node.

    nodes: compute nodes, named node0 …; the login node comes after them, and is on the same
        networks, but Slurm does not allocate it.
    down_after_s: SlurmdTimeout: how long a node may be silent until Slurm sets it DOWN. Slurm
        checks rarely, so that it takes up to three times as long; `down` does it at once.
    more: lines to add to slurm.conf. gpus: per node; device files stand in for them.
    """

    def __init__(
        self,
        nodes: int = COMPUTE_NODES,
        *,
        down_after_s: int = 60,
        more: str = "",
        gpus: int = 0,
    ) -> None:
        super().__init__("slurm", nodes)
        self.env = {"SLURM_CONF": str(self.directory / "etc" / "slurm.conf")}
        self._down_after_s, self._more, self._gpus = down_after_s, more, gpus
        self._changed = self._booted = False

    def __enter__(self) -> SlurmOnRack:
        try:
            self.rack.start()
            self._write()
            self._start_munged()
            self.start_daemon("slurmctld", self.login, ["slurmctld", "-D", "-c"])
            for name in self.names:
                self.start_daemon_of(name)
            self.start_switch()
            self.await_idle()
            self._booted = False
        except BaseException:
            self.close()
            raise
        return self

    # Commands.

    def run(self, *argv: str, check: bool = True, **options: Any) -> CompletedProcess[str]:
        """Run a command on the login node to its end; with `check` a failure fails the test."""
        done = super().run(*argv, **options)
        if check:
            assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    # Queries of Slurm's state.

    def jobs(self) -> tuple[JobState, ...]:
        """All jobs that Slurm still lists."""
        env = {"SLURM_TIME_FORMAT": "%s"}
        return jobs_from_text(self.run("scontrol", "--oneliner", "show", "job", env=env).stdout)

    def job(self, job_id: int) -> JobState:
        return next(job for job in self.jobs() if job.job_id == job_id)

    def queue(self) -> list[JobState]:
        """Jobs that have not ended."""
        return [job for job in self.jobs() if not job.over]

    def nodes(self) -> dict[str, NodeState]:
        text = self.run("scontrol", "--oneliner", "show", "node").stdout
        return {node.name: node for node in nodes_from_text(text)}

    def await_idle(self, limit_s: float = UP_LIMIT_S) -> float:
        """Wait until every node is idle and the queue is empty; seconds it took."""

        def idle() -> bool:
            sinfo = self.run("sinfo", "-h", "-N", "-o", "%T", check=False)
            states = sinfo.stdout.split()
            return states == ["idle"] * len(self.names)

        return self.await_that(idle, limit_s, "all nodes idle")

    def clear(self, limit_s: float = 30.0) -> None:
        """Restore the initial state: empty queue, all nodes on, slurmd running, links up."""
        for name in self.names:
            self.set_links(name, True)
        gone = {name for name in self.names if self._daemons[name].poll() is not None}
        for name in gone:
            self.rack.ask(PowerOn(name))  # nothing to do if only slurmd was killed
            self.start_daemon_of(name)
        if self._changed:
            self.set_down_after(self._down_after_s)
        self.run("scancel", "--user=root")
        # Slurm polls a node that was absent when a job ended only after minutes; unless the node
        # is down, when it can have no processes left.
        stuck = {name for job in self.queue() if "COMPLETING" in job.state for name in job.nodes}
        out = {name for name, node in self.nodes().items() if not node.usable}
        for name in stuck & gone:
            self.down(name)
        for name in out | (stuck & gone):
            self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self.await_that(lambda: not self.queue(), limit_s, "the queue is empty")
        self.await_idle(limit_s)
        if self._booted:
            # Nodes that were lost and returned may be idle but not allocatable for half a minute,
            # unless Slurm counts its nodes again.
            self.run("scontrol", "reconfigure")
            self.await_idle(limit_s)
            self._booted = False

    # Faults and their repair.

    def start_daemon_of(self, name: str) -> None:
        self._booted = True
        self.start_daemon(name, self.node(name), ["slurmd", "-D", "-N", name])

    def down(self, name: str, reason: str = "test") -> None:
        """Set a node DOWN now, as Slurm does by itself once the node is silent."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", f"reason={reason}")

    def set_down_after(self, seconds: int) -> None:
        """Set another SlurmdTimeout, until `clear`."""
        self._write_conf(seconds)
        self.run("scontrol", "reconfigure")
        self._changed = seconds != self._down_after_s

    # Starting.

    def _write(self) -> None:
        for part in ("etc", "munge", "state", "run", *(f"spool/{n}" for n in self.names)):
            (self.directory / part).mkdir(parents=True)
        (self.directory / "munge" / "key").write_bytes(os.urandom(128))
        (self.directory / "munge" / "key").chmod(0o600)
        (self.directory / "etc" / "cgroup.conf").write_text(slurm_conf.CGROUP)
        (self.directory / "etc" / "task_prolog").write_text(slurm_conf.TASK_PROLOG)
        (self.directory / "etc" / "task_prolog").chmod(0o755)
        files = ("null", "zero", "full", "random")[: self._gpus]
        gres = "".join(f"Name=gpu File=/dev/{name}\n" for name in files)
        (self.directory / "etc" / "gres.conf").write_text(gres)
        self._write_conf(self._down_after_s)

    def _write_conf(self, down_after_s: int) -> None:
        more = f"{self._more}\nGresTypes=gpu" if self._gpus else self._more
        text = slurm_conf.conf(self.directory, self.login, self.computes, down_after_s, more)
        if self._gpus:
            text = text.replace(" State=UNKNOWN", f" Gres=gpu:{self._gpus} State=UNKNOWN")
        Path(self.env["SLURM_CONF"]).write_text(text)

    def _start_munged(self) -> None:
        """One munged serves all nodes: they share the directory of its socket."""
        munge = self.directory / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self.start_daemon("munged", self.login, ["munged", "--foreground", "--force", *options])
        self.await_that((munge / "socket").is_socket, UP_LIMIT_S, "munged listens")


@pytest.fixture(scope="session")
def slurm_on_rack() -> Iterator[SlurmOnRack]:
    """One Slurm for all tests that use it; tests take `slurm`, which is reset for each."""
    need_slurm()
    with SlurmOnRack() as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_on_rack: SlurmOnRack) -> Iterator[SlurmOnRack]:
    """A Slurm with an empty queue and four idle nodes, restored after the test."""
    yield slurm_on_rack
    slurm_on_rack.clear()
