"""Sign a certificate: an in-toto statement about it, and its signature by ssh-keygen.

Writes certificate.intoto.json and certificate.intoto.json.sig beside certificate.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mnode.commands.asked import note_version, refuse_rehearsal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, help="certificate.json, or its directory")
    parser.add_argument("--key", type=Path, required=True, help="a private key of OpenSSH")


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.files import certificate_path, read_certificate, replace_file
    from pytest_mnode.certificate.statement import (
        sign,
        signature_path,
        statement_path,
        statement_text,
    )
    from pytest_mnode.errors import UsageError

    path = certificate_path(options.certificate)
    certificate = read_certificate(options.certificate)  # raises for anything but a certificate
    note_version(certificate, path)
    refuse_rehearsal(certificate, path)
    text = statement_text(path.name, path.read_bytes())
    signature = sign(text.encode(), options.key)
    statement = statement_path(path)
    try:
        replace_file(statement, text)
        replace_file(signature_path(path), signature.decode())
    except OSError as error:
        raise UsageError(f"{statement}: {error.strerror}; it is written beside {path}") from None
    print(f"signed: {statement}")
    return 0
