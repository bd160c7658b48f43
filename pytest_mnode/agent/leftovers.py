"""Directories of gates: what one leaves whose machine loses its power, the next there removes.

A gate holds a lock in its directory for as long as it lives. The lock's file names the machine,
since directories for temporary files may be shared, and locks there need not be.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "mnode-"
_HOLDER = "gate"
_held: list[int] = []
"""Descriptors of locks; closed by the end of this process only."""


def private_directory() -> str:
    """A new directory for temporary files, held by this process.

    Directories of gates that were killed on this machine with no chance to tidy up are removed.
    """
    remove_leftovers()
    made = tempfile.mkdtemp(prefix=_PREFIX)
    unnamed = Path(made, f".{_HOLDER}")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(lock, os.uname().nodename.encode())
    if _locked(lock):
        _held.append(lock)
        unnamed.rename(unnamed.with_name(_HOLDER))  # from now on it may be asked who holds it
    else:  # a file system without locks: nobody could ask
        os.close(lock)
        unnamed.unlink()
    return made


def remove_leftovers() -> None:
    """Remove directories that gates of this user, on this machine, held and hold no more."""
    for holder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_HOLDER}"):
        try:
            lock = os.open(holder, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone meanwhile
            continue
        try:
            ours = os.fstat(lock).st_uid == os.geteuid()
            here = os.read(lock, 300) == os.uname().nodename.encode()
            if ours and here and _locked(lock):
                shutil.rmtree(holder.parent, ignore_errors=True)
        finally:
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
