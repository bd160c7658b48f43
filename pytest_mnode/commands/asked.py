"""The option `--at` of commands that show a certificate's headline."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime


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


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text}: accepted: a date or a time of ISO 8601, such as 2026-11-28T02:06"
        ) from None
