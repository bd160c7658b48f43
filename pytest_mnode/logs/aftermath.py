"""What a failed job left, and the cause that explains most of it.

A root cause in any text comes before what dumps and watchdogs say of waiting ranks: those are
consequences. So is what a scheduler did meanwhile, what a rank survived that waits with others, and
what is dated outside the job. That a peer did not answer by RDMA comes after what ended a rank that
does not report it. What happened to a rank that others wait for comes before that it did not join.
Of equal causes the one that names more of its culprit comes first, then the earlier one.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path, PurePath

from pytest_mnode.errors import UsageError
from pytest_mnode.logs.causes import ENDINGS, Cause, Causes, causes
from pytest_mnode.logs.causes.culprits import RANK_OF_FILE
from pytest_mnode.logs.causes.table import known_cause
from pytest_mnode.logs.causes.times import elapsed_s, time_of
from pytest_mnode.logs.flight_recorder import Dump, dump_causes, read_dump
from pytest_mnode.logs.stacks import located
from pytest_mnode.machine.cpus import format_cpulist

MOST_BYTES = 64 << 20
"""[choice] Of a longer file, as much of its beginning and of its end together."""
MOST_FILES = 20_000
FLIGHT_RECORDER = "flight recorder"
_KERNEL_LOG = re.compile(
    r"(?:(?P<before>[\w.-]+?)[-_.])?(?:dmesg|kern(?:el)?|journal(?:ctl)?|messages|syslog|kmsg)"
    r"(?:[-_.](?P<after>(?!log\b|txt\b|out\b|gz\b|\d+\b)[\w-]+))?(?:\.\w+)*",
    re.IGNORECASE,
)
_NO_HOST = re.compile(r"(?:var|tmp|logs?|system|kernel|dmesg|output|files|full|errors?|\W*)")
_WAITS = ("rank lost", "rank did not join", "collective timed out", "ranks' collectives differ")
_JOINED = "rank did not join"
_BY_RDMA = ("RDMA peer did not answer", "RDMA failed")
"""Ranks report these of a broken network, and where their peer has ended."""
_ENDED = "ended by the launcher"
_BY_SCHEDULER = ("time limit", "preempted")
_OF_A_PROGRAM = (
    *("GPU out of memory", "host out of memory", "disk full", "file system failed"),
    *("permission denied", "Python error", "program not found", "library or module missing"),
    *("checkpoint does not fit", "checkpoint damaged", "download failed", "values not finite"),
)
"""A program may catch these and go on."""
BEFORE_S = 12 * 3600
"""[choice] A cause earlier than this before the job began was none. Time zones may differ."""
AFTER_S = 300
"""[choice] A cause later than this after the first watchdog only followed. Clocks may differ."""
_NO_LOGS = (".py", ".sh", ".md", ".rst", ".toml", ".cu", ".c", ".h")
"""Source and notes quote errors."""
_DUMPS = (
    "TORCH_FR_BUFFER_SIZE=2000 (older torch: TORCH_NCCL_TRACE_BUFFER_SIZE) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1"
)


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
    """Why a job failed. cause: None if nothing is known. others: further root causes, and causes of
    earlier attempts or other jobs. followed:
    what only follows. missing: what would make it surer. files: number that were read. suspects:
    ranks that others seem to wait for, where nothing names a culprit."""

    cause: Found | None
    others: tuple[Found, ...]
    followed: tuple[Found, ...]
    missing: tuple[str, ...]
    files: int
    suspects: tuple[int, ...] = ()


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
    regular = (
        (root, one)
        for root, one in every
        if one.is_file() and (one == root or one.suffix.lower() not in _NO_LOGS)
    )
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
    read = Causes(left.texts)
    found = [Found(_placed(one, file, read.hosts), file) for file, one in read.found]
    found += [
        Found(_placed(one, "", read.hosts), FLIGHT_RECORDER) for one in dump_causes(left.dumps)
    ]
    lost = [one.cause.ranks for one in found if one.cause.name in (_JOINED, "rank lost")]
    awaited = {rank for ranks in (*lost, read.silent) for rank in ranks}
    found.sort(key=lambda one: _weight(one.cause, awaited))
    earlier = [Found(_placed(one, file, read.hosts), file) for file, one in read.earlier]
    unlike: dict[tuple[object, ...], Found] = {}
    for one in found:
        cause = one.cause
        unlike.setdefault((cause.name, cause.ranks, cause.host, cause.device), one)
    kept = list(unlike.values())
    named = {one.cause.name for one in kept if one.cause.known}
    kept = [one for one in kept if one.cause.known or one.cause.name not in named]
    aside = _aside(kept, awaited, left)
    kept = [one for one in kept if one not in aside]
    reporting = {r for one in kept if one.cause.name in _BY_RDMA for r in one.cause.ranks}
    roots = [
        one
        for one in kept
        if one.cause.root
        and (
            one.cause.name not in ENDINGS
            or awaited.intersection(one.cause.ranks)
            or _is_of_another(one, reporting)
        )
    ]
    if roots and roots[0].cause.name in _BY_RDMA:
        roots.sort(key=lambda one: not _is_of_another(one, reporting))
    rest = [one for one in kept if one not in roots]
    first = next(iter([*roots, *rest]), None)
    suspects: tuple[int, ...] = ()
    if first is not None and first.cause.name == "collective timed out":
        late = first.cause.ranks if first.file == FLIGHT_RECORDER else read.silent
        suspects = late if len(late) != len(left.dumps) else ()
    elif first is not None and first.cause.name in _BY_RDMA:
        ended = {r for one in rest if one.cause.name == _ENDED for r in one.cause.ranks} - reporting
        suspects = tuple(sorted(ended)) if 2 * len(ended) <= len(reporting) else ()
    shown = first and _located(first, suspects, left)
    return Answer(
        shown,
        (*roots[1:], *aside, *earlier),
        tuple(one for one in rest if one is not first),
        tuple(_missing(first, suspects, left, stacks=shown != first)),
        len(left.texts) + len(left.dumps),
        suspects,
    )


def _is_of_another(one: Found, reporting: set[int]) -> bool:
    """Whether it befell a rank that does not report a failure of RDMA, where others do."""
    return bool(reporting and one.cause.ranks) and reporting.isdisjoint(one.cause.ranks)


def _aside(found: Sequence[Found], awaited: set[int], left: Left) -> list[Found]:
    """Root causes that explain nothing: of a scheduler that ended a job that waited, of a rank
    that went on to wait with others, or dated outside the job."""
    names = {one.cause.name for one in found}
    odd = {
        r for one in found if one.cause.name == "ranks' collectives differ" for r in one.cause.ranks
    }
    timed_out = [one.cause for one in found if one.cause.name == "collective timed out"]
    waiting = {r for cause in timed_out if len(cause.ranks) > 1 for r in cause.ranks}
    survivors = waiting - awaited - odd
    lines = (cause.line for cause in timed_out)
    gave_up = min((at for line in lines if (at := time_of(line)) is not None), default=None)
    began = _began(left.texts)

    def is_outside(line: str) -> bool:
        at = time_of(line)
        return at is not None and (
            (began is not None and elapsed_s(at, began) > BEFORE_S)
            or (gave_up is not None and elapsed_s(gave_up, at) > AFTER_S)
        )

    def is_aside(one: Found) -> bool:
        cause = one.cause
        if cause.name in _BY_SCHEDULER and not names.isdisjoint(_WAITS):
            return True
        if cause.name in _OF_A_PROGRAM and cause.ranks and survivors.issuperset(cause.ranks):
            return True
        if cause.ranks or not is_outside(cause.line):
            return False
        # Of equal causes in a file, the first line is kept.
        text = left.texts.get(one.file, "")
        inside = "\n".join(line for line in text.splitlines() if not is_outside(line))
        return all(
            (again.name, again.device) != (cause.name, cause.device) for again in causes(inside)
        )

    return [one for one in found if one.cause.root and is_aside(one)]


def _began(texts: Mapping[str, str]) -> float | None:
    """When the ranks' logs begin, as far as one of their first lines has a date."""
    logs = (text for name, text in texts.items() if RANK_OF_FILE.search(name))
    times = (time_of(line) for text in logs for line in text[:10_000].splitlines()[:20])
    return min((at for at in times if at is not None), default=None)


def _weight(cause: Cause, awaited: set[int]) -> tuple[float, ...]:
    """Smaller is weightier. awaited: ranks that others wait for."""
    order: float = cause.order
    joined = known_cause(_JOINED).order
    if cause.root and cause.name != _JOINED and awaited.intersection(cause.ranks):
        order = min(order, joined - 0.5)  # it tells why this rank did not join
    time_s = time_of(cause.line)
    return order, cause.order, -cause.known, inf if time_s is None else time_s


def _placed(cause: Cause, file: str, hosts: Mapping[int, str]) -> Cause:
    """The cause with the rank or the node of its file, and the node of its rank, if no line names
    them."""
    found = RANK_OF_FILE.search(file)
    # A rank that waits for others writes that they did not come.
    if found and not cause.ranks and cause.name not in _WAITS:
        cause = replace(cause, ranks=(int(found[1]),))
    if cause.name in _BY_SCHEDULER or (cause.name == _ENDED and not cause.ranks):
        return replace(cause, host=None)  # it names the first node of the job
    on = {hosts.get(rank) for rank in cause.ranks} or {_host_of(file)}
    return replace(cause, host=next(iter(on))) if len(on) == 1 and not cause.host else cause


def _host_of(file: str) -> str | None:
    """The node whose kernel log a file is, by its name or folder: dmesg-gpu4.txt, gpu4/dmesg."""
    path = PurePath(file)
    if (found := _KERNEL_LOG.fullmatch(path.name)) is None:
        return None
    names = (found["after"], found["before"], path.parent.name)
    return next((name for name in names if name and not _NO_HOST.fullmatch(name)), None)


def _located(first: Found, suspects: tuple[int, ...], left: Left) -> Found:
    """The cause, with where its ranks are by their stacks, or the suspects."""
    cause = first.cause
    at = located(replace(cause, ranks=suspects or cause.ranks), left.texts)
    return replace(first, cause=replace(cause, detail=at.detail))


def _missing(
    first: Found | None, suspects: Sequence[int], left: Left, *, stacks: bool
) -> Iterator[str]:
    """What was not there, as far as it would tell more. stacks: whether the culprit's are."""
    if left.unread:
        names = ", ".join(f"{name} ({why})" for name, why in list(left.unread.items())[:4])
        yield f"{len(left.unread)} files could not be read: {names}"
    waits = first is None or first.cause.name in (*_WAITS, "aborted")
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
    ranks_meant = suspects if first.cause.by_victim else first.cause.ranks
    if silent := [rank for rank in ranks_meant if rank not in logged]:
        yield f"no log of ranks {format_cpulist(tuple(silent))} (a file with rank_N in its name)"
    if not any("NCCL" in text for text in left.texts.values()):
        yield "no log of NCCL: NCCL_DEBUG=INFO, NCCL_DEBUG_FILE=…/rank_%h_%p.log"
    if not stacks:
        yield "the stack of the culprit while it hangs: py-spy dump --pid … > rank_N.txt"
