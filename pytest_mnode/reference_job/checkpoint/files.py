"""Writing that is still there after a power failure, and removing that is never half seen."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from pytest_mnode.reference_job.checkpoint.names import REMOVED, aside, read_name

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What file systems say that cannot sync a directory; those write it through."""

REMEDIES = {
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


def told(error: Exception, directory: Path) -> str:
    """An error of writing to a store in one line: what, where, how much room, and the remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"cannot write to {directory}: {os.strerror(error.errno)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text += f" ({free_text(directory)})"
    remedy = REMEDIES.get(error.errno)
    return f"{text}; {remedy}" if remedy else text


def free_text(directory: Path) -> str:
    """ "1.5 MB free"; says so where that is not known."""
    for place in (directory, *directory.parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return f"{found.f_bavail * found.f_frsize / 1e6:.1f} MB free"
    return "free room not known"


def sync_directory(path: Path) -> None:
    """Make names that were added to a directory last."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(number)


def make_directory(path: Path) -> None:
    """A directory and those above it, all of which last; it may be there."""
    if not path.is_dir():
        if not path.parent.is_dir():
            make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """A file with this content, on the disk when this returns; its name is not yet."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def put(path: Path, data: bytes) -> None:
    """A file that is there with all of its content, or not at all."""
    unfinished = path.with_name(f".{path.name}.tmp")
    write_synced(unfinished, data)
    unfinished.rename(path)
    sync_directory(path.parent)


def remove(path: Path) -> None:
    """Remove a directory of a store; first from sight, so that no half of it is ever found."""
    name = read_name(path.name)
    assert name is not None, path
    if name.kind != REMOVED:
        gone = path.with_name(aside(name.step, REMOVED))
        path.rename(gone)
        sync_directory(path.parent)
        path = gone
    shutil.rmtree(path)
