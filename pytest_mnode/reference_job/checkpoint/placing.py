"""What one rank does for all: where shards are written, what makes them a checkpoint, what goes."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.reference_job.checkpoint.choose import outdated
from pytest_mnode.reference_job.checkpoint.files import (
    make_directory,
    put,
    remove,
    sync_directory,
    write_synced,
)
from pytest_mnode.reference_job.checkpoint.manifest import Manifest, seal
from pytest_mnode.reference_job.checkpoint.names import (
    COMPLETE,
    HOLDING,
    MANIFEST,
    PARTIAL,
    REPLACED,
    aside,
    read_name,
    step_name,
)
from pytest_mnode.reference_job.checkpoint.survey import survey

_SEALED = f".{COMPLETE}.tmp"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be saved. damaged: names of checkpoints that are known to be."""

    directory: Path
    step: int
    keep: int
    hold: bool
    own: bool
    damaged: frozenset[str]


@dataclass(frozen=True, slots=True)
class Begun:
    """What rank 0 made before the first byte, and decided for all."""

    name: str
    step: int
    hold: bool
    notes: tuple[str, ...]


def begin(order: Order) -> Begun:
    """Remove what killed runs left, and make a directory to write in."""
    make_directory(order.directory)
    held = False
    notes: list[str] = []
    for entry in order.directory.iterdir():
        name = read_name(entry.name)
        if name is None:
            continue
        held = held or (name.step == order.step and (entry / HOLDING).exists())
        unsealed = (entry / _SEALED).exists() and not (entry / COMPLETE).exists()
        if name.is_leftover or unsealed:
            notes += _removed(entry)
    path = order.directory / aside(order.step, PARTIAL)
    path.mkdir()
    return Begun(path.name, order.step, order.hold and not held, tuple(notes))


def _removed(path: Path) -> list[str]:
    """Remove a directory; says where it cannot be, which does no harm but takes room."""
    try:
        if path.exists():
            remove(path)
    except OSError as error:
        return [f"{path} cannot be removed: {error.strerror}"]
    return []


def commit(order: Order, manifest: Manifest, partial: Path) -> None:
    """Manifest, name, COMPLETE. All that needs room is written before the first rename."""
    text = manifest.text()
    write_synced(partial / _SEALED, seal(text))
    put(partial / MANIFEST, text)
    final = order.directory / step_name(order.step)
    before: Path | None = None
    if final.exists():
        before = order.directory / aside(order.step, REPLACED)
        final.rename(before)
    try:
        partial.rename(final)
        sync_directory(order.directory)
        (final / _SEALED).rename(final / COMPLETE)
        sync_directory(final)
    except OSError:
        if not partial.exists():
            with contextlib.suppress(OSError):
                final.rename(partial)
        if before is not None:
            before.rename(final)
        raise


def tidy(order: Order) -> tuple[str, ...]:
    """Remove what is not needed any more."""
    notes: list[str] = []
    try:
        found = survey(order.directory)
    except OSError as error:
        return (f"old checkpoints stay, {order.directory} cannot be listed: {error.strerror}",)
    complete = [one.path.name for one in found if one.complete]
    damaged = order.damaged | {one.path.name for one in found if not one.complete}
    for name in outdated(complete, damaged, step_name(order.step), order.keep):
        notes += _removed(order.directory / name)
    return tuple(notes)


def discard(order: Order, begun: Begun | None) -> str:
    """Remove what was written of a checkpoint that failed; says what there is still."""
    text = ""
    path = order.directory / begun.name if begun is not None else None
    if path is not None and path.exists():
        try:
            shutil.rmtree(path)
        except OSError as error:
            text = f"{path} is left, it cannot be removed: {error.strerror}. "
    with contextlib.suppress(OSError):
        for one in survey(order.directory):
            if one.complete:
                return f"{text}The one before is kept: {one.path}"
    return f"{text}There is no other"
