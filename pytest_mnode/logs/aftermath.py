"""What a failed job left, and the cause that explains most of it.

A root cause in any text comes before what dumps and watchdogs say of waiting ranks: those are
consequences. Of equal causes the one that names more of its culprit comes first.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.logs.causes import ENDINGS, Cause, causes
from pytest_mnode.logs.flight_recorder import Dump, dump_causes, read_dump
from pytest_mnode.logs.stacks import RANK_OF_FILE, located
from pytest_mnode.machine.cpus import format_cpulist

MOST_BYTES = 64 << 20
"""[choice] Of a longer file, as much of its beginning and of its end together."""
MOST_FILES = 20_000
_WAITS = ("rank lost", "rank did not join", "collective timed out", "ranks' collectives differ")
_DUMPS = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1"


@dataclass(frozen=True, slots=True)
class Left:
    """What a job left. texts: by name of file. dumps: of its flight recorders. unread: files that
    could not be read, and why."""

    texts: Mapping[str, str]
    dumps: tuple[Dump, ...]
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """A cause, and the file that shows it."""

    cause: Cause
    file: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a job failed. cause: None if nothing is known. others: further root causes. followed:
    what only follows. missing: what would make it surer. files: number that were read."""

    cause: Found | None
    others: tuple[Found, ...]
    followed: tuple[Found, ...]
    missing: tuple[str, ...]
    files: int


def read(paths: Sequence[Path]) -> Left:
    """All files below these paths. Raises UsageError for a path that is none."""
    texts, dumps, unread = {}, [], {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder; accepted: what a job left")
    for name, path in _files(paths):
        try:
            content = _content(path)
        except (OSError, EOFError, zlib.error) as error:
            unread[name] = str(getattr(error, "strerror", None) or error).lower()
            continue
        if (dump := read_dump(path.name.removesuffix(".gz"), content)) is not None:
            dumps.append(dump)
        elif b"\0" not in content[:4096]:
            texts[name] = content.decode(errors="replace")
    return Left(texts, tuple(dumps), unread)


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    every = (
        (path, one)
        for path in paths
        for one in (sorted(path.rglob("*")) if path.is_dir() else [path])
    )
    regular = ((root, one) for root, one in every if one.is_file())
    for (root, one), _ in zip(regular, range(MOST_FILES), strict=False):
        yield str(one.relative_to(root)) if root.is_dir() else one.name, one


def _content(path: Path) -> bytes:
    """The file, unpacked; of a long one its beginning and its end."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start = file.read(MOST_BYTES // 2)
        end = b""
        while block := file.read(MOST_BYTES // 2):
            end = (end + block)[-MOST_BYTES // 2 :]
        return start + end


def answer(left: Left) -> Answer:
    """The cause that explains what a job left. Pure."""
    found = [
        Found(_of_rank(one, file), file)
        for file, text in left.texts.items()
        for one in causes(text)
    ]
    found += [Found(one, "flight recorder") for one in dump_causes(left.dumps)]
    found.sort(key=lambda one: (one.cause.order, -one.cause.known))
    unlike: dict[tuple[object, ...], Found] = {}
    for one in found:
        cause = one.cause
        unlike.setdefault((cause.name, cause.ranks, cause.host, cause.device), one)
    kept = list(unlike.values())
    roots = [one for one in kept if one.cause.root and one.cause.name not in ENDINGS]
    rest = [one for one in kept if one not in roots]
    first = next(iter([*roots, *rest]), None)
    shown = first and replace(first, cause=located(first.cause, left.texts))
    return Answer(
        shown,
        tuple(roots[1:]),
        tuple(one for one in rest if one is not first),
        tuple(_missing(first, left, stacks=shown != first)),
        len(left.texts) + len(left.dumps),
    )


def _of_rank(cause: Cause, file: str) -> Cause:
    """The cause with the rank of its file, if no line names one."""
    found = RANK_OF_FILE.search(file)
    return replace(cause, ranks=(int(found[1]),)) if found and not cause.ranks else cause


def _missing(first: Found | None, left: Left, *, stacks: bool) -> Iterator[str]:
    """What was not there, as far as it would tell more. stacks: whether the culprit's are."""
    if left.unread:
        names = ", ".join(f"{name} ({why})" for name, why in list(left.unread.items())[:4])
        yield f"{len(left.unread)} files could not be read: {names}"
    waits = first is None or first.cause.name in _WAITS
    ranks = {rank for dump in left.dumps for of in dump.members.values() for rank in of}
    without = ranks - {dump.rank for dump in left.dumps}
    if waits and not left.dumps:
        yield f"no dump of torch's flight recorder: {_DUMPS}"
    elif waits and without:
        named = format_cpulist(tuple(sorted(without)))
        yield f"no dump of ranks {named}: they ended before, or {_DUMPS}"
    if first is None or not waits:
        return
    logged = {int(one[1]) for file in left.texts if (one := RANK_OF_FILE.search(file))}
    silent = [rank for rank in first.cause.ranks if rank not in logged]
    if silent:
        yield f"no log of ranks {format_cpulist(tuple(silent))} (a file with rank_N in its name)"
    if not any("NCCL" in text for text in left.texts.values()):
        yield "no log of NCCL: NCCL_DEBUG=INFO, NCCL_DEBUG_FILE=…/rank_%h_%p.log"
    if not stacks:
        yield "the stack of the culprit while it hangs: py-spy dump --pid … > rank_N.txt"
