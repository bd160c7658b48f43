"""Writes and reads files past the page cache, and tells whose content they have.

Each page of 4 KiB begins with a stamp of its own: the seed of its writer, and its number. So a page
that is missing, misplaced or of another run is told, and no server stores equal pages only once.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
BLOCK = 4 << 20
"""[choice] Bytes of a write or read of a checkpoint: more do not make a server faster."""
DIRECT = "O_DIRECT"
CACHED = "through the page cache, written by fsync and dropped by fadvise"
_REFUSES_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that were written or read in a time, s. how: past the page cache, or how it was
    emptied. wrong: pages that had other content. error: the first; "" if there was none."""

    size_bytes: int = 0
    time_s: float = 0.0
    how: str = DIRECT
    wrong: int = 0
    error: str = ""


class Block:
    """Memory of one block, aligned for direct transfers, with stamped pages."""

    def __init__(self, size_bytes: int, seed: int) -> None:
        self.memory = mmap.mmap(-1, size_bytes)
        self.memory[:] = random.Random(seed).randbytes(size_bytes)  # cannot be compressed
        self._seed = seed
        words = np.frombuffer(self.memory, np.int64)
        self._stamps: NDArray[np.int64] = words.reshape(-1, PAGE // 8)[:, :2]
        self._numbers = np.arange(len(self._stamps), dtype=np.int64)

    def stamp(self, first_page: int) -> None:
        """Give its pages the stamps of those from `first_page` on."""
        self._stamps[:, 0] = self._seed
        self._stamps[:, 1] = self._numbers + first_page

    def wrong(self, first_page: int, size_bytes: int) -> int:
        """Number of the pages in its first bytes that have other stamps."""
        count = size_bytes // PAGE
        seeds, numbers = self._stamps[:count, 0], self._stamps[:count, 1]
        bad = (seeds != self._seed) | (numbers != self._numbers[:count] + first_page)
        return int(bad.sum())


def write_all(paths: Sequence[Path], each_bytes: int, seeds: Sequence[int]) -> Moved:
    """Write files of the same size, each by a thread, and sync them; a multiple of `PAGE` each.

    The time runs until the last file is on the storage.
    """
    blocks = [Block(BLOCK, seed) for seed in seeds]

    def write(number: int) -> Moved:
        return _write(paths[number], each_bytes, blocks[number])

    return _together(write, len(paths))


def read_all(paths: Sequence[Path], each_bytes: int, seeds: Sequence[int]) -> Moved:
    """Read files that `write_all` wrote with these seeds, and count wrong pages."""
    blocks = [Block(BLOCK, seed) for seed in seeds]

    def read(number: int) -> Moved:
        return _read(paths[number], each_bytes, blocks[number])

    return _together(read, len(paths))


def read_at_random(
    paths: Sequence[Path],
    each_bytes: int,
    seeds: Sequence[int],
    block_bytes: int,
    duration_s: float,
) -> Moved:
    """Read blocks at random places of files of `write_all` for a time, each file by a thread."""
    blocks = [Block(block_bytes, seed) for seed in seeds]

    def read(number: int) -> Moved:
        block, draw = blocks[number], random.Random(seeds[number])
        done = wrong = 0
        with _opened(paths[number], os.O_RDONLY) as (file, how):
            drop(file)
            began = time.perf_counter()
            while time.perf_counter() < began + duration_s:
                place = draw.randrange(each_bytes // block_bytes) * block_bytes
                if how != DIRECT:  # or a second read of a place would not reach the storage
                    os.posix_fadvise(file, place, block_bytes, os.POSIX_FADV_DONTNEED)
                count = read_block(file, block, place, block_bytes)
                wrong += block.wrong(place // PAGE, count) + (block_bytes - count) // PAGE
                done += count
            return Moved(done, time.perf_counter() - began, how, wrong)

    return _together(read, len(paths))


def _together(work: Callable[[int], Moved], number: int) -> Moved:
    """Do all at once, each in a thread; errors are returned."""

    def guarded(index: int) -> Moved:
        try:
            return work(index)
        except OSError as error:
            return Moved(error=error_text(error))

    began = time.perf_counter()
    with ThreadPoolExecutor(number) as threads:
        found = [*threads.map(guarded, range(number))]
    return Moved(
        sum(one.size_bytes for one in found),
        time.perf_counter() - began,
        next((one.how for one in found if one.how != DIRECT), DIRECT),
        sum(one.wrong for one in found),
        next((one.error for one in found if one.error), ""),
    )


def _write(path: Path, size_bytes: int, block: Block) -> Moved:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as (file, how):
        for place in range(0, size_bytes, BLOCK):
            write_block(file, block, place, min(BLOCK, size_bytes - place))
        os.fsync(file)
        drop(file)
    return Moved(size_bytes, how=how)


def write_block(file: int, block: Block, place: int, size_bytes: int) -> None:
    """Write the first bytes of a block at a place. Raises OSError."""
    block.stamp(place // PAGE)
    view = memoryview(block.memory)[:size_bytes]
    while view:
        count = os.pwrite(file, view, place)
        place, view = place + count, view[count:]


def _read(path: Path, size_bytes: int, block: Block) -> Moved:
    done = wrong = 0
    with _opened(path, os.O_RDONLY) as (file, how):
        drop(file)
        for place in range(0, size_bytes, BLOCK):
            wanted = min(BLOCK, size_bytes - place)
            count = read_block(file, block, place, wanted)
            wrong += block.wrong(place // PAGE, count) + (wanted - count) // PAGE
            done += count
    return Moved(done, how=how, wrong=wrong)


def read_block(file: int, block: Block, place: int, size_bytes: int) -> int:
    """Read into the first bytes of a block; the number of bytes, less at the file's end."""
    view, done = memoryview(block.memory)[:size_bytes], 0
    while done < size_bytes and (count := os.preadv(file, [view[done:]], place + done)):
        done += count
    return done


def drop(file: int) -> None:
    """Have this machine forget the content of a file that it keeps in memory."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[tuple[int, str]]:
    """A descriptor for direct transfers, or for others where the file system refuses them."""
    how = DIRECT
    try:
        file = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _REFUSES_DIRECT:
            raise
        how, file = CACHED, os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield file, how
    finally:
        os.close(file)


def error_text(error: OSError) -> str:
    """An error as "ENOSPC (no space left on device)"."""
    name = errno.errorcode.get(error.errno or 0, "error")
    return f"{name} ({(error.strerror or str(error)).lower()})"
