"""Write the page of a certificate anew, from certificate.json alone.

The page is one HTML file, with nothing loaded from outside. --mnode-report writes the same page
beside certificate.json. Its pictures need the extra `report`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mnode.commands.asked import add_at, note_version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, help="certificate.json, or its directory")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: certificate.html beside it"
    )
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.files import read_certificate, replace_file
    from pytest_mnode.certificate.page import missing_pictures, page_text
    from pytest_mnode.errors import UsageError

    certificate = read_certificate(options.certificate)
    note_version(certificate, options.certificate)
    beside = options.certificate
    directory = beside if beside.is_dir() else beside.parent
    output: Path = options.output or directory / "certificate.html"
    try:
        replace_file(output, page_text(certificate, options.at))
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}; give --output=FILE") from None
    print(f"written: {output}")
    if missing := missing_pictures(certificate):
        print(f"the page is {missing}")
    return 0
