"""Whole commands by wall clock: one trivial test, and 200 of them.

A command is timed from its start to its end, which is the time that a user waits. All peers run
the same body in four ranks on loopback, and a run counts only if all of its tests ran and passed.
Peers take turns within a round, so that a disturbance hits all of them; the first round, which
brings files into the page cache, is not counted.

`python -m benchmarks.wall_clock` writes the section of docs/comparison.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers, table

PAGE = peers.ROOT / "docs" / "comparison.md"
HEADING = "## By wall clock\n"
"""Heading of the section, which extends to the end of the page."""
RANKS = 4
TESTS = (1, 200)
PEERS: Sequence[peers.Peer] = (peers.mnode("warm"), peers.TORCHRUN_PLAIN, peers.CONTINUOUS)
_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each run of `tests` tests by one peer. problem: why runs are missing."""

    tests: int
    peer: str
    seconds: tuple[float, ...]
    problem: str = ""


def measure(repeats: int) -> str:
    """The table for a terminal."""
    return table.terminal("Whole commands by wall clock", *_table(times(repeats)))


def times(repeats: int) -> list[Times]:
    return [one for tests in TESTS for one in _of(tests, repeats)]


def _of(tests: int, repeats: int) -> list[Times]:
    found: dict[str, list[float]] = {peer.name: [] for peer in PEERS}
    problems = {peer.name: f"not installed: {peer.missing}" for peer in PEERS if peer.missing}
    for turn, peer in itertools.product(range(repeats + 1), PEERS):
        if peer.missing:
            continue
        ran = peer.run(RANKS, tests, _LIMIT_S, own_limit_s=_LIMIT_S)
        print(f"{tests} tests, {peer.name}: {ran.finished.seconds:.1f} s", file=sys.stderr)
        if (problem := _problem(ran, tests)) is not None:
            problems[peer.name] = f"not counted: {problem}"
        elif turn:
            found[peer.name].append(ran.finished.seconds)
    return [
        Times(tests, peer.name, tuple(found[peer.name]), problems.get(peer.name, ""))
        for peer in PEERS
    ]


def _problem(ran: peers.Ran, tests: int) -> str | None:
    """The problem of a run; None if all its tests ran and passed."""
    ended = len(ran.times("end"))
    if ran.finished.code == 0 and ended == tests:
        return None
    return f"{ended} of {tests} tests ended, the command with {ran.finished.code}"


def _table(found: Sequence[Times]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """(headings, rows)."""
    head = ("tests", "way", "median s", "least – most s", "to pytest-mnode", "runs", "")
    ours = {one.tests: one.seconds for one in found if one.peer == PEERS[0].name}
    rows: list[Sequence[str]] = []
    for one in found:
        median = f"{statistics.median(one.seconds):.1f}" if one.seconds else "-"
        spread = f"{min(one.seconds):.1f} – {max(one.seconds):.1f}" if one.seconds else "-"
        ratio = table.ratio(one.seconds, ours[one.tests])
        count = str(len(one.seconds))
        rows.append((str(one.tests), one.peer, median, spread, ratio, count, one.problem))
    if not any(one.problem for one in found):
        return head[:-1], [row[:-1] for row in rows]
    return head, rows


def without_section(page: str) -> tuple[str, str]:
    """(the page before its section, the section)."""
    before, heading, rest = page.partition(HEADING)
    return before, heading + rest


def section(found: Sequence[Times], machine: str) -> str:
    return f"""{HEADING}
Written by `python -m benchmarks.wall_clock` on {time.strftime("%Y-%m-%d", time.gmtime())}; run this
command to write the section again. {machine}.

Times are from the start of a command to its end, with one trivial test and with 200. A trivial
test is one all-reduce of one element. Every command runs the same body in {RANKS} ranks on one
machine, with gloo on loopback. The commands take turns, and the first run of each is not counted.

{table.markdown(*_table(found))}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wall_clock")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = times(options.repeats)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pytest", "pytest-mnode")
    )
    machine = (
        f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores; load average "
        f"of the machine {load:.1f} before the first run, {os.getloadavg()[0]:.1f} after the last"
    )
    text = section(found, machine)
    before, _ = without_section(options.output.read_text())
    options.output.write_text(f"{before.rstrip()}\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
