"""Writing a checkpoint: all ranks do, or none."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_mnode.errors import CheckpointError
from pytest_mnode.train.checkpoint.choose import by_rank, outdated, where
from pytest_mnode.train.checkpoint.files import (
    free_text,
    make_directory,
    put,
    remove,
    sync_directory,
    told,
    write_synced,
)
from pytest_mnode.train.checkpoint.found import Saved
from pytest_mnode.train.checkpoint.manifest import FileEntry, Manifest, seal
from pytest_mnode.train.checkpoint.names import (
    COMPLETE,
    HOLDING,
    MANIFEST,
    PARTIAL,
    REPLACED,
    aside,
    read_name,
    step_name,
)
from pytest_mnode.train.checkpoint.peers import Peers, StageError
from pytest_mnode.train.checkpoint.shards import ElsewhereError, plain, write_shards
from pytest_mnode.train.checkpoint.survey import survey

HOLD_S = 60.0
SETTLE_S = 5.0
"""How long a directory that rank 0 made may take to be seen by all: NFS remembers absence."""
_LOOK_AGAIN_S = 0.1
_OWN = {True: "with a part of its own", False: "without one"}
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
class _Begun:
    """What rank 0 made before the first byte, and decided for all."""

    name: str
    step: int
    hold: bool


def save(order: Order, state: dict[str, Any], peers: Peers) -> Saved:
    """Write a checkpoint. Raises CheckpointError, the same on all ranks; nothing is left then."""
    began = time.monotonic()
    begun: _Begun | None = None
    try:
        begun = _on_first(peers, order, lambda: _begin(order))
        path = order.directory / begun.name
        _all_see(peers, order, path)
        plain_state: dict[str, Any] = {}
        # An object's own state_dict() may fail on one rank, and torch would leave the others alone.
        peers.stage(lambda: plain_state.update(plain(state)), lambda e: told(e, order.directory))
        files = _write(peers, order, plain_state, path)
        if begun.hold:
            _hold(peers, order, path)
        manifest = Manifest(
            step=order.step,
            world_size=peers.size,
            saved_at=time.time(),
            torch=str(torch.__version__),
            own=order.own,
            nodes=tuple(peers.nodes),
            files=files,
        )
        _on_first(peers, order, lambda: _commit(order, manifest, path))
        notes = _on_first(peers, order, lambda: _tidy(order))
    except StageError as error:
        left = _abandon(peers, order, begun)
        raise CheckpointError(
            f"the checkpoint of step {begun.step if begun else order.step} could not be written: "
            f"{by_rank(error.reasons, peers.nodes)}. {left}"
        ) from None
    seconds = max(peers.gather(time.monotonic() - began))
    final = order.directory / step_name(order.step)
    return Saved(order.step, final, manifest.total_bytes, seconds, notes)


def _on_first(peers: Peers, order: Order, work: Any) -> Any:
    """Have rank 0 do something; its result on all ranks."""
    return peers.stage(
        lambda: work() if peers.rank == 0 else None, lambda error: told(error, order.directory)
    )[0]


def _begin(order: Order) -> _Begun:
    """Remove what killed runs left, and make a directory to write in."""
    make_directory(order.directory)
    held = False
    for entry in order.directory.iterdir():
        name = read_name(entry.name)
        if name is None:
            continue
        held = held or (name.step == order.step and (entry / HOLDING).exists())
        unsealed = (entry / _SEALED).exists() and not (entry / COMPLETE).exists()
        if name.is_leftover or unsealed:
            remove(entry)
    path = order.directory / aside(order.step, PARTIAL)
    path.mkdir()
    return _Begun(path.name, order.step, order.hold and not held)


def _all_see(peers: Peers, order: Order, path: Path) -> None:
    """Raises StageError where a rank does not see what rank 0 made, or saves something else."""
    end = time.monotonic() + SETTLE_S
    while not path.is_dir() and time.monotonic() < end:
        with contextlib.suppress(OSError):
            list(order.directory.iterdir())  # has a network file system look again
        time.sleep(_LOOK_AGAIN_S)

    def look() -> tuple[int, bool]:
        if not path.is_dir():
            raise _NotSharedError(
                f"{order.directory} is not the directory that rank 0 sees on {peers.nodes[0]} "
                f"({free_text(order.directory)} in it); checkpoints need one that all nodes share"
            )
        return order.step, order.own

    first, *others = peers.stage(look, str)
    wrong = {
        rank: f"saves step {step} {_OWN[own]}, and rank 0 step {first[0]} {_OWN[first[1]]}"
        for rank, (step, own) in enumerate(others, start=1)
        if (step, own) != first
    }
    if wrong:
        raise StageError(wrong)


class _NotSharedError(Exception):
    pass


def _write(peers: Peers, order: Order, state: dict[str, Any], path: Path) -> dict[str, FileEntry]:
    """Have every rank write its shard; all files of all ranks, seen by rank 0 as they were made."""

    def write() -> dict[str, FileEntry]:
        files = write_shards(state, path, peers)
        sync_directory(path)
        return files

    def tell(error: Exception) -> str:
        return "" if isinstance(error, ElsewhereError) else told(error, order.directory)

    try:
        by_ranks = peers.stage(write, tell)
    except StageError as error:
        raise StageError({rank: why for rank, why in error.reasons.items() if why}) from None
    files = {name: entry for of_rank in by_ranks for name, entry in of_rank.items()}

    def check() -> None:
        for rank, of_rank in enumerate(by_ranks):
            for name, entry in of_rank.items():
                there = (path / name).stat().st_size if (path / name).exists() else None
                if there != entry.bytes:
                    raise _NotSharedError(
                        f"sees {there or 'none'} of the {entry.bytes} bytes that "
                        f"{where([rank], peers.nodes)} wrote to {path / name}"
                    )

    _on_first(peers, order, check)
    return files


def _hold(peers: Peers, order: Order, path: Path) -> None:
    """Stay here, shards written and nothing committed, for somebody to kill the run."""
    _on_first(peers, order, lambda: write_synced(path / HOLDING, b""))
    end = time.monotonic() + HOLD_S
    # Ranks keep in touch: of one that is killed the others hear at once.
    while peers.gather(time.monotonic() < end)[0]:
        time.sleep(_LOOK_AGAIN_S)
    _on_first(peers, order, (path / HOLDING).unlink)


def _commit(order: Order, manifest: Manifest, partial: Path) -> None:
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


def _tidy(order: Order) -> tuple[str, ...]:
    """Remove what is not needed any more; what cannot be removed is said, and does no harm."""
    notes = []
    found = survey(order.directory)
    complete = [one.path.name for one in found if one.complete]
    damaged = order.damaged | {one.path.name for one in found if not one.complete}
    for name in outdated(complete, damaged, step_name(order.step), order.keep):
        path = order.directory / name
        try:
            if path.exists():
                remove(path)
        except OSError as error:
            notes.append(f"{path} cannot be removed: {error.strerror}")
    return tuple(notes)


def _abandon(peers: Peers, order: Order, begun: _Begun | None) -> str:
    """Remove what was written; says what there is still, the same on all ranks."""

    def clean() -> str:
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

    return str(peers.gather(clean() if peers.rank == 0 else "")[0])
