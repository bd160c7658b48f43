"""Runs on Slurm that are ended from outside leave nothing, on nodes or in the queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.busy import Busy
from tests.engines.slurm import SlurmOnRack


@pytest.fixture
def busy(slurm: SlurmOnRack, tmp_path: Path) -> Iterator[Busy]:
    run = Busy(slurm, "slurm", tmp_path)
    try:
        yield run
    finally:
        run.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_run_leaves_nothing(
    slurm: SlurmOnRack, busy: Busy, number: signal.Signals
) -> None:
    assert len(busy.processes()) > 10
    [job] = slurm.queue()
    assert len(job.nodes) == 2
    os.kill(busy.controller().pid, number)
    output, _ = busy.program.communicate(timeout=60)
    if number is signal.SIGINT:
        assert busy.program.returncode == pytest.ExitCode.INTERRUPTED, output
    slurm.await_that(lambda: not slurm.queue(), 30, "the allocation is given back")
    busy.until(lambda: not busy.left(), 30, "nothing is left")


def test_a_killed_clean_up_is_replaced(slurm: SlurmOnRack, busy: Busy) -> None:
    """Then the run is killed too."""
    [first] = releasing(busy)
    os.kill(first, signal.SIGKILL)
    busy.until(lambda: {first} != set(releasing(busy)) != set(), 30, "another one runs")
    os.kill(busy.controller().pid, signal.SIGKILL)
    busy.program.communicate(timeout=60)
    slurm.await_that(lambda: not slurm.queue(), 30, "the allocation is given back")
    busy.until(lambda: not busy.left(), 30, "nothing is left")


def releasing(busy: Busy) -> list[int]:
    """Pids of the processes that release the allocation."""
    return [p.pid for p in busy.processes() if any("queue_cleanup" in w for w in p.command)]


def test_a_run_that_loses_its_allocation_ends_with_the_reason(
    slurm: SlurmOnRack, busy: Busy
) -> None:
    """The allocation ends, as at its time limit or by scancel."""
    [job] = slurm.queue()
    slurm.run("scancel", str(job.job_id))
    output, _ = busy.program.communicate(timeout=60)
    assert busy.program.returncode != 0
    assert "is lost" in output
    busy.until(lambda: not busy.left(), 30, "nothing is left")
