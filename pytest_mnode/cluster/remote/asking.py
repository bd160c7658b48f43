"""A look at all nodes at once, before they are used, and what is wrong with them in words."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.cluster.remote import looking
from pytest_mnode.cluster.surroundings import for_nodes
from pytest_mnode.errors import ClusterError

LOOK_LIMIT_S = 60.0
"""Interpreters may start from a file server that is slow for the first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a command ended. returncode: None where its limit ended it."""

    returncode: int | None
    stdout: str
    stderr: str


def ask(
    commands: Mapping[str, list[str]], limit_s: float = LOOK_LIMIT_S, run_dir: str = ""
) -> dict[str, Asked]:
    """Run local commands at the same time, by the names of what they are for.

    run_dir: what they say is kept there meanwhile; it goes with the run, however that ends.
    Raises ClusterError where one cannot be started; none that was runs on.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    name = ""
    try:
        # Files, so that none waits for another to be read, and open for as long as a command takes
        # to start: a process may have 1024 open, and there may be as many nodes.
        with tempfile.TemporaryDirectory(prefix="mnode-ask-", dir=run_dir or None) as made:
            for number, (name, command) in enumerate(commands.items()):
                with (
                    Path(made, f"{number}.out").open("wb") as out,
                    Path(made, f"{number}.err").open("wb") as err,
                ):
                    running[name] = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=for_nodes()
                    )
            end, name = time.monotonic() + limit_s, ""
            return {
                asked: Asked(
                    _status(program, end),
                    Path(made, f"{number}.out").read_bytes().decode(errors="replace"),
                    Path(made, f"{number}.err").read_bytes().decode(errors="replace"),
                )
                for number, (asked, program) in enumerate(running.items())
            }
    except OSError as error:
        raise ClusterError(f"cannot look at {name or 'nodes'}: {error.strerror}") from None
    finally:
        for program in running.values():
            _end(program)


def _status(program: subprocess.Popen[bytes], end: float) -> int | None:
    try:
        return program.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(program)
        return None


def _end(program: subprocess.Popen[bytes]) -> None:
    if program.poll() is None:
        program.kill()
        program.wait()


def look_at(
    commands: Mapping[str, list[str]], directory: str, run_dir: str, limit_s: float = LOOK_LIMIT_S
) -> tuple[dict[str, looking.Look], dict[str, str]]:
    """Run looking.argv's commands: what nodes say, and why others cannot be used."""
    ours, looks, problems = looking.here(), {}, {}
    for name, asked in ask(commands, limit_s, run_dir).items():
        look = looking.read(asked.stdout)
        if look is None:
            problems[name] = why_silent(name, asked, limit_s)
        elif (wrong := looking.problem(look, ours, directory)) is not None:
            problems[name] = wrong
        else:
            looks[name] = look
    return looks, problems


def why_silent(name: str, asked: Asked, limit_s: float) -> str:
    """Why a command gave no answer, in one line."""
    if asked.returncode is None:
        return f"no answer within {limit_s:g} s"
    lines = [line.strip() for line in asked.stderr.splitlines() if line.strip()]
    last = lines[-1].removeprefix(f"{name}: ") if lines else "it said nothing"
    if "no Python started there" in last or asked.returncode in (126, 127):
        return f"{last}; name the Python of the nodes by --mnode-python"
    return last


def unusable(problems: Mapping[str, str], total: int, what: str) -> ClusterError:
    """The error that names every node that cannot be used, a line each."""
    lines = "".join(f"\n  {name}: {why}" for name, why in problems.items())
    verb = "node" if total == 1 else "nodes"
    return ClusterError(f"{what}: {len(problems)} of {total} {verb} cannot be used:{lines}")
