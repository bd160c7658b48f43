"""Check a certificate's signature, and whether it holds; name what was changed since it was signed.

The exit status is 0 if the signature is that of the key, nothing was changed, and the certificate
certifies what its headline says and has not expired; else 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mnode.commands.asked import add_at, note_version

_MOST_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("certificate", type=Path, help="certificate.json, or its directory")
    parser.add_argument("--key", type=Path, required=True, help="the signer's public key")
    add_at(parser)


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.files import certificate_path, content_of, parse_certificate
    from pytest_mnode.certificate.headline import headline
    from pytest_mnode.certificate.statement import (
        changes,
        is_signed,
        signature_path,
        statement_path,
    )

    path = certificate_path(options.certificate)
    content, statement = content_of(path), statement_path(path)
    signed = content_of(statement, "a statement that 'sign' wrote")
    if not is_signed(signed, signature_path(path), options.key):
        print(f"{statement}: changed since it was signed, or signed by another key")
        return 1
    found = changes(signed.decode(errors="replace"), content, str(statement))
    for change in found[:_MOST_SHOWN]:
        print(f"{path}: changed: {change}")
    if len(found) > _MOST_SHOWN:
        print(f"{path}: and {len(found) - _MOST_SHOWN} more changes")
    if found:
        return 1
    certificate = parse_certificate(content.decode(), str(path))
    note_version(certificate, path)
    head = headline(certificate, options.at)
    print(f"{path}: signature valid, file unchanged; {head.line}")
    return head.exit_status
