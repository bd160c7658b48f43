"""torch.distributed.checkpoint, with a digest of every byte on its way to the disk."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful

from pytest_mnode.reference_job.checkpoint.disk import sync_directory, write_error
from pytest_mnode.reference_job.checkpoint.layout import FileEntry
from pytest_mnode.reference_job.checkpoint.ranks import Ranks, StageError, one_line

OWN = "own_by_rank"
"""The key of a saved state under which each rank keeps its private part."""
_BUFFER_BYTES = 1 << 20


class MisfitError(Exception):
    """A checkpoint is whole, and lacks what the state asks for."""


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """A state with the state_dict() of those of its values that have one."""
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in state.items()}


def write_shards(state: dict[str, Any], path: Path, ranks: Ranks) -> dict[str, FileEntry]:
    """Have each rank write its shard of a plain state into `path`; the files of all, by name.

    What all ranks have alike is divided between them, tensor by tensor, so that each writes about
    as many bytes. Raises StageError on all ranks where it fails on any.
    """
    writer = _Writer(path, thread_count=1, sync_files=False)  # _HashedFile syncs
    writer.fs = files = _HashingFileSystem()
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=False)
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one rank alone
            save(state, storage_writer=writer, planner=planner, process_group=ranks.group)
    except CheckpointException as error:
        failure = error.failures.get(ranks.rank)
        texts = ranks.gather(failure and write_error(failure[0], path.parent))
        raise StageError({rank: text for rank, text in enumerate(texts) if text}) from None
    by_rank = ranks.gather(files.written)
    return {name: entry for of_rank in by_rank for name, entry in of_rank.items()}


def read_shards(state: dict[str, Any], path: Path, ranks: Ranks) -> None:
    """Fill a plain `state` from the checkpoint in `path`. All ranks call this.

    Raises on all ranks MisfitError where the checkpoint lacks what some rank's state asks for, and
    RuntimeError where reading fails on any; the state is part new, part old then.
    """
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # one rank alone
            load(state, storage_reader=FileSystemReader(path), process_group=ranks.group)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        text = one_line(cause)
        if error.args[0] == "plan":
            raise MisfitError(f"{text} (rank {rank} of {ranks.size})") from None
        raise RuntimeError(f"reading it failed on rank {rank} of {ranks.size}: {text}") from None


class _Writer(FileSystemWriter):
    """Raises errors that can be pickled, or other ranks would wait for one that cannot be sent."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            written = super().write_data(plan, planner)
            sync_directory(Path(self.path))
        except OSError:
            raise
        except Exception as error:
            raise RuntimeError(one_line(error)) from None
        return written


class _HashingFileSystem(FileSystem):
    """Remembers size and digest of every file that it writes, by name."""

    def __init__(self) -> None:
        self.written: dict[str, FileEntry] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        file = _HashedFile(path, mode)
        try:
            with io.BufferedWriter(file, _BUFFER_BYTES) as stream:
                yield stream
        finally:
            if file.error is not None:
                raise file.error
        self.written[Path(path).name] = file.entry()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: a rank that does not see the directory must not make one of its own."""


class _HashedFile(io.FileIO):
    """A file that hashes what is written to it, and is on the disk when it has been closed.

    error: the first of writing. torch calls `write` from C++, which reports any error as a
    RuntimeError without its cause.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str) -> None:
        super().__init__(path, mode)
        self._digest = hashlib.sha256()
        self._size = 0
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            count = super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self._digest.update(memoryview(data)[:count])
        self._size += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            os.fsync(self.fileno())
        finally:
            super().close()

    def entry(self) -> FileEntry:
        return FileEntry(bytes=self._size, sha256=self._digest.hexdigest())
