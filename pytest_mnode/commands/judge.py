"""Judge the measurements of a certificate by another spec, without a new run.

Bounds are computed anew from their terms; what checks read on the nodes is judged by their rules,
from the evidence.jsonl.gz of the same run beside the certificate, if it is there. Prints the
resulting certificate, and what cannot be judged again. The exit status is 0 if every promise of the
other spec is kept and the certificate has not expired, else 1.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from pytest_mnode.commands.asked import add_at, note_version, report_into


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, help="certificate.json, or its directory")
    parser.add_argument("--spec", type=Path, required=True, help="the other spec, a YAML page")
    parser.add_argument("--report", type=Path, help="a directory to write the certificate into")
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate import summary_lines
    from pytest_mnode.certificate.files import certificate_path, read_certificate
    from pytest_mnode.certificate.gathered import kept_of
    from pytest_mnode.certificate.headline import headline
    from pytest_mnode.certificate.rejudge import rejudge_certificate
    from pytest_mnode.spec import load_spec

    certificate = read_certificate(options.certificate)
    note_version(certificate, options.certificate)
    spec = load_spec(options.spec)
    kept = kept_of(certificate_path(options.certificate).parent, certificate.run)
    found, undecided = rejudge_certificate(certificate, spec, options.spec, kept)
    for line in summary_lines(found, shutil.get_terminal_size().columns, asked=options.at):
        print(line)
    for what in undecided[:20]:
        print(f"not judged again: {what}")
    if len(undecided) > 20:
        print(f"not judged again: {len(undecided) - 20} more")
    report_into(options.report, found, options.at)
    return headline(found, options.at).exit_status
