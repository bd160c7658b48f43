"""Compare two certificates: what changed, what is noise, and what else differs.

A value changed if it moved by more than two runs without any change differ in 99 of 100 cases, by
the spread of its repeats or of its history: for a file in the directory of --mnode-history, the
files before it. The exit status is 0 if every verdict and state is the same, else 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from pytest_mnode.commands.asked import add_at, note_version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="certificate.json, or its directory")
    parser.add_argument(
        "after", type=Path, help="certificate.json of the later run, or its directory"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list values that did not change, or only within noise",
    )
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.difference import (
        Kind,
        compared,
        environment_changes,
        states,
        summary,
    )
    from pytest_mnode.certificate.headline import headline
    from pytest_mnode.certificate.kept import read_with_history

    before, after = read_with_history(options.before), read_with_history(options.after)
    note_version(before, options.before)
    note_version(after, options.after)
    for one in (before, after):
        print(f"{one.run.end:%Y-%m-%d %H:%M} {headline(one, options.at).line}")
    left_out = [why for one in (before, after) if one.history for why in one.history.left_out]
    for why in dict.fromkeys(left_out):
        print(f"left out of history: {why}")
    verdicts = list(states(before, after))
    found = compared(before, after)
    _section("verdicts and states", verdicts)
    _section("other differences", environment_changes(before, after))
    shown = list(Kind) if options.all else [Kind.CHANGE, Kind.UNKNOWN]
    for kind in shown:
        _section(kind.value, (str(one) for one in found if one.kind is kind))
    print(f"\n{summary(found)}")
    return 1 if verdicts else 0


def _section(title: str, lines: Iterable[str]) -> None:
    if every := list(lines):
        print(f"\n{title}:")
        for line in every:
            print(f"  {line}")
