"""Writes that last through a power failure, removals that are never half seen, and errors."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from pytest_mnode.reference_job.checkpoint.layout import PARTIAL

_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems that cannot sync a directory; those write it through."""

_REMEDIES = {
    errno.ENOSPC: "free room there, or give the run another directory",
    errno.EDQUOT: "raise the quota, or give the run another directory",
    errno.EROFS: "mount it writable on every node",
    errno.EACCES: "let the user of the job write there, on every node",
    errno.EPERM: "let the user of the job write there, on every node",
    errno.ENOTDIR: "give the run a directory",
    errno.EEXIST: "give the run a directory",
    errno.ENOENT: "was it removed meanwhile, does another run use this directory?",
    errno.ESTALE: "mount the file system again on that node",
    errno.EIO: "the storage fails: see the kernel's log on that node",
}


def write_error(error: BaseException, directory: Path) -> str:
    """An error of writing to a store in one line: what, where, free room, and the remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"cannot write to {directory}: {os.strerror(error.errno)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text += f" ({free_text(directory)})"
    remedy = _REMEDIES.get(error.errno)
    return f"{text}; {remedy}" if remedy else text


def free_text(directory: Path) -> str:
    """ "1.5 MB free", or that the free room is not known."""
    for existing in (directory, *directory.parents):
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(existing).free / 1e6:.1f} MB free"
    return "free room not known"


def sync_directory(path: Path) -> None:
    """Make the names that were added to a directory last."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(number)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, that last; it may exist already."""
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_directory(one.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that lasts; its name does when the directory is synced."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a checkpoint: its name goes first, so that no half of it is ever taken for whole."""
    if not path.name.endswith(PARTIAL):
        path = path.rename(path.with_name(path.name + PARTIAL))
        sync_directory(path.parent)
    shutil.rmtree(path)
