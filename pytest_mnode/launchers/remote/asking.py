"""A look at all nodes at once, before they are used, and what is wrong with them in words."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.remote import looking

LOOK_LIMIT_S = 60.0
"""Interpreters may start from a file server that is slow for the first."""
_FIRST_POLL_S, _MOST_POLL_S = 0.005, 0.05
"""Not one descriptor per process: there may be more nodes than files that may be open."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a command ended. returncode: None where its limit ended it."""

    returncode: int | None
    stdout: str
    stderr: str
    duration_s: float = 0.0


def ask(
    commands: Iterable[tuple[str, Sequence[str]]],
    limit_s: float = LOOK_LIMIT_S,
    run_dir: str = "",
    env: Mapping[str, str] | None = None,
) -> list[Asked]:
    """Run local commands at the same time, each with the node that it is for; results in order.

    run_dir: holds their output meanwhile, so that it is removed with the run. env: None for
    node_env(). Raises ClusterError where one cannot be started; all that were started are ended.
    """
    running: list[subprocess.Popen[bytes]] = []
    files = "this machine: the output of commands cannot be kept in files"
    what = files
    try:
        # Files, because a full pipe stops a command that nobody reads yet. Ours are closed at
        # once: a process may have 1024 open, and there may be as many nodes.
        with tempfile.TemporaryDirectory(prefix="mnode-ask-", dir=run_dir or None) as made:
            started = time.monotonic()
            for number, (node, command) in enumerate(commands):
                what = f"{node}: cannot start {command[0]} on this machine"
                with (
                    Path(made, f"{number}.out").open("wb") as out,
                    Path(made, f"{number}.err").open("wb") as err,
                ):
                    running.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=err,
                            env=node_env() if env is None else env,
                        )
                    )
            what = files
            ended = _ends(running, started + limit_s)
            _end(running)
            over = time.monotonic()
            return [
                Asked(
                    program.returncode if number in ended else None,
                    Path(made, f"{number}.out").read_text("utf-8", errors="replace"),
                    Path(made, f"{number}.err").read_text("utf-8", errors="replace"),
                    ended.get(number, over) - started,
                )
                for number, program in enumerate(running)
            ]
    except OSError as error:
        raise ClusterError(f"{what}: {error.strerror}") from None
    finally:
        _end(running)


def _ends(programs: Sequence[subprocess.Popen[bytes]], end: float) -> dict[int, float]:
    """When each program ended, by its number; those that still ran at `end` are not in it."""
    ended: dict[int, float] = {}
    wait_s, late = _FIRST_POLL_S, False
    while len(ended) < len(programs) and not late:
        late = time.monotonic() >= end  # before the last look: what has ended by then counts
        for number, program in enumerate(programs):
            if number not in ended and program.poll() is not None:
                ended[number] = time.monotonic()
        if not late and len(ended) < len(programs):
            time.sleep(wait_s)
            wait_s = min(1.1 * wait_s, _MOST_POLL_S)
    return ended


def _end(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    for program in programs:
        program.kill()
    for program in programs:
        program.wait()


def look_at(
    commands: Mapping[str, list[str]], directory: str, run_dir: str, limit_s: float = LOOK_LIMIT_S
) -> tuple[dict[str, looking.Look], dict[str, str]]:
    """Run looking.argv's commands: what nodes say, and why others cannot be used."""
    ours, looks, problems = looking.here(), {}, {}
    for name, asked in zip(commands, ask(commands.items(), limit_s, run_dir), strict=True):
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
    return ClusterError(f"{what}: {len(problems)} of {count(total)} cannot be used:{lines}")
