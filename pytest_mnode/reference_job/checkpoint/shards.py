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

from pytest_mnode.reference_job.checkpoint.manifest import FileEntry
from pytest_mnode.reference_job.checkpoint.peers import Peers

_BUFFER_BYTES = 1 << 20


class MisfitError(Exception):
    """A checkpoint is whole, and has not what the state asks for."""


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """A state with the state_dict() of those of its values that have one."""
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in state.items()}


def write_shards(state: dict[str, Any], path: Path, peers: Peers) -> dict[str, FileEntry]:
    """Write this rank's shard of a plain state into `path`, which is there; its files by name.

    All ranks call this.

    What ranks have in common is divided between them, tensor by tensor, so that each writes about
    as many bytes; of what is sharded each writes its own. Raises OSError or RuntimeError where it
    fails on this rank, RuntimeError where it fails on another only.
    """
    files = _Files()
    writer = _Writer(path, thread_count=1, sync_files=False)
    writer.fs = files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one process writes alone is meant
        try:
            save(
                state,
                storage_writer=writer,
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=False),
                process_group=peers.group,
                no_dist=peers.alone,
            )
        except CheckpointException as error:
            raise _mine(error, peers, files.trouble) from None
    return files.written


def read_shards(state: dict[str, Any], path: Path, peers: Peers) -> None:
    """Fill a plain `state` from the checkpoint in `path`. All ranks call this.

    Raises MisfitError on all ranks where the checkpoint has not what some rank's state asks for,
    RuntimeError on all where reading fails on any; the state is part new, part old then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            load(
                state,
                storage_reader=FileSystemReader(path),
                process_group=peers.group,
                no_dist=peers.alone,
            )
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            text = one_line(cause)
            if error.args[0] == "plan":
                raise MisfitError(f"{text} (rank {rank} of {peers.size})") from None
            raise RuntimeError(
                f"reading it failed on rank {rank} of {peers.size}: {text}"
            ) from None


def one_line(error: BaseException) -> str:
    """ "what it says", or its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _mine(error: CheckpointException, peers: Peers, trouble: OSError | None) -> Exception:
    """What went wrong on this rank; of another's, that it did."""
    if trouble is not None:
        return trouble
    failure = error.failures.get(peers.rank)
    if failure is None:
        return ElsewhereError()
    cause = failure[0]
    return cause if isinstance(cause, Exception) else RuntimeError(f"{type(cause).__name__}")


class _Writer(FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except OSError:
            raise
        except Exception as error:
            # It goes to all ranks: what cannot be pickled would leave them waiting.
            raise RuntimeError(one_line(error)) from None


class ElsewhereError(Exception):
    """It failed on another rank, and nothing is wrong on this one."""


class _Files(FileSystem):
    """Files as they are written: every one hashed, synced, and remembered by its last name."""

    def __init__(self) -> None:
        self.written: dict[str, FileEntry] = {}
        self.trouble: OSError | None = None

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        try:
            hashed = _Hashed(Path(path))
        except OSError as error:
            self.trouble = error
            raise
        try:
            yield hashed
            hashed.close()
        finally:
            hashed.drop()
            self.trouble = self.trouble or hashed.trouble
        self.written[Path(path).name] = hashed.entry()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        Path(path).replace(new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        Path(path).unlink()
        self.written.pop(Path(path).name, None)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: where a rank does not see the directory, it must not make one of its own."""


class _Hashed(io.IOBase):
    """A file being written.

    An error is kept, what follows goes nowhere, and the next flush raises it: torch's writer calls
    `write` from C++, which says of an error that it was one and ends its file as if there was none.
    """

    def __init__(self, path: Path) -> None:
        self._file = io.BufferedWriter(io.FileIO(path, "wb"), _BUFFER_BYTES)
        self._digest = hashlib.sha256()
        self._bytes = 0
        self.trouble: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        count = memoryview(data).nbytes
        if self.trouble is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.trouble = error
            self._digest.update(data)
        self._bytes += count
        return count

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """Have all of it on the disk. Raises the OSError that came on the way."""
        if self._file.closed:
            return
        self.flush()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            self.trouble = error
            raise

    def drop(self) -> None:
        """Close what could not be written to its end."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._file.closed:  # what is in its buffer does not fit, and never will
            with contextlib.suppress(OSError):
                self._file.detach().close()

    def entry(self) -> FileEntry:
        return FileEntry(bytes=self._bytes, sha256=self._digest.hexdigest())
