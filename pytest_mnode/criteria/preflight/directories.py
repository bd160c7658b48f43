"""Facts of directories on a node: readable, writable, shared by all nodes, samples of content."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_mnode.criteria.preflight.answers import (
    Directory,
    DirectoryFacts,
    Sample,
    Token,
    TokenSeen,
)
from pytest_mnode.machine.mounts import mount_here

_PREFIX = ".mnode-preflight-"
_REFUSALS = (errno.EACCES, errno.EPERM)
_STALE_S = 3600.0
_SEEN_LIMIT_S = 2.0
_MOST_ENTRIES = 10_000


def visit(
    directory: Directory, run: str, index: int, note: Callable[[Token], None]
) -> DirectoryFacts:
    """Inspect a directory; `note` receives the token of a file before that file is created.

    Raises nothing: every failure is a problem in words.
    """
    path = Path(directory.path or temporary())
    size = free = files = None
    problem = write_problem = ""
    samples: tuple[Sample, ...] = ()
    token: Token | None = None
    refused = False
    try:
        with os.scandir(path) as entries:
            next(entries, None)
        if directory.sample_files:
            samples = tuple(_samples(directory))
        volume = os.statvfs(path)
        size, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
        files = volume.f_favail if volume.f_files else None
    except FileNotFoundError:
        problem = "not there"
    except OSError as error:
        problem, refused = _error_text(error), error.errno in _REFUSALS
    if not problem and directory.writable:
        name = f"{_PREFIX}{run}-{index}"
        left = Token(directory.key, index, str(path / name), f"{run} {index}")
        note(left)
        try:
            _write(path / name, left.text)
            token = left
        except OSError as error:
            write_problem, refused = _error_text(error), error.errno in _REFUSALS
    mount = mount_here(path)
    of_network = mount is not None and mount.of_network
    return DirectoryFacts(
        key=directory.key,
        path=str(path),
        problem=problem,
        write_problem=write_problem,
        file_system=None if mount is None else str(mount),
        size_bytes=size,
        free_bytes=free,
        free_files=files,
        token=token,
        samples=samples,
        refuses_root=refused and os.geteuid() == 0 and of_network,
    )


def temporary() -> str:
    """TMPDIR, or /tmp. Unlike `tempfile`, it takes no other directory where this one is unusable:
    compilers, NCCL and data loaders do not either.
    """
    return os.environ.get("TMPDIR") or "/tmp"


def _error_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
        now = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    _remove_stale(path.parent, now)


def _remove_stale(directory: Path, now: float) -> None:
    """Remove files that killed surveys left. now: time of the clock that dates these files."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    if now - entry.stat().st_mtime > _STALE_S:
                        Path(entry.path).unlink()


def remove(token: Token) -> None:
    """Remove the file that `visit` left."""
    with contextlib.suppress(OSError):
        Path(token.path).unlink()


def seen(tokens: Sequence[Token], index: int) -> tuple[TokenSeen, ...]:
    """Whether the files of other nodes are here; waits up to 2 s for slow file systems."""
    end = time.monotonic() + _SEEN_LIMIT_S
    return tuple(
        TokenSeen(token.directory, token.index, _problem(token, end))
        for token in tokens
        if token.index != index
    )


def _problem(token: Token, end: float) -> str:
    while True:
        try:
            text = Path(token.path).read_text(encoding="utf-8", errors="replace")
            problem = "" if text == token.text else "has different content"
        except OSError as error:
            problem = _error_text(error)
        if not problem or time.monotonic() > end:
            return problem
        time.sleep(0.05)


def _samples(directory: Directory) -> Iterator[Sample]:
    """The first files by path below a directory, found by a walk of bounded length."""
    for name in heapq.nsmallest(directory.sample_files, _files(directory.path)):
        path = Path(directory.path, name)
        with path.open("rb") as file:
            head = file.read(directory.sample_bytes)
        yield Sample(name, path.stat().st_size, hashlib.sha256(head).hexdigest()[:16])


def _files(root: str) -> Iterator[str]:
    entries = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118
        entries += len(folders) + len(files)
        if entries > _MOST_ENTRIES:
            return
