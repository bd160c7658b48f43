"""Loads the newest checkpoint that is proven whole, the same on all ranks."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.layout import (
    STALE,
    Found,
    Manifest,
    RefusedError,
    examine,
    list_names,
    newest_first,
    seal,
    wrong_files,
)
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError, one_line
from pytest_mnode.reference_job.checkpoint.shared import not_shared

OWN = "own_by_rank"
"""The key of a saved state under which each rank keeps its private part."""
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint that all ranks loaded.

    saved_at: seconds since the epoch. world_size: of the ranks that saved it. refused: newer
    checkpoints. own: this rank's private part when it was saved; None if the world has another size
    now.
    """

    step: int
    path: Path
    saved_at: float
    world_size: int
    refused: tuple[Found, ...]
    own: Any = None


def load(
    directory: Path, state: dict[str, Any], ranks: Ranks, settle_s: float, reshard: bool
) -> tuple[Loaded | None, tuple[Found, ...]]:
    """See Store.load. The second value: refused checkpoints, newest first."""
    refused: tuple[Found, ...] = ()
    for path in _seen_by_any(directory, ranks):
        try:
            manifest = _agree_on(path, ranks, settle_s)
            size = manifest.world_size
            if not reshard and size != ranks.size:
                why = f"{size} ranks saved it, and this job has {ranks.size} (reshard accepts it)"
                raise RefusedError(why, usable=True)
            _check_digests(path, manifest, ranks)
            own = _read(state, path, manifest, ranks)
        except RefusedError as error:
            refused += (Found(path, str(error), usable=error.usable),)
        else:
            return Loaded(manifest.step, path, manifest.saved_at, size, refused, own), refused
    # Loading nothing is right at the first start, and wrong if a good checkpoint is there.
    if usable := [str(one) for one in refused if one.usable]:
        raise CheckpointError(
            f"no checkpoint of {directory} can be used, and a new start would lose them: "
            f"{'; '.join(usable)}"
        )
    return None, refused


def _seen_by_any(directory: Path, ranks: Ranks) -> list[Path]:
    """The checkpoints that any rank sees, newest first."""
    try:
        seen = ranks.run(
            lambda: list_names(directory),
            lambda error: f"cannot list {directory}: {getattr(error, 'strerror', error)}",
        )
    except StageError as error:
        raise CheckpointError(f"no checkpoint can be found: {error}") from None
    return [directory / name for name in newest_first(set().union(*seen))]


def _agree_on(path: Path, ranks: Ranks, settle_s: float) -> Manifest:
    """The manifest that all ranks see. Raises RefusedError if it is damaged.

    Checks again, for `settle_s`, while some ranks see it, or list it, and others do not. Raises
    CheckpointError if that lasts, or soon if they surely look at different directories: to go on
    from an older one would lose the steps since then.
    """
    end = time.monotonic() + settle_s
    apart: list[str] | None = None
    while True:
        listed = False
        with contextlib.suppress(OSError):  # a network file system looks again when it is listed
            listed = path.name in list_names(path.parent)
        found = examine(path)
        late = listed and not os.path.lexists(path)
        proof = seal(found.manifest.text()) if found.manifest else None
        seen = ranks.gather((found.reason or "", proof, late, time.monotonic() >= end))
        bad = [reason for reason, *_ in seen]
        whole = {proof for reason, proof, *_ in seen if not reason}
        late = any(one[2] for one in seen)
        if (len(whole) + any(bad) == 1 and not late) or seen[0][3] or any(apart or ()):
            break
        if apart is None and whole:  # it may have been mounted only now, so they look once more
            apart = not_shared(path.parent, ranks, [not one for one in bad].index(True))
        time.sleep(_LOOK_AGAIN_S)
    if not any(bad):
        other = f"its manifest is not the one that rank 0 on {ranks.nodes[0]} sees: {STALE}"
        bad = ["" if proof == seen[0][1] else other for _, proof, *_ in seen]
    if (whole or late) and any(bad):
        others = apart or [""] * ranks.size
        bad = [
            f"{why} ({other})" if why and other else why
            for why, other in zip(bad, others, strict=True)
        ]
        raise CheckpointError(
            f"{path} is {'whole' if whole else 'listed'}, but not for all ranks: "
            f"{ranks.by_rank(bad)}. An older one would lose its steps"
        )
    if any(bad):
        raise RefusedError(bad[0] if len(set(bad)) == 1 else ranks.by_rank(bad))
    assert found.manifest is not None
    return found.manifest


def _check_digests(path: Path, manifest: Manifest, ranks: Ranks) -> None:
    """Raise RefusedError if a file was changed; each rank reads a share of the files."""
    largest_first = sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name))
    share = largest_first[ranks.rank :: ranks.size]
    if text := ranks.by_rank(ranks.gather(", ".join(wrong_files(path, manifest, share)))):
        raise RefusedError(text)


def _read(state: dict[str, Any], path: Path, manifest: Manifest, ranks: Ranks) -> Any:
    """Fill the state; return this rank's own part."""
    has_own, mine = manifest.world_size == ranks.size, str(ranks.rank)
    asked = {**state, OWN: {mine: ()}} if has_own else {**state}
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one rank alone
            torch_load(asked, storage_reader=FileSystemReader(path), process_group=ranks.group)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        text, who = one_line(cause), f"rank {rank} of {ranks.size}"
        if error.args[0] != "plan":
            raise CheckpointError(
                f"{path} is whole, and reading it failed on {who}: {text}. The state is partially "
                "overwritten"
            ) from None
        raise CheckpointError(
            f"{path} is complete, and does not fit this job: {text} ({who}); it was written with "
            f"torch {manifest.torch}. Resume the job that saved it, or give another directory"
        ) from None
    state.update({key: asked[key] for key in state})
    return asked[OWN][mine][0] if has_own else None
