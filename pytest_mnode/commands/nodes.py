"""Print the nodes of a certificate that passed, failed, are suspect or were not tested.

As a host list (`node[03,17]`) that Slurm's --nodelist and --exclude take, as lines, which xargs and
kubectl take, or as JSON with date and evidence. Without a state, all nodes are printed. The
certificate's headline goes to standard error; it does not change the exit status, which is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pytest_mnode.commands.asked import add_at, note_version, refuse_rehearsal

FORMATS = ("slurm", "lines", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, help="certificate.json, or its directory")
    for state, text in (
        ("passed", "nodes with an unexpired pass"),
        ("failed", "nodes that were to blame for a failure"),
        ("suspect", "nodes that may be to blame"),
        ("untested", "nodes that no run has tested, or whose pass has expired"),
    ):
        parser.add_argument(
            f"--{state}", action="append_const", dest="states", const=state, help=text
        )
    parser.add_argument(
        "--oldest", type=_count, metavar="N", help="the N of them that were tested longest ago"
    )
    parser.add_argument("--format", choices=FORMATS, default="slurm", help="default: %(default)s")
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.coverage import coverage_json, merged, oldest_first
    from pytest_mnode.certificate.files import read_certificate
    from pytest_mnode.certificate.headline import headline
    from pytest_mnode.launchers.hosts import compress
    from pytest_mnode.path_rates import State

    certificate = read_certificate(options.certificate)
    note_version(certificate, options.certificate)
    refuse_rehearsal(certificate, options.certificate)
    print(headline(certificate, options.at).line, file=sys.stderr)
    coverage = merged(certificate.coverage, (), options.at)  # passes may have expired since the run
    asked = {State("not tested" if s == "untested" else s) for s in options.states or ()}
    chosen = [node for node in coverage.nodes if not asked or node.state in asked]
    if options.oldest is not None:
        chosen = oldest_first(chosen)[: options.oldest]
    if options.format == "json":
        print(json.dumps(coverage_json(chosen), indent=2))
    elif options.format == "lines":
        for node in chosen:
            print(node.name)
    elif chosen:
        print(compress((node.name for node in chosen), tails=False))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: accepted: a whole number of 1 or more")
    return int(text)
