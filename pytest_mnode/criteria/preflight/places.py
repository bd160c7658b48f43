"""Directories as a node finds them: readable, writable, the same for all, with the same content."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_mnode.criteria.preflight.facts import Place, PlaceFacts, Sample, Seen, Token

_PREFIX = ".mnode-preflight-"
_REFUSALS = (errno.EACCES, errno.EPERM)
_STALE_S = 3600.0
_SEEN_LIMIT_S = 2.0
_MOST_ENTRIES = 10_000
NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "glusterfs", "cifs", "smb3"),
    *("9p", "virtiofs", "pvfs2", "orangefs", "panfs", "afs"),
    *("fuse.glusterfs", "fuse.ceph-fuse", "fuse.daos", "fuse.juicefs"),
)
"""As mountinfo names them."""


def visit(place: Place, run: str, index: int, note: Callable[[Token], None]) -> PlaceFacts:
    """Look at a place; `note` is told of a file left there before the file is made.

    Nothing raises: what cannot be done is a problem in words.
    """
    path = Path(place.path)
    room = size = None
    problem = write_problem = ""
    samples: tuple[Sample, ...] = ()
    token: Token | None = None
    refused = False
    try:
        if not path.is_dir():
            raise NotADirectoryError(20, "not a directory" if path.exists() else "not there")
        with os.scandir(path) as entries:
            next(entries, None)
        if place.sample_files:
            samples = tuple(_samples(place))
        volume = os.statvfs(path)
        size, room = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    except OSError as error:
        problem, refused = _words(error), error.errno in _REFUSALS
    if not problem and place.writable:
        name = f"{_PREFIX}{run}-{index}"
        left = Token(place.key, index, str(path / name), f"{run} {index}")
        note(left)
        try:
            _write(path / name, left.text)
            token = left
        except OSError as error:
            write_problem, refused = _words(error), error.errno in _REFUSALS
    mount = file_system(place.path)
    return PlaceFacts(
        key=place.key,
        path=place.path,
        problem=problem,
        write_problem=write_problem,
        file_system=mount,
        size_bytes=size,
        free_bytes=room,
        token=token,
        samples=samples,
        refuses_root=refused and os.geteuid() == 0 and _is_of_network(mount),
    )


def _is_of_network(mount: str | None) -> bool:
    return (mount or "").partition(" ")[0] in NETWORK_FILE_SYSTEMS


def unanswered(place: Place, why: str) -> PlaceFacts:
    """A place that did not answer in time, as a file server that is gone does not."""
    return PlaceFacts(place.key, place.path, why, "", None, None, None, None, ())


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _remove_stale(path.parent)


def _remove_stale(directory: Path) -> None:
    """What a survey that was killed may have left."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > _STALE_S:
                        Path(entry.path).unlink()


def remove(token: Token) -> None:
    """Take away what `visit` left."""
    with contextlib.suppress(OSError):
        Path(token.path).unlink()


def seen(tokens: Sequence[Token], index: int) -> tuple[Seen, ...]:
    """Which files of other nodes are here; waits a little for file systems that are slow."""
    end = time.monotonic() + _SEEN_LIMIT_S
    return tuple(
        Seen(token.place, token.index, _problem(token, end))
        for token in tokens
        if token.index != index
    )


def _problem(token: Token, end: float) -> str:
    while True:
        try:
            text = Path(token.path).read_text(encoding="utf-8", errors="replace")
            problem = "" if text == token.text else "holds something else"
        except OSError as error:
            problem = _words(error)
        if not problem or time.monotonic() > end:
            return problem
        time.sleep(0.05)


def _samples(place: Place) -> Iterator[Sample]:
    """The first files by path below a place, as far as a bounded walk gets."""
    for name in heapq.nsmallest(place.sample_files, _files(place.path)):
        path = Path(place.path, name)
        with path.open("rb") as file:
            head = file.read(place.sample_bytes)
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


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """Type and source of the mount that holds a path, such as "nfs4 filer:/data"; None: unknown.

    Source: proc(5), mountinfo.
    """
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return None
    best, found = -1, None
    for line in lines:
        fields, _, tail = line.partition(" - ")
        words, kinds = fields.split(), tail.split()
        if len(words) < 5 or len(kinds) < 2:
            continue
        point = words[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), f"{kinds[0]} {kinds[1]}"
    return found
