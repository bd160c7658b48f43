"""Paths of Unix sockets in directories with long names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_MOST_BYTES = 107


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """The path of a socket, of no more bytes than the kernel allows, whatever its directory."""
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield path
        return
    folder, _, name = path.rpartition("/")
    fd = os.open(folder, os.O_PATH)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
