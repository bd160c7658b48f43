"""Writes a checkpoint, on all ranks or on none."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save as torch_save

from pytest_mnode.errors import CheckpointError, UsageError
from pytest_mnode.reference_job.checkpoint.files import (
    HashingWriter,
    free_text,
    make_directory,
    remove,
    sync_directory,
    write_error,
    write_synced,
)
from pytest_mnode.reference_job.checkpoint.layout import (
    COMPLETE,
    MANIFEST,
    PARTIAL,
    FileEntry,
    Found,
    Manifest,
    list_names,
    new_name,
    seal,
    survey,
)
from pytest_mnode.reference_job.checkpoint.loading import OWN
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError
from pytest_mnode.reference_job.checkpoint.shared import not_shared

_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint; all fields but write_s are the same on all ranks.

    bytes: of all files of all ranks. seconds: of the slowest rank; write_s: of this rank, without
    waiting for others.
    """

    step: int
    path: Path
    bytes: int
    seconds: float
    write_s: float = field(compare=False)


def save(
    directory: Path,
    state: dict[str, Any],
    ranks: Ranks,
    *,
    step: int,
    own: Any,
    before_commit: Callable[[Path], object],
    keep: int,
    settle_s: float,
    damaged: Collection[str],
) -> Saved:
    """See Store.save. damaged: names of older checkpoints that are known to be damaged."""
    if step < 0:
        raise UsageError(f"step={step}: steps count from 0")
    if OWN in state:
        raise UsageError(f"the key {OWN!r} of a state is reserved: give it as own=")

    def error_text(error: Exception) -> str:
        return str(error) if isinstance(error, CheckpointError) else write_error(error, directory)

    began = time.monotonic()
    steps = ranks.gather(step)
    step = steps[0]
    written: list[Path] = []
    try:
        ranks.check(
            ["" if one == step else f"saves step {one}, and rank 0 step {step}" for one in steps]
        )
        name = ranks.run_on_first(lambda: _begin(directory, step), error_text)
        partial, path = directory / (name + PARTIAL), directory / name
        written = [partial, path]
        wait_s = 0.0 if not_shared(directory, ranks)[ranks.rank] else settle_s
        ranks.run(lambda: _await(partial, ranks, wait_s), error_text)
        with_own = {**state, OWN: {str(ranks.rank): (own,)}}
        files, write_s = _write_shards(with_own, partial, ranks)
        ranks.run(lambda: before_commit(partial), error_text)
        manifest = Manifest(
            step=step,
            world_size=ranks.size,
            saved_at=time.time(),
            torch=str(torch.__version__),
            nodes=tuple(ranks.nodes),
            files=files,
        )
        ranks.run_on_first(lambda: _commit(partial, path, manifest.text()), error_text)
    except StageError as error:
        left = ranks.run_on_first(lambda: _discard(directory, written))
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written: {error}. {left}"
        ) from None
    ranks.run_on_first(lambda: _remove_old(path, keep, damaged))
    seconds = max(ranks.gather(time.monotonic() - began))
    return Saved(step, path, manifest.total_bytes, seconds, write_s)


def _write_shards(
    state: dict[str, Any], path: Path, ranks: Ranks
) -> tuple[dict[str, FileEntry], float]:
    """Have each rank write its shard of the state into `path`. Returns the files of all ranks
    by name, and the seconds that this rank wrote.

    Tensors that are equal on all ranks are divided between them, so that each rank writes about as
    many bytes. Raises StageError on all ranks if any rank fails.
    """
    writer = HashingWriter(path)
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=False)
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one rank alone
            torch_save(state, storage_writer=writer, planner=planner, process_group=ranks.group)
    except CheckpointException as error:
        failure = error.failures.get(ranks.rank)
        ranks.check(ranks.gather(write_error(failure[0], path.parent) if failure else ""))
        raise
    written = ranks.gather(writer.written)
    return {name: one for of_rank in written for name, one in of_rank.items()}, writer.seconds


def _begin(directory: Path, step: int) -> str:
    """On rank 0: remove the leftovers of killed runs, and make the new checkpoint's directory.

    Returns its name without `.partial`.
    """
    make_directory(directory)
    names = list_names(directory)
    _removed(directory / name for name in names if name.endswith(PARTIAL))
    name = new_name(step, names)
    (directory / (name + PARTIAL)).mkdir()
    return name


def _await(partial: Path, ranks: Ranks, wait_s: float) -> None:
    """Raise CheckpointError if this rank does not see the directory in time."""
    end = time.monotonic() + wait_s
    while not partial.is_dir():
        if time.monotonic() >= end:
            late = f", or shows it after {wait_s:g} s" if wait_s else ""
            raise CheckpointError(
                f"{partial.parent} is not the directory that rank 0 sees on {ranks.nodes[0]} "
                f"({free_text(partial.parent)} in it){late}; "
                "checkpoints need one that all nodes share"
            )
        with contextlib.suppress(OSError):
            list(partial.parent.iterdir())  # makes a network file system look again
        time.sleep(_LOOK_AGAIN_S)


def _commit(partial: Path, path: Path, text: bytes) -> None:
    """On rank 0: write manifest and COMPLETE, and rename when all else is on the disk."""
    write_synced(partial / MANIFEST, text)
    write_synced(partial / COMPLETE, seal(text))
    sync_directory(partial)
    partial.rename(path)
    sync_directory(path.parent)


def _discard(directory: Path, written: Sequence[Path]) -> str:
    """On rank 0: remove the written files; returns a text on the checkpoint that is left."""
    text = "".join(f"{note}. " for note in _removed(written))
    with contextlib.suppress(OSError):
        for found in survey(directory):
            if found.complete:
                return f"{text}The previous checkpoint is kept: {found.path}"
    return f"{text}There is no other checkpoint"


def _remove_old(saved: Path, keep: int, damaged: Collection[str]) -> None:
    """On rank 0: remove outdated checkpoints. One that cannot be removed only takes room."""
    with contextlib.suppress(OSError):
        _removed(outdated(survey(saved.parent), saved, keep, damaged))


def outdated(
    found: Sequence[Found], saved: Path, keep: int, damaged: Collection[str]
) -> list[Path]:
    """Checkpoints to remove once `saved` is complete. found: newest first.

    The newest `keep` steps that are complete and not known to be damaged stay, `saved` among them,
    and all later steps, because they are another job's. Others of a kept step are removed, because
    they were replaced; a damaged one is removed if it is older than all that stay.
    """
    [new] = [one for one in found if one.path == saved]
    kept_steps = {new.step}
    gone = []
    for one in found:
        if one.step > new.step or one is new:
            continue
        if one.step in kept_steps or len(kept_steps) == keep:
            gone.append(one.path)
        elif one.complete and one.path.name not in damaged:
            kept_steps.add(one.step)
    return gone


def _removed(paths: Iterable[Path]) -> list[str]:
    """Remove checkpoints; returns why some cannot be removed."""
    notes = []
    for path in paths:
        try:
            remove(path)
        except FileNotFoundError:
            continue  # removed by another run, or a stale name of a network file system
        except OSError as error:
            notes.append(f"{path} cannot be removed: {error.strerror}")
    return notes
