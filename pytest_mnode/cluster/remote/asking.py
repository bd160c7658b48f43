"""A look at all nodes at once, before they are used, and what is wrong with them in words."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

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


def ask(commands: Mapping[str, list[str]], limit_s: float = LOOK_LIMIT_S) -> dict[str, Asked]:
    """Run local commands at the same time, by the names of what they are for."""
    running = {}
    for name, command in commands.items():
        # Files, so that none waits for another to be read.
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=for_nodes()
        )
        running[name] = (program, out, err)
    end, found = time.monotonic() + limit_s, {}
    for name, (program, out, err) in running.items():
        code: int | None
        try:
            code = program.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
            code = None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        found[name] = Asked(code, texts[0], texts[1])
    return found


def look_at(
    commands: Mapping[str, list[str]], directory: str, limit_s: float = LOOK_LIMIT_S
) -> tuple[dict[str, looking.Look], dict[str, str]]:
    """Run looking.argv's commands: what nodes say, and why others cannot be used."""
    ours, looks, problems = looking.here(), {}, {}
    for name, asked in ask(commands, limit_s).items():
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
