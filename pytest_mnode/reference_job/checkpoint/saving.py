"""Writing a checkpoint: all ranks do, or none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint.dcp import plain, write_shards
from pytest_mnode.reference_job.checkpoint.disk import (
    free_text,
    make_directory,
    put_all,
    remove,
    sync_directory,
    write_error,
)
from pytest_mnode.reference_job.checkpoint.layout import (
    COMPLETE,
    MANIFEST,
    PARTIAL,
    Found,
    Manifest,
    list_names,
    new_name,
    seal,
    survey,
)
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError
from pytest_mnode.reference_job.checkpoint.results import Saved

SETTLE_S = 5.0
"""How long a directory that rank 0 made may take to be seen: NFS remembers absence."""
_LOOK_AGAIN_S = 0.1


class _NotSharedError(Exception):
    """A rank does not see the directory that rank 0 made."""


class Saving:
    """One checkpoint that is being written. has_own: this rank has a private part to save."""

    def __init__(self, directory: Path, step: int, has_own: bool, ranks: Ranks) -> None:
        self.directory = directory
        self.step = step
        self.has_own = has_own
        self.ranks = ranks
        self.path: Path | None = None

    def run(
        self,
        state: dict[str, Any],
        before_commit: Callable[[Path], object],
        keep: int,
        damaged: Collection[str],
    ) -> Saved:
        """See Store.save. damaged: names of older checkpoints that are known to be."""
        began = time.monotonic()
        ranks = self.ranks
        step = self.step
        try:
            name, step, notes = ranks.run_on_first(self._begin, self._error)
            path = self.path = self.directory / name
            plain_state = self._prepare(state, path)
            by_rank = ranks.gather(write_shards(plain_state, path, ranks))
            ranks.run(lambda: before_commit(path), self._error)
            manifest = Manifest(
                step=self.step,
                world_size=ranks.size,
                saved_at=time.time(),
                torch=str(torch.__version__),
                own=self.has_own,
                nodes=tuple(ranks.nodes),
                files={name: entry for files in by_rank for name, entry in files.items()},
            )
            text = manifest.text()
            ranks.run_on_first(lambda: self._commit(path, text), self._error)
            path = path.with_name(name.removesuffix(PARTIAL))
        except StageError as error:
            left = ranks.run_on_first(self._discard, str)
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written: "
                f"{ranks.by_rank(error.reasons)}. {left}"
            ) from None
        notes += ranks.run_on_first(lambda: self._remove_old(path, keep, damaged), str)
        seconds = max(ranks.gather(time.monotonic() - began))
        return Saved(self.step, path, manifest.total_bytes, seconds, tuple(notes))

    def _error(self, error: Exception) -> str:
        if isinstance(error, _NotSharedError):
            return str(error)
        return write_error(error, self.directory)

    def _begin(self) -> tuple[str, int, list[str]]:
        """On rank 0: remove what killed runs left; name of the directory to write in, and step."""
        make_directory(self.directory)
        names = list_names(self.directory)
        notes = _removed(self.directory / name for name in names if name.endswith(PARTIAL))
        name = new_name(self.step, names) + PARTIAL
        (self.directory / name).mkdir()
        return name, self.step, notes

    def _prepare(self, state: dict[str, Any], path: Path) -> dict[str, Any]:
        """The plain state. Raises StageError where a rank sees no directory, or saves otherwise.

        An object's own state_dict() may fail on one rank, and torch would leave the others waiting.
        """
        plain_state: dict[str, Any] = {}

        def prepare() -> tuple[int, bool]:
            if not _is_seen(path):
                raise _NotSharedError(
                    f"{self.directory} is not the directory that rank 0 sees on "
                    f"{self.ranks.nodes[0]} ({free_text(self.directory)} in it); checkpoints need "
                    "one that all nodes share"
                )
            plain_state.update(plain(state))
            return self.step, self.has_own

        first, *others = self.ranks.run(prepare, self._error)
        wrong = {
            rank: f"saves {_described(*other)}, and rank 0 {_described(*first)}"
            for rank, other in enumerate(others, start=1)
            if other != first
        }
        if wrong:
            raise StageError(wrong)
        return plain_state

    def _commit(self, path: Path, text: bytes) -> None:
        """On rank 0: manifest, COMPLETE, and last the name."""
        put_all(path, {MANIFEST: text, COMPLETE: seal(text)})
        self.path = path.rename(path.with_name(path.name.removesuffix(PARTIAL)))
        sync_directory(self.directory)

    def _discard(self) -> str:
        """On rank 0: remove what was written; says which checkpoint is left."""
        text = ""
        if self.path is not None:
            text = "".join(f"{note}. " for note in _removed([self.path]))
        with contextlib.suppress(OSError):
            for found in survey(self.directory):
                if found.complete:
                    return f"{text}The one before is kept: {found.path}"
        return f"{text}There is no other"

    def _remove_old(self, saved: Path, keep: int, damaged: Collection[str]) -> list[str]:
        """On rank 0: remove checkpoints that are not needed any more; what cannot be removed."""
        try:
            found = survey(self.directory)
        except OSError as error:
            return [f"old checkpoints stay, {self.directory} cannot be listed: {error.strerror}"]
        return _removed(outdated(found, saved, keep, damaged))


def outdated(
    found: Sequence[Found], saved: Path, keep: int, damaged: Collection[str]
) -> list[Path]:
    """Which checkpoints go once `saved` is complete. found: newest first.

    The newest `keep` steps stay that are complete and not known to be damaged, `saved` among them,
    and all later steps, which are another job's to judge. Others of the same step were replaced;
    a damaged one goes when it is older than all that stay.
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
    """Remove checkpoints; names those that cannot be, which does no harm but takes room."""
    notes = []
    for path in paths:
        try:
            remove(path)
        except FileNotFoundError:
            continue  # by another run, or as a network file system remembered it
        except OSError as error:
            notes.append(f"{path} cannot be removed: {error.strerror}")
    return notes


def _is_seen(path: Path) -> bool:
    """Whether a directory that rank 0 made is seen here within SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while not path.is_dir():
        if time.monotonic() > end:
            return False
        with contextlib.suppress(OSError):
            list(path.parent.iterdir())  # has a network file system look again
        time.sleep(_LOOK_AGAIN_S)
    return True


def _described(step: int, has_own: bool) -> str:
    return f"step {step} {'with a part of its own' if has_own else 'without one'}"
