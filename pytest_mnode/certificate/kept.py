"""Certificates kept in the directory of `--mnode-history`, one file per run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.difference import changes
from pytest_mnode.certificate.files import json_text, read_certificate, replace_file
from pytest_mnode.certificate.trends import MOST_RUNS, history_of
from pytest_mnode.errors import UsageError


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Certificates against one spec, oldest first. left_out: unreadable files, and why."""

    certificates: tuple[Certificate, ...] = ()
    left_out: tuple[str, ...] = ()


def earlier_runs(directory: Path | None, digest: str, before: str = "") -> EarlierRuns:
    """The latest certificates against the spec with this digest; none without a directory.

    Unreadable files raise no error, which would lose the run that has just ended. before: name of
    a kept file; it and those after it are left out.
    """
    if directory is None:
        return EarlierRuns()
    try:
        kept = sorted(directory.iterdir())
    except FileNotFoundError:  # the first run
        return EarlierRuns()
    except OSError as error:
        return EarlierRuns(left_out=(f"{directory}: {(error.strerror or 'unreadable').lower()}",))
    kept = [path for path in kept if path.name.endswith(f"-{digest[:8]}.json")]
    found: list[Certificate] = []
    left_out: list[str] = []
    for path in [path for path in kept if not before or path.name < before][-MOST_RUNS:]:
        try:
            found.append(read_certificate(path))
        except UsageError as error:
            left_out.append(str(error))
    same = (one for one in found if one.run.spec.digest == digest)
    return EarlierRuns(tuple(same), tuple(left_out))


def with_history(certificate: Certificate, earlier: EarlierRuns) -> Certificate:
    """The certificate with its history: of runs that ended before it."""
    end = certificate.run.end
    before = [one for one in earlier.certificates if one.run.end <= end]
    later = (one.run.end for one in earlier.certificates if one.run.end > end)
    wrong = (f"{one:%Y-%m-%d %H:%M}: it ended after this run: a wrong clock" for one in later)
    history = history_of(certificate, before, [*earlier.left_out, *wrong])
    found = replace(certificate, history=history)
    if not before:
        return found
    since = tuple(changes(before[-1], found))
    return replace(certificate, history=replace(history, since=since))


def read_with_history(path: Path) -> Certificate:
    """The certificate in a file or directory; one of `keep` with all trends of those before it.

    Raises UsageError as `read_certificate` does.
    """
    certificate = read_certificate(path)
    if certificate.history is not None or path.name != _kept_name(certificate):
        return certificate
    earlier = earlier_runs(path.parent, certificate.run.spec.digest, path.name)
    history = history_of(certificate, earlier.certificates, earlier.left_out, most_trends=None)
    return replace(certificate, history=history)


def keep(directory: Path, certificate: Certificate) -> Path:
    """Write a certificate for later runs, without its history, which they compute themselves."""
    path = directory / _kept_name(certificate)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text(replace(certificate, history=None)))
    return path


def _kept_name(certificate: Certificate) -> str:
    """Named by the run's end and spec, so that names sort in the order of the runs."""
    return f"{certificate.run.end:%Y%m%dT%H%M%S.%fZ}-{certificate.run.spec.digest[:8]}.json"
