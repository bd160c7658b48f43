"""Files that are hashed while they are written, durable writes, and errors with a remedy."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from pytest_mnode.reference_job.checkpoint.layout import PARTIAL, FileEntry
from pytest_mnode.reference_job.checkpoint.ranks import one_line

_BUFFER_BYTES = 1 << 20
_WRITABLE = "let the user of the job write there, on every node"
_DIRECTORY = "give the run a directory"
_REMEDIES = {
    errno.ENOSPC: "free space there, or give the run another directory",
    errno.EDQUOT: "raise the quota, or give the run another directory",
    errno.EROFS: "mount it writable on every node",
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.ENOTDIR: _DIRECTORY,
    errno.EEXIST: _DIRECTORY,
    errno.ENOENT: "check whether it was removed, or another run uses this directory",
    errno.ESTALE: "mount the file system again on that node",
    errno.EIO: "the storage fails: see the kernel's log on that node",
}


def write_error(error: BaseException, directory: Path) -> str:
    """An error of writing to a store in one line: what, where, free space, and the remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"cannot write to {directory}: {os.strerror(error.errno)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text += f" ({free_text(directory)})"
    remedy = _REMEDIES.get(error.errno)
    return f"{text}; {remedy}" if remedy else text


def free_text(directory: Path) -> str:
    """ "1.5 MB free", or that the free space is not known."""
    for existing in (directory, *directory.parents):
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(existing).free / 1e6:.1f} MB free"
    return "free space not known"


def sync_directory(path: Path) -> None:
    """Make the names that were added to a directory durable."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        # Some file systems cannot sync a directory; those write it through.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(number)


def make_directory(path: Path) -> None:
    """Make a durable directory, and those above it; it may exist already."""
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_directory(one.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a durable file; its name is durable when the directory is synced."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a checkpoint: it is renamed first, so that half of it is never taken for a whole."""
    if not path.name.endswith(PARTIAL):
        path = path.rename(path.with_name(path.name + PARTIAL))
        sync_directory(path.parent)
    shutil.rmtree(path)


class HashingWriter(FileSystemWriter):
    """torch's writer of one shard; `written` has size and digest of every file, by name.

    seconds: time that writing took on this rank.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, thread_count=1, sync_files=False)  # _HashedFile syncs
        self.seconds = 0.0
        self.written: dict[str, FileEntry] = {}
        self.fs = _HashingFileSystem(self.written)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write; errors can be pickled, because other ranks would wait for one that cannot."""
        began = time.monotonic()
        try:
            written = super().write_data(plan, planner)
            sync_directory(Path(self.path))
        except OSError:
            raise
        except Exception as error:
            raise RuntimeError(one_line(error)) from None
        self.seconds = time.monotonic() - began
        return written


class _HashingFileSystem(FileSystem):
    def __init__(self, written: dict[str, FileEntry]) -> None:
        self.written = written

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
        """Do nothing: a rank that does not see the directory must not make its own."""


class _HashedFile(io.FileIO):
    """A file that hashes the bytes written to it, and is on the disk when it has been closed.

    error: the first error of writing. torch calls `write` from C++, which reports any error as a
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
