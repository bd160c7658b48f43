"""What is in a store, as one process sees it. Reads files, and needs no torch."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_mnode.reference_job.checkpoint.found import Found
from pytest_mnode.reference_job.checkpoint.manifest import (
    Manifest,
    ManifestError,
    fingerprint,
    read_manifest,
    seal,
)
from pytest_mnode.reference_job.checkpoint.names import (
    COMPLETE,
    MANIFEST,
    PARTIAL,
    REMOVED,
    order,
    read_name,
)

CUT_SHORT = f"no {COMPLETE}: writing it was cut short"
_SILLY_RENAMED = ".nfs"
"""NFS keeps a file that is removed while open under a name that begins so, until it is closed."""


def survey(directory: Path, verify: bool = False) -> list[Found]:
    """Every checkpoint and every unfinished one, newest first; empty where there is no directory.

    Looks at names, sizes, manifest and COMPLETE; with `verify` at every byte. Raises OSError where
    the directory cannot be listed.
    """
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    found = []
    for text in names:
        name = read_name(text)
        if name is not None and name.kind != REMOVED:
            one = examine(directory / text, name.step, name.kind == PARTIAL)
            found.append(verified(one) if verify else one)
    return sorted(found, key=lambda one: order(one.path.name), reverse=True)


def examine(path: Path, step: int, partial: bool = False) -> Found:
    """A directory that should hold the checkpoint of this step; never raises."""
    try:
        if partial:
            return Found(path, step, CUT_SHORT)
        manifest, text = _read(path)
        return Found(path, step, _reason(path, step, manifest), manifest, fingerprint(text))
    except ManifestError as error:
        return Found(path, step, str(error))
    except OSError as error:
        name = Path(str(error.filename or path)).name
        return Found(path, step, f"{name} cannot be read: {error.strerror}")


def verified(found: Found) -> Found:
    """The same, with the reason where a file of it is not what was written; reads all of them."""
    if found.manifest is None or not found.complete:
        return found
    wrong = wrong_files(found.path, found.manifest, found.manifest.files)
    return replace(found, reason=", ".join(wrong)) if wrong else found


def wrong_files(path: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Those of these files whose content is not what was written, with the reason; reads all."""
    wrong = []
    for name in names:
        entry = manifest.files[name]
        try:
            with (path / name).open("rb", buffering=0) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()  # in pieces of 256 KiB
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error.strerror}")
            continue
        if found != entry.sha256:
            wrong.append(f"{name} is not what was written: its SHA-256 differs")
    return wrong


def _read(path: Path) -> tuple[Manifest, bytes]:
    """The manifest of a checkpoint, proven by COMPLETE. Raises ManifestError, OSError."""
    try:
        sealed = _plain(path / COMPLETE)[:256]
    except FileNotFoundError:
        raise ManifestError(CUT_SHORT) from None
    try:
        text = _plain(path / MANIFEST)
    except FileNotFoundError:
        raise ManifestError(f"{MANIFEST} is missing") from None
    if sealed != seal(text):
        raise ManifestError(f"{MANIFEST} is not the one that {COMPLETE} names: one was changed")
    return read_manifest(text), text


def _plain(path: Path) -> bytes:
    """What is in a file that is no link, pipe or device: those may lead elsewhere, or block."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ManifestError(f"{path.name} is not a plain file")
    return path.read_bytes()


def _reason(path: Path, step: int, manifest: Manifest) -> str | None:
    """Why a checkpoint with a good manifest may not be used, from names and sizes."""
    if manifest.step != step:
        return f"it is of step {manifest.step}: moved or renamed"
    with os.scandir(path) as entries:
        there = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    for name, entry in manifest.files.items():
        if name not in there:
            return f"{name} is missing"
        if not stat.S_ISREG(there[name].st_mode):
            return f"{name} is not a plain file"
        if there[name].st_size != entry.bytes:
            return f"{name} has {there[name].st_size} of {entry.bytes} bytes"
    for name in sorted(there):
        known = name in manifest.files or name in (MANIFEST, COMPLETE)
        if not known and not name.startswith(_SILLY_RENAMED):
            return f"it holds {name}, which {MANIFEST} does not name"
    return None
