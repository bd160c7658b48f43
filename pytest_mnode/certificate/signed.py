"""Whether a certificate is still what was signed, if a statement lies beside it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pytest_mnode.certificate.ssh_keygen import is_signed
from pytest_mnode.certificate.statement import NAMESPACE, changes, signature_path, statement_path
from pytest_mnode.errors import UsageError

_LIMIT_S = 30.0


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
            argv, input=signed, capture_output=True, timeout=_LIMIT_S, check=False
        )
        by_owner = key is None or is_signed(signed, signature, key)
    except UsageError as error:
        return str(error)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its signature cannot be checked: {error}"
    if done.returncode != 0:
        return f"{signature.name} is no signature of its statement"
    return "" if by_owner else f"signed by another key; accepted: signed by the owner of {key}"
