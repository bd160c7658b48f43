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
    path = certificate_path(path)
    try:
        return parse_certificate(content_of(path).decode(), str(path))
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; accepted: a certificate.json") from None


def certificate_path(path: Path) -> Path:
    """The file of a certificate that is named by itself or by its directory."""
    return path / "certificate.json" if path.is_dir() else path


def content_of(path: Path, accepted: str = "a certificate.json") -> bytes:
    """What a file has. Raises UsageError, one line, that says what is accepted."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise UsageError(f"{path}: {reason}; accepted: {accepted}") from None


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
