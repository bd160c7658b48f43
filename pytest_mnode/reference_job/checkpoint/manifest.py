"""What a checkpoint consists of, as text, and the line that seals it."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_mnode.reference_job.checkpoint.names import COMPLETE, HOLDING, MANIFEST

FORMAT = 1


class ManifestError(Exception):
    """A manifest cannot be used; the text is the reason, one line."""


class _Page(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class FileEntry(_Page):
    """A file's size in bytes, and its SHA-256 in hex."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class Manifest(_Page):
    """A checkpoint's files by name, and what it is of.

    saved_at: seconds since the epoch. own: each rank's own state is in it. nodes: by rank.
    """

    format: int = FORMAT
    step: Annotated[int, Field(ge=0)]
    world_size: Annotated[int, Field(ge=1)]
    saved_at: float
    torch: str
    own: bool
    nodes: tuple[str, ...] = Field(strict=False)
    files: dict[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def text(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()


def read_manifest(text: bytes) -> Manifest:
    """Raises ManifestError for what is not a manifest, or one of another format."""
    try:
        page = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST} is not readable: {_one_line(str(error))}") from None
    if not isinstance(page, dict) or type(page.get("format")) is not int:
        raise ManifestError(f"{MANIFEST} does not say of which format it is")
    if page["format"] != FORMAT:
        raise ManifestError(f"it is of format {page['format']}, and format {FORMAT} is read here")
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ManifestError(f"{MANIFEST}: {where}: {_one_line(first['msg'])}") from None
    for name in manifest.files:
        if "/" in name or "\0" in name or name in ("", ".", "..", MANIFEST, COMPLETE, HOLDING):
            raise ManifestError(f"{MANIFEST} names a file {name!r}")
    if not manifest.files:
        raise ManifestError(f"{MANIFEST} names no files")
    return manifest


def fingerprint(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def seal(text: bytes) -> bytes:
    """What COMPLETE holds, byte for byte, beside a manifest of this text."""
    return f"sha256 {fingerprint(text)} {MANIFEST}\n".encode()


def _one_line(text: str) -> str:
    return " ".join(text.split())
