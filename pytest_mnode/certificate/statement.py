"""A signed certificate: an in-toto statement about certificate.json, and later changes.

The statement (https://in-toto.io/Statement/v1) names the file with its sha256, and its predicate is
the certificate itself, so that `changes` can name the values that differ. Signatures are made and
checked by OpenSSH's `ssh-keygen -Y`, called as a command.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_mnode.errors import UsageError
from pytest_mnode.processes import last_line

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
NAMESPACE = "pytest-mnode"
"""Purpose of a signature, so that one made for another purpose is not accepted."""
PREDICATE_TYPE = "urn:pytest-mnode:certificate"
_ABSENT = object()
_LIMIT_S = 300.0
"""Time for a user to type a passphrase or to touch a security key."""
_SIGNER = "operator"
_CHECK_LIMIT_S = 30.0


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


def sign(content: bytes, key: Path) -> bytes:
    """The signature, armored. key: a private key, or a public one whose private key an agent has.

    Raises UsageError.
    """
    _check(key)
    done = _run(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], content)
    if done.returncode != 0:
        why = last_line(done.stderr) or "no reason given"
        raise UsageError(f"{key}: ssh-keygen does not sign with it: {why}")
    return done.stdout


def is_signed(content: bytes, signature: Path, key: Path) -> bool:
    """Whether the owner of a public key made the signature, over exactly this content.

    key: a file with one public key, or with several, of which one is enough.
    """
    _check(key)
    _check(signature)
    lines = key.read_text(encoding="utf-8", errors="replace").splitlines()
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    if not words or not all(
        len(one) > 1 and one[0].startswith(("ssh-", "ecdsa-", "sk-")) for one in words
    ):
        raise UsageError(f"{key}: no public key; accepted: a file such as id_ed25519.pub")
    with TemporaryDirectory(prefix="mnode-verify-") as directory:
        signers = Path(directory, "allowed_signers")
        signers.write_text("".join(f"{_SIGNER} {one[0]} {one[1]}\n" for one in words))
        argv = ["-Y", "verify", "-f", str(signers), "-I", _SIGNER, "-n", NAMESPACE]
        return _run([*argv, "-s", str(signature)], content).returncode == 0


def _check(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or 'unreadable').lower()}") from None


def _run(arguments: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ["ssh-keygen", *arguments]
    try:
        done = subprocess.run(
            argv, input=content, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise UsageError(
            "ssh-keygen is not on the PATH, and makes the signatures; install OpenSSH 8.1 or later"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"ssh-keygen did not end within {_LIMIT_S:g} s") from None
    if b"unknown option" in done.stderr:
        raise UsageError(
            "this ssh-keygen does not support signatures; install OpenSSH 8.1 or later"
        )
    return done


def signing_fault(path: Path, key: Path | None = None) -> str:
    """Why the signed statement beside a file does not fit it; "" if it does.

    key: a public key; the statement has to be signed by its owner. Without one there may be no
    statement, and any key may have signed it.
    """
    statement, signature = statement_path(path), signature_path(path)
    if not (statement.exists() or signature.exists()):
        return "" if key is None else f"not signed; accepted: signed by the owner of {key}"
    argv = ["ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)]
    try:
        signed = statement.read_bytes()
        if changes(signed.decode(errors="replace"), path.read_bytes(), str(statement)):
            return "changed since it was signed"
        done = subprocess.run(
            argv, input=signed, capture_output=True, timeout=_CHECK_LIMIT_S, check=False
        )
        by_owner = key is None or is_signed(signed, signature, key)
    except UsageError as error:
        return str(error)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its signature cannot be checked: {error}"
    if done.returncode != 0:
        return f"{signature.name} is no signature of its statement"
    return "" if by_owner else f"signed by another key; accepted: signed by the owner of {key}"
