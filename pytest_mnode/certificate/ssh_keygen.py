"""Signatures by OpenSSH's `ssh-keygen -Y`, called as a command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_mnode.certificate.statement import NAMESPACE
from pytest_mnode.errors import UsageError

_LIMIT_S = 300.0
"""Time for a user to type a passphrase or to touch a security key."""
_SIGNER = "operator"


def sign(content: bytes, key: Path) -> bytes:
    """The signature, armored. key: a private key, or a public one whose private key an agent has.

    Raises UsageError.
    """
    _check(key)
    done = _run(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], content)
    if done.returncode != 0:
        raise UsageError(f"{key}: ssh-keygen does not sign with it: {_last_line(done)}")
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


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
