"""Checkpoints made without torch or by one rank, and ways to damage them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store
from pytest_mnode.reference_job.checkpoint.layout import (
    COMPLETE,
    MANIFEST,
    FileEntry,
    Manifest,
    seal,
)

ALONE = World(0, 1, 0, 1, "node0", ("node0",))
SHARD = "__0_0.distcp"
FILES = {".metadata": b"of all", SHARD: b"shard of rank 0" * 20, "__1_0.distcp": b"1" * 99}


def manifest(step: int = 10, files: dict[str, bytes] | None = None, **changes: Any) -> Manifest:
    page: dict[str, Any] = {
        "step": step,
        "world_size": 2,
        "saved_at": 1.5,
        "torch": "2.6.0",
        "nodes": ("node0", "node1"),
        "files": {
            name: FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in (FILES if files is None else files).items()
        },
    }
    return Manifest.model_validate(page | changes)


def name_of(step: int) -> str:
    """The name of the first checkpoint of a step."""
    return f"step-{step:08d}.1-00000000"


def checkpoint(directory: Path, step: int = 10) -> Path:
    """A complete checkpoint with the files of FILES."""
    path = directory / name_of(step)
    path.mkdir(parents=True)
    for file, data in FILES.items():
        (path / file).write_bytes(data)
    rewrite(path, manifest(step).text())
    return path


def rewrite(path: Path, text: bytes) -> None:
    """Write another manifest, and a COMPLETE that matches it."""
    (path / MANIFEST).write_bytes(text)
    (path / COMPLETE).write_bytes(seal(text))


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Damage: another manifest with a valid seal."""

    def harm(path: Path) -> None:
        text = (path / MANIFEST).read_bytes()
        assert old in text
        rewrite(path, text.replace(old, new))

    return harm


def flipped(name: str, offset: int) -> Callable[[Path], None]:
    """Damage: a flipped bit in one file."""
    return lambda path: flip(path / name, offset)


def truncated(name: str, size: int) -> Callable[[Path], None]:
    """Damage: a shortened file."""
    return lambda path: os.truncate(path / name, size)


def removed(name: str) -> Callable[[Path], None]:
    """Damage: a missing file."""
    return lambda path: (path / name).unlink()


def flip(path: Path, offset: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)


def state(value: float) -> dict[str, Any]:
    import torch

    weights = torch.arange(64.0).reshape(8, 8) + value
    return {"model": {"weight": weights}, "schedule": {"lr": value, "steps": [1, 2]}}


def save(store: Store, *steps: int, **more: Any) -> Path:
    """Save the state of each step, with the step as its value; the path of the last checkpoint."""
    for step in steps:
        saved = store.save(state(step), step=step, world=ALONE, **more)
    return saved.path


def loaded_value(store: Store) -> tuple[int, float]:
    """Step and value that one rank loads; all parts of the state have the same value."""
    import torch

    target = state(0)
    loaded = store.load(target, world=ALONE)
    assert loaded is not None
    found = float(target["model"]["weight"][0, 0])
    assert torch.equal(target["model"]["weight"], state(found)["model"]["weight"])
    assert target["schedule"] == {"lr": found, "steps": [1, 2]}
    return loaded.step, found


def steps_in(directory: Path) -> list[str]:
    """Names without the random digits, such as "step-00000002.1" and "….partial", sorted."""
    names = (path.name.partition("-")[2] for path in directory.iterdir())
    return sorted(name.partition("-")[0] + ".partial" * name.endswith(".partial") for name in names)
