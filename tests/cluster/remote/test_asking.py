"""Commands that look at nodes, as they are started."""

from __future__ import annotations

import pytest

from pytest_mnode.cluster.remote.asking import ask


def test_options_of_the_job_are_none_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS", "16")  # as in a job of sbatch --gpus=16
    monkeypatch.setenv("SRUN_CPUS_PER_TASK", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    said = ask({"n0": ["env"]}, 30)["n0"].stdout.splitlines()
    assert "SLURM_JOB_ID=7" in said
    assert not [line for line in said if line.startswith(("SLURM_GPUS", "SRUN_"))]
