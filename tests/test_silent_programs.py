"""Programs that the package runs and that never answer: each is given up at its limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from pytest_mnode.certificate import run_facts, statement
from pytest_mnode.certificate.statement import signature_path, statement_path, statement_text
from pytest_mnode.errors import MnodeError
from pytest_mnode.jobs.slurm import sbatch
from pytest_mnode.launchers.slurm import commands as slurm_commands
from pytest_mnode.logs import kernel_log
from pytest_mnode.machine import model, nvidia_smi, programs, threads
from pytest_mnode.machine.model import Machine
from pytest_mnode.measuring import switches
from pytest_mnode.measuring.tools import beside_nic
from tests.programs import write_program
from tests.waiting import soon


def signed_file(directory: Path) -> Path:
    path = directory / "certificate.json"
    path.write_text("{}")
    statement_path(path).write_text(statement_text(path.name, b"{}"))
    signature_path(path).touch()
    return path


def signature(directory: Path) -> object:
    key = directory / "key"
    key.touch()
    return statement.sign(b"", key)


def kernel_log_of_dmesg(_: Path) -> object:
    """As where /dev/kmsg shows nothing."""
    with mock.patch.multiple(kernel_log, _kmsg=str, COMMANDS=(("dmesg",),)):
        return kernel_log.read()


CASES: dict[str, tuple[ModuleType, str, str, Callable[[Path], object], str]] = {
    "signature that is checked": (
        *(
            statement,
            "_CHECK_LIMIT_S",
            "ssh-keygen",
            lambda d: statement.signing_fault(signed_file(d)),
        ),
        "cannot be checked: Command '['ssh-keygen",
    ),
    "signature that is made": (statement, "_LIMIT_S", "ssh-keygen", signature, "ssh-keygen did"),
    "commit": (run_facts, "_GIT_LIMIT_S", "git", run_facts.git_commit, "None"),
    "kernel log": (
        *(kernel_log, "LIMIT_S", "dmesg", kernel_log_of_dmesg),
        "Command '('dmesg',)' timed out",
    ),
    "nvidia-smi": (
        *(programs, "LIMIT_S", "nvidia-smi", lambda _: nvidia_smi.read_nvidia_smi().why),
        "nvidia-smi gave no answer within",
    ),
    "program that asks switches": (
        *(switches, "SCAN_S", "iblinkinfo", lambda _: switches.links_of_subnet()),
        "iblinkinfo gave no answer within",
    ),
    "program of a check": (
        *(programs, "LIMIT_S", "sminfo"),
        lambda _: programs.output_of("sminfo", package="infiniband-diags"),
        "sminfo gave no answer within",
    ),
    "MTU": (
        *(programs, "LIMIT_S", "ibv_devinfo", lambda _: Machine.read(parts=["active_mtus"])),
        "active_mtus={}",
    ),
    "scheduler": (
        *(model, "_SCHEDULER_LIMIT_S", "sinfo", lambda _: Machine.read(parts=["scheduler"])),
        "scheduler=None",
    ),
    "C stack": (
        *(threads, "GDB_LIMIT_S", "gdb", lambda _: threads.native_frames(os.getpid())),
        "C stack: unknown; gdb did not end within",
    ),
    "submission": (
        *(slurm_commands, "COMMAND_LIMIT_S", "sbatch", lambda _: sbatch.submit("", os.environ, [])),
        "sbatch: no answer in",
    ),
    "perftest": (
        *(beside_nic, "_HELP_LIMIT_S", "ib_write_bw"),
        lambda _: beside_nic.run("mlx5_9", "none", "gpu", ["ib_write_bw"]),
        "ib_write_bw cannot be run: Command '['ib_write_bw', '--help']' timed out",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_a_program_that_never_answers(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, limit, program, call, outcome = CASES[what]
    path = tmp_path / program
    write_program(path, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setattr(module, limit, 0.2)
    with soon():
        try:
            found = call(tmp_path)
        except (MnodeError, OSError) as error:
            found = error
    assert outcome in str(found)
