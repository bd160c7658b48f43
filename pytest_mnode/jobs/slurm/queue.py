"""Submitting to Slurm: sbatch, with the environment that the job is to have."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from pytest_mnode.jobs.slurm.room import Foretold, foretold
from pytest_mnode.launchers.slurm import COMMAND_LIMIT_S, SlurmError
from pytest_mnode.launchers.slurm.commands import said


def submit(script: str, env: Mapping[str, str], options: Sequence[str]) -> int:
    """Queue a batch script; the number of the job. Raises SlurmError, one line.

    options: of the command line, where they win over SBATCH_… variables, as a script's do not.
    """
    done = _sbatch(script, env, "--parsable", *options)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdigit():
        raise SlurmError("sbatch", done.returncode, said(done.stderr, done.returncode))
    return int(number)


def ask(env: Mapping[str, str], options: Sequence[str]) -> Foretold:
    """When such a job would start; nothing is queued. Raises SlurmError."""
    done = _sbatch("#!/bin/sh\ntrue\n", env, "--test-only", *options)
    return foretold(f"{done.stdout}\n{done.stderr}")


def _sbatch(script: str, env: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["sbatch", *options],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            check=False,
            env=dict(env),
        )
    except subprocess.TimeoutExpired:
        raise SlurmError("sbatch", None, f"no answer in {COMMAND_LIMIT_S:g} s") from None
    except OSError as error:
        raise SlurmError("sbatch", 127, f"cannot be run: {error.strerror}") from None
