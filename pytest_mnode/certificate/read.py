"""Reads certificate.json back. Verdicts and margins are judged anew from what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.errors import UsageError

_READER: TypeAdapter[Certificate] = TypeAdapter(Certificate)
VERSION = 4


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file, or of a directory that `--mnode-report` wrote.

    Raises UsageError, one line, for what is no certificate of this version.
    """
    if path.is_dir():
        path /= "certificate.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"{path}: {reason.lower()}; accepted: a certificate.json") from None
    return parse_certificate(text, str(path))


def parse_certificate(text: str, where: str) -> Certificate:
    """The same of a text. where: heads the message of an error."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: no JSON ({error}); accepted: a certificate.json") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != VERSION:
        found = "no certificate" if version is None else f"schema version {version}"
        raise UsageError(f"{where}: {found}; accepted: a certificate.json of version {VERSION}")
    try:
        return _READER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where}: {at}: {first['msg'].lower()}") from None
