"""A certificate's files, written whole or not at all and read back; its published schema.

On reading, verdicts and margins are judged again from the measurements.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pytest_mnode.certificate.certificate import (
    SCHEMA_VERSION,
    Certificate,
    certificate_schema,
    certificate_text,
)
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.page import page_text
from pytest_mnode.certificate.results import CaseResult, StoppedBy
from pytest_mnode.errors import UsageError
from pytest_mnode.measurement import Verdict

_BY_FAILURE = "not run: "
_BY_INTERRUPTION = "the test was interrupted before it ended"


def write_report(
    directory: Path, certificate: Certificate, asked: datetime | None = None
) -> list[Path]:
    """Write `certificate.json`, `.xml` and `.html` into `directory`, created if missing.

    asked: see `headline`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        ("certificate.json", json_text(certificate)),
        ("certificate.xml", junit_text(certificate, asked)),
        ("certificate.html", page_text(certificate, asked)),
    ):
        replace_file(directory / name, text)
        written.append(directory / name)
    return written


def replace_file(path: Path, text: str) -> None:
    """Write a file; readers see the old file or the new one, even after a loss of power.

    A link stays one. What is no file, such as /dev/stdout or a pipe, is written to as it is.
    """
    # A lone surrogate, from output that was not UTF-8, cannot be encoded.
    data = text.encode("utf-8", errors="replace")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def json_text(certificate: Certificate) -> str:
    """The text of certificate.json."""
    return certificate_text(certificate) + "\n"


def schema_text() -> str:
    """The schema as it is published in `fixtures/certificate.schema.json`."""
    return json.dumps(certificate_schema(), indent=2) + "\n"


_READER: TypeAdapter[Certificate] = TypeAdapter(Certificate)
READ_VERSIONS = (SCHEMA_VERSION - 1, SCHEMA_VERSION)
"""Schema versions that are read: an upgrade must not orphan the history of a cluster."""


def read_certificate(path: Path) -> Certificate:
    """The certificate in a file, or in a directory that `--mnode-report` wrote.

    Raises UsageError, one line, if the file is not a certificate of one of `READ_VERSIONS`.
    """
    path = certificate_path(path)
    try:
        return parse_certificate(content_of(path).decode(), str(path))
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8; accepted: a certificate.json") from None


def certificate_path(path: Path) -> Path:
    """The path of a certificate's file, from the path of the file or of its directory."""
    try:
        return path / "certificate.json" if path.is_dir() else path
    except OSError:  # such as a directory without search permission: reading it raises the error
        return path


def content_of(path: Path, accepted: str = "a certificate.json") -> bytes:
    """The content of a file. Raises UsageError, one line, that names the accepted form."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise UsageError(f"{path}: {reason}; accepted: {accepted}") from None


def parse_certificate(text: str, where: str) -> Certificate:
    """The certificate in a text; keys that are not known are ignored, and those that an older
    version did not have are empty. where: prefix of error messages."""
    try:
        data = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON ({error}); accepted: a certificate.json") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version not in READ_VERSIONS:
        found = "no certificate" if version is None else f"schema version {version}"
        accepted = " or ".join(map(str, READ_VERSIONS))
        raise UsageError(f"{where}: {found}; accepted: a certificate.json of version {accepted}")
    if version != SCHEMA_VERSION:
        text = json.dumps(data | {"schema_version": SCHEMA_VERSION})
    try:
        certificate = _READER.validate_json(text, strict=True)  # "180" is not a number
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise UsageError(": ".join(filter(None, [where, at, first["msg"].lower()]))) from None
    for node in certificate.coverage.nodes:
        latest = replace(certificate.run, end=node.date).from_end(1) if node.date else None
        if node.until and (latest is None or node.until > latest):
            raise UsageError(
                f"{where}: coverage.nodes: {node.name}: a pass until {node.until}; accepted: until "
                f"{latest or 'no time, as no run tested it'}, by its date and validity_s of the run"
            )
    if version == SCHEMA_VERSION:
        return certificate
    return from_version_4(replace(certificate, read_version=version))


def older_version(certificate: Certificate, where: object) -> str:
    """A line that says that a certificate was read from an older schema; "" if it was not."""
    if certificate.read_version == SCHEMA_VERSION:
        return ""
    return (
        f"{where}: schema version {certificate.read_version}, read as {SCHEMA_VERSION}; what the "
        "older version does not have is left empty"
    )


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is none")


def from_version_4(certificate: Certificate) -> Certificate:
    """The certificate with `stopped_by`, `by_bounds` and `lacks` of its cases."""
    return replace(
        certificate,
        criteria=tuple(
            replace(one, cases=tuple(map(_case, one.cases))) for one in certificate.criteria
        ),
    )


def _case(case: CaseResult) -> CaseResult:
    said = case.message.removeprefix("Failed: ")
    stopped_by: StoppedBy | None = None
    if said.startswith(_BY_FAILURE):
        stopped_by = "failure"
    elif said.startswith(_BY_INTERRUPTION):
        stopped_by = "interruption"
    failing = [one for one in case.measurements if one.verdict is Verdict.FAIL]
    told = bool(failing) and str(replace(failing[0], where="")) in case.message
    return replace(
        case,
        stopped_by=stopped_by,
        by_bounds=case.outcome == "failed" and told,
        lacks=case.message.rpartition(": ")[2] if case.outcome == "not promised" else None,
    )
