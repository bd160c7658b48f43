"""Runs by Slurm that are ended from outside: nothing of them is left, on nodes or in the queue."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engines.inside import spec_for, start_pytest
from tests.engines.slurm import SlurmOnRack
from tests.inner import write_files

BUSY = """
    import pathlib, subprocess, time

    def test_long(world, process_group, request):
        # A child in a session of its own, as a stubborn data loader would be.
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        pathlib.Path(request.config.rootpath, f"busy{world.rank}").touch()
        time.sleep(120)
"""


class Busy:
    """A run on two nodes, both of whose ranks are in a long test; known by a variable."""

    def __init__(self, slurm: SlurmOnRack, directory: Path) -> None:
        write_files(directory, test_it=BUSY)
        self.directory, self.temporary = directory, directory / "tmp"
        self.temporary.mkdir()
        self.mark = f"MARK_{uuid.uuid4().hex}"
        self.program = start_pytest(
            slurm,
            directory,
            *("--mnode-launcher=slurm", "--mnode-nodes=2"),
            spec_for(slurm, directory, "slurm", power=None),
            "test_it.py",
            env={self.mark: "1", "TMPDIR": str(self.temporary)},
        )
        slurm.await_that(self.busy, 90, "ranks are busy")

    def busy(self) -> bool:
        if self.program.poll() is not None:
            pytest.fail(str(self.program.communicate()))
        return len(list(self.directory.glob("busy*"))) == 2

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if self.mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def left(self) -> list[str]:
        """Processes and files of the run that are still there."""
        files = [*self.temporary.glob("*mnode-*"), *self.directory.glob(".mnode-*")]
        return [*(f"{p.pid} {p.name()}" for p in self.processes()), *map(str, files)]

    def controller(self) -> psutil.Process:
        """pytest itself, seen from out here."""
        [found] = [p for p in self.processes() if "--mnode-launcher=slurm" in p.cmdline()[:6]]
        return found


@pytest.fixture
def busy(slurm: SlurmOnRack, tmp_path: Path) -> Iterator[Busy]:
    run = Busy(slurm, tmp_path)
    yield run
    run.program.kill()
    run.program.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing(
    slurm: SlurmOnRack, busy: Busy, number: signal.Signals
) -> None:
    assert len(busy.processes()) > 10
    [job] = slurm.queue()
    assert len(job.nodes) == 2
    os.kill(busy.controller().pid, number)
    output, _ = busy.program.communicate(timeout=60)
    if number is signal.SIGINT:
        assert busy.program.returncode == pytest.ExitCode.INTERRUPTED, output
    slurm.await_that(lambda: not slurm.queue(), 20, "the allocation is given back")
    slurm.await_that(lambda: not busy.left(), 20, f"nothing is left of {busy.left()}")


def test_the_allocation_is_taken_away(slurm: SlurmOnRack, busy: Busy) -> None:
    """As at its time limit, or by scancel: the run ends, and says why."""
    [job] = slurm.queue()
    slurm.run("scancel", str(job.job_id))
    output, _ = busy.program.communicate(timeout=60)
    assert busy.program.returncode != 0
    assert "is lost" in output
    slurm.await_that(lambda: not busy.left(), 20, f"nothing is left of {busy.left()}")
