"""A certificate's files, each written whole or not at all; its schema as it is published."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_mnode.certificate.certificate import Certificate, certificate_json, certificate_schema
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.page import page_text


def write_report(directory: Path, certificate: Certificate) -> list[Path]:
    """Write `certificate.json`, `.xml` and `.html` into `directory`, made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        ("certificate.json", json_text(certificate)),
        ("certificate.xml", junit_text(certificate)),
        ("certificate.html", page_text(certificate)),
    ):
        replace_file(directory / name, text)
        written.append(directory / name)
    return written


def replace_file(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, even after a loss of power."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            # A lone surrogate, from output that was no UTF-8, cannot be encoded.
            file.write(text.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def json_text(certificate: Certificate) -> str:
    """The text of certificate.json."""
    data = certificate_json(certificate)
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def schema_text() -> str:
    """The schema as it is published in `fixtures/certificate.schema.json`."""
    return json.dumps(certificate_schema(), indent=2) + "\n"
