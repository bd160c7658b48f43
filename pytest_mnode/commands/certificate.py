"""Make the certificate of a run that was cut short, from the evidence that it left.

A run with --mnode-report=DIR appends what it finds to DIR/evidence.jsonl.gz as it finds it. If its
controller was killed, it wrote no certificate: this command writes certificate.json, .xml and .html
as if the run had been interrupted there, which never certifies. The exit status is 0 for the
evidence of a run that ended, kept every promise and has not expired, else 1.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from pytest_mnode.commands.asked import add_at


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("evidence", type=Path, help="evidence.jsonl.gz, or its directory")
    parser.add_argument("--report", type=Path, help="a directory to write into; default: beside it")
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate import summary_lines, write_report
    from pytest_mnode.certificate.gathered import certificate_from
    from pytest_mnode.certificate.headline import headline
    from pytest_mnode.errors import UsageError
    from pytest_mnode.launchers.node import count

    found = certificate_from(options.evidence)
    certificate = found.certificate
    for line in summary_lines(certificate, shutil.get_terminal_size().columns, asked=options.at):
        print(line)
    tests, rows = count(found.tests, "test"), count(found.rows, "row")
    end = "a run that ended" if found.ended else "a run without an end"
    print(f"evidence of {end}: {tests}, {rows} of checks")
    if found.torn_bytes:
        print(
            f"evidence: ignored the last row, which is cut after {count(found.torn_bytes, 'byte')}"
        )
    beside = options.evidence
    directory: Path = options.report or (beside if beside.is_dir() else beside.parent)
    try:
        written = write_report(directory, certificate, options.at)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; give --report=DIR") from None
    for path in written:
        print(f"written: {path}")
    return headline(certificate, options.at).exit_status
