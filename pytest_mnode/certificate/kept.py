"""Certificates that are kept in a directory, `--mnode-history`; a file per run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.difference import changes
from pytest_mnode.certificate.files import json_text, read_certificate, replace_file
from pytest_mnode.certificate.run_facts import RunFacts
from pytest_mnode.certificate.trends import MOST_RUNS, history_of
from pytest_mnode.errors import UsageError


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Certificates against one spec, oldest first. left_out: files that could not be read, why."""

    certificates: tuple[Certificate, ...] = ()
    left_out: tuple[str, ...] = ()


def earlier_runs(directory: Path | None, digest: str) -> EarlierRuns:
    """The latest certificates against the spec with this digest; none without a directory.

    A damaged file is no reason to lose the run that has just ended.
    """
    if directory is None:
        return EarlierRuns()
    found: list[Certificate] = []
    left_out: list[str] = []
    for path in sorted(directory.glob(f"*-{digest[:8]}.json"))[-MOST_RUNS:]:
        try:
            found.append(read_certificate(path))
        except UsageError as error:
            left_out.append(str(error))
    same = (one for one in found if one.run.spec.digest == digest)
    return EarlierRuns(tuple(same), tuple(left_out))


def with_history(certificate: Certificate, earlier: EarlierRuns) -> Certificate:
    """The certificate with its section of history."""
    history = history_of(certificate, earlier.certificates, earlier.left_out)
    found = replace(certificate, history=history)
    if not earlier.certificates:
        return found
    since = tuple(changes(earlier.certificates[-1], found))
    return replace(certificate, history=replace(history, since=since))


def keep(directory: Path, certificate: Certificate) -> Path:
    """Write a certificate for later runs, without the history that they will see themselves."""
    run: RunFacts = certificate.run
    name = f"{run.end:%Y%m%dT%H%M%S.%fZ}-{run.spec.digest[:8]}.json"
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / name, json_text(replace(certificate, history=None)))
    return directory / name
