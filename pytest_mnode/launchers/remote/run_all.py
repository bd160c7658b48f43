"""Runs one command per node at the same time; collects the reports of all nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import CommandResult, count
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.node_process import Program, start
from pytest_mnode.measurement import listed
from pytest_mnode.processes import end_programs, last_line

REPORTS_AT_ONCE = 64
"""Each starts an interpreter on its node, perhaps from storage that all nodes share; and it has
four files open here, whose limit is not raised yet."""
_MOST_LINES, _MOST_SHOWN = 32, 200
"""Most lines of a message, and most characters of node names in a line."""
NAME_PYTHON = "name the Python of the nodes with --mnode-python"
_FIRST_POLL_S, _MOST_POLL_S = 0.005, 0.05
"""Programs are polled, because a descriptor per process may exceed the limit of open files."""


def run_all(
    commands: Iterable[tuple[str, Sequence[str]]],
    limit_s: float,
    run_dir: str = "",
    env: Mapping[str, str] | None = None,
) -> list[CommandResult]:
    """Run local commands at the same time, each given with its node's name; results in their order.

    run_dir: holds their output until then, so that it is removed with the run. env: None means
    node_env(). Raises ClusterError if one cannot be started, after killing those that run.
    """
    names: list[str] = []
    running: list[Program] = []
    files = "this machine: the output of commands cannot be kept in files"
    what = files
    try:
        # A full pipe would stop a command, and would keep a file open for it here.
        with tempfile.TemporaryDirectory(prefix="mnode-run-", dir=run_dir or None) as made:
            started = time.monotonic()
            for number, (node, command) in enumerate(commands):
                what = f"{node}: cannot start {command[0]} on this machine"
                names.append(node)
                running.append(
                    start(
                        command,
                        node_env() if env is None else env,
                        stdout=Path(made, f"{number}.out"),
                        stderr=Path(made, f"{number}.err"),
                    )
                )
            what = files
            ended = _end_times(running, started + limit_s)
            over = time.monotonic()
            return [
                CommandResult(
                    name,
                    program.returncode if number in ended else None,
                    Path(made, f"{number}.out").read_text("utf-8", errors="replace"),
                    Path(made, f"{number}.err").read_text("utf-8", errors="replace"),
                    ended.get(number, over) - started,
                )
                for number, (name, program) in enumerate(zip(names, running, strict=True))
            ]
    except OSError as error:
        raise ClusterError(f"{what}: {error.strerror}") from None
    finally:
        end_programs([program for program in running if program.returncode is None])


def _end_times(programs: Sequence[Program], end: float) -> dict[int, float]:
    """End time of each program, by its number, without programs that still ran at `end`."""
    ended: dict[int, float] = {}
    wait_s, late = _FIRST_POLL_S, False
    while len(ended) < len(programs) and not late:
        late = time.monotonic() >= end  # before the last poll, which still counts
        for number, program in enumerate(programs):
            if number not in ended and program.poll() is not None:
                ended[number] = time.monotonic()
        if not late and len(ended) < len(programs):
            time.sleep(wait_s)
            wait_s = min(1.1 * wait_s, _MOST_POLL_S)
    return ended


def collect_reports(
    commands: Mapping[str, list[str]],
    directory: str,
    run_dir: str,
    env: Mapping[str, str] | None = None,
    *,
    limit_s: float,
) -> tuple[dict[str, node_report.NodeReport], dict[str, str]]:
    """Run node_report.argv's commands: reports by node, and reasons of the unusable nodes."""
    ours, reports, problems = node_report.here(), {}, {}
    some = list(commands.items())
    outcomes = [
        outcome
        for first in range(0, len(some), REPORTS_AT_ONCE)
        for outcome in run_all(
            some[first : first + REPORTS_AT_ONCE], limit_s=limit_s, run_dir=run_dir, env=env
        )
    ]
    for outcome in outcomes:
        report = node_report.read(outcome.stdout)
        if report is None:
            problems[outcome.node] = why_no_report(outcome, limit_s)
        elif (wrong := node_report.problem(report, ours, directory)) is not None:
            problems[outcome.node] = wrong
        else:
            reports[outcome.node] = report
    return reports, problems


def why_no_report(outcome: CommandResult, limit_s: float) -> str:
    """Why a command printed no report, in one line."""
    if outcome.returncode is None:
        return f"no answer within {limit_s:g} s"
    last = last_line(outcome.stderr).removeprefix(f"{outcome.node}: ") or "it printed nothing"
    return f"{last}; {NAME_PYTHON}" if outcome.returncode in (126, 127) else with_remedy(last)


def with_remedy(why: str, remedy: str = NAME_PYTHON) -> str:
    """The reason that a node's program does not run, with what helps."""
    return f"{why}; {remedy}" if why.startswith("Python did not start on the node") else why


def unusable_nodes(problems: Mapping[str, str], total: int, what: str) -> ClusterError:
    """The error that names the nodes that cannot be used: one line per node, or per reason if there
    are many nodes."""
    lines = [f"{name}: {why}" for name, why in problems.items()]
    if len(lines) > _MOST_LINES:
        by_why: dict[str, list[str]] = {}
        for name, why in problems.items():
            by_why.setdefault(why, []).append(name)
        lines = [f"{_together(names)}: {why}" for why, names in by_why.items()]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more reasons"]
    head = f"{what}: {len(problems)} of {count(total)} cannot be used:"
    return ClusterError("\n  ".join((head, *lines)))


def _together(names: Sequence[str]) -> str:
    """Names as ranges; only the first ones if too long, as for pods with random name endings."""
    ranges = compress(names)
    return ranges if len(ranges) <= _MOST_SHOWN else listed(names, separator=", ")
