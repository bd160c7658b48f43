"""Checkpoints made without torch, and what may happen to one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pytest_mnode.reference_job.checkpoint.files import put
from pytest_mnode.reference_job.checkpoint.manifest import FileEntry, Manifest, seal
from pytest_mnode.reference_job.checkpoint.names import COMPLETE, MANIFEST, step_name

FILES = {".metadata": b"of all", "__0_0.distcp": b"shard of rank 0" * 20, "__1_0.distcp": b"1" * 99}


def manifest(step: int = 10, files: dict[str, bytes] | None = None, **changes: Any) -> Manifest:
    page: dict[str, Any] = {
        "step": step,
        "world_size": 2,
        "saved_at": 1.5,
        "torch": "2.6.0",
        "own": False,
        "nodes": ("node0", "node1"),
        "files": {
            name: FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in (FILES if files is None else files).items()
        },
    }
    return Manifest.model_validate(page | changes)


def checkpoint(directory: Path, step: int = 10, *, name: str | None = None) -> Path:
    """A complete one, with the files of FILES."""
    path = directory / (name or step_name(step))
    path.mkdir(parents=True)
    for file, data in FILES.items():
        (path / file).write_bytes(data)
    rewrite(path, manifest(step).text())
    return path


def rewrite(path: Path, text: bytes) -> None:
    """Another manifest, and a COMPLETE that fits it."""
    put(path / MANIFEST, text)
    put(path / COMPLETE, seal(text))


def flip(path: Path, offset: int, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)
