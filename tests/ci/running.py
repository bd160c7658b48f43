"""Runs a shipped script with programs that only record their calls."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import write_program

ROOT = Path(__file__).parents[2]
READY = ROOT / "fixtures/ci"


@dataclass(frozen=True)
class Ran:
    """A script's exit status, its calls, and its output."""

    status: int
    calls: tuple[str, ...]
    stderr: str


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory whose name scripts must quote."""
    path = tmp_path / "a 'place' of ours"
    (path / "bin").mkdir(parents=True)
    return path


def run(
    place: Path,
    script: str | Path,
    pytest_does: str,
    others_do: Mapping[str, str] | None = None,
    /,
    **env: str,
) -> Ran:
    """Run a script with programs that record their calls.

    others_do: shell lines of Slurm's programs, by name. env: changes of its environment; "" removes
    a
    variable.
    """
    calls = place / "calls"
    calls.touch()
    note = f'printf "%s\\n" "${{0##*/}} $*" >>{shlex.quote(str(calls))}'
    for name in ("scontrol", "logger", "sbatch", "squeue"):
        program(place / "bin" / name, f"{note}\n{(others_do or {}).get(name, '')}")
    program(place / "python", f"{note}\n{pytest_does}")
    settings = {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "MNODE_ROOT": str(place),
        "MNODE_PYTHON": str(place / "python"),
        **env,
    }
    done = subprocess.run(
        [READY / script],
        env={name: value for name, value in settings.items() if value},
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return Ran(done.returncode, tuple(calls.read_text().splitlines()), done.stderr)


def program(path: Path, body: str) -> None:
    write_program(path, f"#!/bin/bash\n{body}\n")
