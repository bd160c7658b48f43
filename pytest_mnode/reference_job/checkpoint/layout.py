"""The layout of a store on disk: names, manifests, and reasons for refusal. No torch."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
CUT_SHORT = f"no {COMPLETE}: writing it was interrupted"
STALE = "the file system is stale, or not the one that all nodes share"
PARTIAL = ".partial"
"""Suffix of a directory that is being written or removed, or was left by a kill."""
_NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,17})\.(\d{1,9})-[0-9a-f]{8}(\.partial)?", re.ASCII)
_PLACEHOLDERS = (".nfs", ".fuse_hidden")
"""Prefixes of the name that NFS or FUSE gives to a file that is removed while open, until it is
closed."""


class RefusedError(Exception):
    """A checkpoint cannot be used; the text is the reason, one line.

    usable: it can be used by a job of its world size.
    """

    def __init__(self, reason: str, *, usable: bool = False) -> None:
        super().__init__(reason)
        self.usable = usable


_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FileEntry(BaseModel):
    """A file's size in bytes, and its SHA-256 in hex."""

    model_config = _STRICT
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class Manifest(BaseModel):
    """The files of a checkpoint by name, and their origin.

    saved_at: seconds since the epoch. nodes: by rank.
    """

    model_config = _STRICT
    step: Annotated[int, Field(ge=0)]
    world_size: Annotated[int, Field(ge=1)]
    saved_at: float
    torch: str
    nodes: tuple[str, ...] = Field(strict=False)
    files: Annotated[dict[str, FileEntry], Field(min_length=1)]

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def text(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    @classmethod
    def read(cls, text: bytes) -> Manifest:
        """The inverse of `text`. Raises RefusedError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise RefusedError(f"{MANIFEST} is not readable: {where}{first['msg']}") from None


def seal(manifest_text: bytes) -> bytes:
    """The content of COMPLETE, byte for byte, for a manifest of this text."""
    return f"sha256 {hashlib.sha256(manifest_text).hexdigest()} {MANIFEST}\n".encode()


def order(name: str) -> tuple[int, int, str] | None:
    """Sort key of a checkpoint's directory: step, attempt, name; None for any other name."""
    match = _NAME.fullmatch(name)
    return match and (int(match[1]), int(match[2]), name)


def new_name(step: int, existing: Iterable[str]) -> str:
    """A name for a new checkpoint of this step, which sorts after the existing ones.

    The random digits keep a rank of a killed run that still writes from touching the new files.
    """
    keys = (order(name) for name in existing)
    attempts = [key[1] for key in keys if key is not None and key[0] == step]
    return f"step-{step:08d}.{max(attempts, default=0) + 1}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, or the remains of one.

    reason: why it may not be used, in one line; None if it is complete. usable: it is whole, and
    may be used by a job of its world size.
    """

    path: Path
    reason: str | None
    manifest: Manifest | None = field(default=None, repr=False)
    usable: bool = False

    @property
    def step(self) -> int:
        """The step of the checkpoint, by the name of its directory."""
        return int(self.path.name.removeprefix("step-").partition(".")[0])

    @property
    def complete(self) -> bool:
        return self.reason is None

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


def newest_first(names: Iterable[str]) -> list[str]:
    """The names of checkpoints among `names`, complete or not."""
    return [name for _, _, name in sorted(filter(None, map(order, names)), reverse=True)]


def list_names(directory: Path) -> list[str]:
    """Names of all checkpoints, newest first; empty if there is no directory. Raises OSError."""
    try:
        return newest_first(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return []


def survey(directory: Path, verify: bool = False) -> list[Found]:
    """Every checkpoint, complete or not, in the order of `list_names`.

    Compares names, sizes, manifest and COMPLETE; with `verify` also the digest of every file.
    Raises OSError if the directory cannot be listed.
    """
    return [examine(directory / name, verify) for name in list_names(directory)]


def examine(path: Path, verify: bool = False) -> Found:
    """The checkpoint in this directory, as `survey` sees it; never raises."""
    manifest: Manifest | None = None
    wrong: list[str] = []
    try:
        manifest = _sealed_manifest(path)
        if manifest.step != Found(path, None).step:
            raise RefusedError(f"it is of step {manifest.step}: its directory was moved or renamed")
        _check_names_and_sizes(path, manifest)
        if verify:
            wrong = wrong_files(path, manifest, manifest.files)
    except RefusedError as error:
        wrong = [str(error)]
    except OSError as error:
        wrong = [f"{Path(str(error.filename or path)).name} cannot be read: {error.strerror}"]
    return Found(path, ", ".join(wrong) or None, manifest)


def wrong_files(path: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """The files whose content is not what was written, with the reason; reads all of them."""
    wrong = []
    for name in names:
        try:
            with (path / name).open("rb", buffering=0) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()  # in pieces of 256 KiB
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error.strerror}")
            continue
        if digest != manifest.files[name].sha256:
            wrong.append(f"{name} is not what was written: its SHA-256 differs")
    return wrong


def _sealed_manifest(path: Path) -> Manifest:
    """The manifest that COMPLETE proves. Raises RefusedError, OSError."""
    if path.name.endswith(PARTIAL):
        raise RefusedError(CUT_SHORT)
    try:
        sealed = _read_regular(path / COMPLETE)
    except FileNotFoundError:
        raise RefusedError(CUT_SHORT if path.is_dir() else f"it does not exist: {STALE}") from None
    try:
        text = _read_regular(path / MANIFEST)
    except FileNotFoundError:
        raise RefusedError(f"{MANIFEST} is missing") from None
    if sealed != seal(text):
        raise RefusedError(f"{MANIFEST} is not the one that {COMPLETE} names: one was changed")
    return Manifest.read(text)


def _read_regular(path: Path) -> bytes:
    """The content of a plain file: a link may lead elsewhere, and a pipe or device may block."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise RefusedError(f"{path.name} is not a plain file")
    return path.read_bytes()


def _check_names_and_sizes(path: Path, manifest: Manifest) -> None:
    """Raise RefusedError if names, kinds or sizes are not those of the manifest."""
    with os.scandir(path) as entries:
        there = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    for name, entry in manifest.files.items():
        if name not in there:
            raise RefusedError(f"{name} is missing")
        if not stat.S_ISREG(there[name].st_mode):
            raise RefusedError(f"{name} is not a plain file")
        if there[name].st_size != entry.bytes:
            raise RefusedError(f"{name} has {there[name].st_size} of {entry.bytes} bytes")
    for name in sorted(there.keys() - manifest.files.keys() - {MANIFEST, COMPLETE}):
        if not name.startswith(_PLACEHOLDERS):
            raise RefusedError(f"it contains {name}, which {MANIFEST} does not name")
