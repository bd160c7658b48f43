"""A signed certificate: an in-toto statement about certificate.json, and later changes.

The statement (https://in-toto.io/Statement/v1) names the file with its sha256, and its predicate is
the certificate itself, so that `changes` can name the values that differ. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mnode.errors import UsageError

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
NAMESPACE = "pytest-mnode"
"""Purpose of a signature, so that one made for another purpose is not accepted."""
PREDICATE_TYPE = "urn:pytest-mnode:certificate"
_ABSENT = object()


def statement_path(certificate: Path) -> Path:
    """The statement beside a certificate."""
    return certificate.with_suffix(".intoto.json")


def signature_path(certificate: Path) -> Path:
    """The signature of the statement beside a certificate."""
    return certificate.with_suffix(".intoto.json.sig")


def statement_text(name: str, content: bytes) -> str:
    """The statement about a file's content, which is JSON."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": _sha256(content)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": json.loads(content),
    }
    return json.dumps(statement, indent=2, ensure_ascii=False) + "\n"


def changes(statement: str, content: bytes, where: str) -> list[str]:
    """Differences of the file from the statement about it; empty if there are none.

    where: prefix of the message. Raises UsageError for a statement of another kind.
    """
    try:
        data = json.loads(statement)
        signed, digest = data["predicate"], data["subject"][0]["digest"]["sha256"]
        kind = data["_type"], data["predicateType"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        kind = None
    if kind != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise UsageError(f"{where}: no statement about a certificate; write one by 'sign'")
    if digest == _sha256(content):
        return []
    try:
        now = json.loads(content)
    except (ValueError, RecursionError) as error:
        return [f"it is not valid JSON any more ({error})"]
    return list(_differences(signed, now, "")) or ["only its formatting"]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _differences(signed: Any, now: Any, at: str) -> Iterator[str]:
    if isinstance(signed, list) and isinstance(now, list):
        before, after = _named(signed), _named(now)
        if before.keys() == after.keys() and list(before) != list(after):
            yield f"{at}: in another order"
    elif isinstance(signed, dict) and isinstance(now, dict):
        before, after = signed, now
    else:
        if signed != now or type(signed) is not type(now):
            yield f"{at}: signed {_shown(signed)}, now {_shown(now)}"
        return
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key, _ABSENT), after.get(key, _ABSENT)
        yield from _differences(one, other, f"{at}.{key}" if at else str(key))


def _named(entries: list[Any]) -> dict[str, Any]:
    """Entries by their names, such as a criterion's, else by their numbers."""
    found: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        name = entry.get("name") or entry.get("test") if isinstance(entry, dict) else None
        key = f"[{name or number}]"
        found[key if key not in found else f"[{name} {number}]"] = entry
    return found


def _shown(value: Any) -> str:
    text = "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
