"""What commands that read a certificate share: the option `--at`, a note on an old schema,
writing a report, and the refusal of rehearsals."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.certificate import Certificate


def add_at(parser: argparse.ArgumentParser) -> None:
    """Add `--at`, the time for which the headline is asked; now without it."""
    parser.add_argument(
        "--at",
        type=_time,
        default=datetime.now(UTC),
        metavar="TIME",
        help="whether it is valid then, such as 2026-11-28 or 2026-11-28T02:06+00:00 (UTC without "
        "a zone); default: now",
    )


def note_version(certificate: Certificate, path: Path) -> None:
    """Say on standard error if a certificate was read from an older schema."""
    from pytest_mnode.certificate.files import older_version

    if line := older_version(certificate, path):
        print(line, file=sys.stderr)


def report_into(
    directory: Path | None, certificate: Certificate, at: datetime | None = None
) -> None:
    """Write a certificate's files, and print their names. directory: None for no files. at: see
    `headline`. Raises UsageError if they cannot be written."""
    from pytest_mnode.certificate import write_report
    from pytest_mnode.errors import UsageError

    if directory is None:
        return
    try:
        written = write_report(directory, certificate, at)
    except OSError as error:
        raise UsageError(f"--report={directory}: {error.strerror}") from None
    for path in written:
        print(f"written: {path}")


def refuse_rehearsal(certificate: Certificate, path: Path) -> None:
    """Raise UsageError for the certificate of a rehearsal: its nodes are no nodes."""
    from pytest_mnode.errors import UsageError

    if (what := certificate.run.rehearsal) is not None:
        raise UsageError(f"{path}: a rehearsal on {what}; accepted: a certificate of nodes")


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text}: accepted: a date or a time of ISO 8601, such as 2026-11-28T02:06"
        ) from None
