"""What a failed job left, and the cause that explains most of it.

A root cause in any text comes before what dumps and watchdogs say of waiting ranks: those are
consequences. So is what a scheduler did meanwhile, what a rank survived that waits with others, and
what is dated outside the job. That a peer did not answer by RDMA comes after what ended a rank that
does not report it. What happened to a rank that others wait for comes before that it did not join.
Of equal causes the one that names more of its culprit comes first, then the earlier one.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from os import SEEK_END
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Self

from pytest_mnode.errors import UsageError
from pytest_mnode.logs.causes import ENDINGS, Cause, Causes, causes
from pytest_mnode.logs.causes.culprits import RANK_OF_FILE, split_prefix
from pytest_mnode.logs.causes.table import known_cause
from pytest_mnode.logs.causes.times import elapsed_s, first_and_last, time_of
from pytest_mnode.logs.flight_recorder import Dump, dump_causes, read_dump
from pytest_mnode.logs.nccl_log.text import decoded
from pytest_mnode.logs.node_names import node_in, node_of_kernel_log
from pytest_mnode.logs.stacks import located, not_joined
from pytest_mnode.machine.cpus import format_cpulist

MOST_BYTES = 64 << 20
"""[choice] Of a longer file, as much of its beginning and of its end together."""
MOST_FILES = 20_000
_PACKED: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SAMPLE = 4096
_DIGITS = re.compile(r"\d+", re.ASCII)
_NO_TEXT = bytes(set(range(32)) - set(b"\b\t\n\f\r\x1b"))
FLIGHT_RECORDER, STACKS = "flight recorder", "stacks"
_NO_NODE = re.compile(
    r"(?i:\D*$|\d|log|out|err|std|part|run|try|step|job|file|train|event|core|nccl|slurm|attempt|"
    r"stage|phase|epoch|e?val|exp|test|debug|shard|seed|model|conf|cfg|fold|trial|sweep|layer|torch|"
    r"cuda|llama|qwen|gpt|bert|(?:v|py|lr|bs)[-_.]?\d)"
)
"""Files of the same beginning are not of several nodes."""
_ROW = re.compile(r"^\S+ +NotReady\b| \d{4}-\d\d-\d\dT[\d:]{8} +\S+$")
"""Of a table of nodes: `kubectl get nodes`, `sinfo -R`."""
_WAITS = ("rank lost", "rank did not join", "collective timed out", "ranks' collectives differ")
_JOINED = "rank did not join"
_BY_RDMA = ("RDMA peer did not answer", "RDMA failed")
"""Ranks report these of a broken network, and where their peer has ended."""
_OF_PEERS = (
    *(*_BY_RDMA, "host unreachable", "host did not accept a connection"),
    *("connection closed by peer", "gloo not connected"),
)
_AT_THE_START = ("rendezvous failed", _JOINED, "host did not accept a connection")
"""Launchers and ranks report these where another one did not start, or ended at once."""
_ENDED = "ended by the launcher"
_BY_OTHERS = ("store connection lost", "connection closed by peer", "collective timed out")
_HOLDER = re.compile(r"(\d+) has [\d.]+ GiB$")
"""Another process that holds memory of a rank's GPU, as ps and nvidia-smi of its node list it."""
_RANKS_OWN = re.compile(r"--local[-_]rank\b")
_STUCK = "watchdog stuck"
_OF_AN_END = (_ENDED, "store connection lost", "connection closed by peer")
"""If nothing else is known, the rank that a launcher saw fail first may be the cause."""
_BY_SCHEDULER = ("time limit", "preempted", "cancelled")
_OF_NODES = ("node lost", "node drained")
_SLOW = ("GPU slowed down", "PCIe link degraded", "fewer CPUs", "link degraded")
_DIFFERS = (*_SLOW, "MTU differs", "link errors")
"""Of nodes compared, logs/causes/compared.py: no line tells that a job met these."""
_OF_OTHERS = (*_WAITS, *_AT_THE_START, *_BY_SCHEDULER, *_OF_NODES)
"""Who writes these is not whom they are about."""
_OF_A_PROGRAM = (
    *("GPU out of memory", "host out of memory", "disk full", "file system failed"),
    *("permission denied", "Python error", "program not found", "library or module missing"),
    "file missing",
    *("checkpoint does not fit", "checkpoint damaged", "download failed", "values not finite"),
)
"""A program may catch these and go on."""
_AFTER_A_WAIT = ("GPU crashed", "CUDA error", "NPU error", "Python error")
"""Ranks that gave up a wait in a kernel or an exception end by these."""
BEFORE_S = 12 * 3600
"""[choice] A cause earlier than this before ranks' logs, or later after them, was none. Time zones
may differ."""
AFTER_S = 300
"""[choice] A cause later than this after the first watchdog only followed. Clocks may differ."""
_NO_LOGS = (".py", ".sh", ".md", ".rst", ".toml", ".cu", ".c", ".h")
"""Source and notes quote errors."""
_MOST_GPUS = 8
"""[choice] GPUs of a node, if nothing tells where ranks are."""
RAS_REPORT = "ras.json"
OF_A_FAILURE = ("flight_recorder_rank_", "nccl_trace_rank_", "stack_rank_", RAS_REPORT)
"""Beginnings of the files, beside their notes, that ranks of an observed job leave."""
_ATTEMPT = re.compile(r"(?:^|/)(?:attempt|slurm)[-_]?(\d+)(?![\d_])")
"""Torchrun's folder of an attempt, or Slurm's file of a job."""
_STATE = re.compile(
    r"(?:^ *\d+(?:[._]\w+)*[|\s].{0,200}?\b|\"(?:current|job_state|state)\":\s*\[?\s*\")"
    r"(COMPLETED|COMPLETING|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_ME\w*|PREEMPTED|BOOT_FAIL|"
    r"DEADLINE|REQUEUED|RUNNING)\b",
    re.MULTILINE,
)
"""A line of `sacct`, or of its JSON."""
_COMPLETED = "nothing failed: Slurm's accounting says that all steps completed"
_FINISHED = "nothing failed: training ended; ranks warn of others that are gone, or kernels of more"
_END = re.compile(
    r"(?i:\btraining (?:is |has )?(?:completed?|finished|done|ended)\b)|`Trainer\.fit` stopped|"
    r"(?i:\bjob (?:has )?(?:finished|completed|ended) (?:successfully|with (?:exit )?code 0\b))|"
    r"'train_runtime':|\[exiting program (?:at|after) |\bProcess \d+ exits successfully"
)
_OF_ENDS = (
    *("raining", "RAINING", "uccessfully", "code 0", "Trainer.fit", "train_runtime"),
    *("exiting p", "exits s"),
)
"""Each line that matches has one of these: most have none."""
_WARNED = re.compile(r"\[W[\d ]|NCCL WARN ")
_ADDRESS = re.compile(r"[\d.]*|[\da-f]*:[\da-f:.]*")
_LABEL = re.compile(r"(?:^|\[[rR]ank ?)(\d{1,7})(?:\]|: (?!\S+: <))", re.MULTILINE)
"""`ip addr` numbers its interfaces alike."""
_OWN_LABEL = re.compile(r"\[rank(\d{1,7})\]:")
_DUMPS = (
    "TORCH_FR_BUFFER_SIZE=2000 (older torch: TORCH_NCCL_TRACE_BUFFER_SIZE) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1"
)


@dataclass(frozen=True, slots=True)
class Left:
    """What a job left. texts: by name of file. dumps: of its flight recorders. unread: files that
    could not be read, and why. nodes: of files that are the output of one. places: nodes of ranks,
    where others than NCCL's logs know them."""

    texts: Mapping[str, str]
    dumps: tuple[Dump, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_nodes(
        cls,
        output: Mapping[str, str],
        files: Mapping[str, bytes] = MappingProxyType({}),
        places: Mapping[int, str] = MappingProxyType({}),
    ) -> Self:
        """Of a job that just ended: its output by node, and dumps and stacks of its ranks."""
        texts, dumps = dict(output), []
        for name in files:
            if name.startswith(("stack_rank_", RAS_REPORT)):
                texts[name] = files[name].decode(errors="replace")
            elif name.startswith(OF_A_FAILURE) and (dump := read_dump(name, files[name])):
                dumps.append(dump)
        nodes = {node: node for node in output}
        return cls(texts, tuple(dumps), {}, nodes, places)


@dataclass(frozen=True, slots=True)
class Found:
    """A cause, and the file that shows it."""

    cause: Cause
    file: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a job failed. cause: None if nothing is known. others: further root causes, and causes of
    earlier attempts or other jobs. followed: what only follows. missing: what would make it surer.
    files: number that were read. suspects: ranks that others seem to wait for, where nothing names
    a culprit. alike: ranks or nodes that show the cause, if none of them is the culprit."""

    cause: Found | None
    others: tuple[Found, ...]
    followed: tuple[Found, ...]
    missing: tuple[str, ...]
    files: int
    suspects: tuple[int, ...] = ()
    alike: tuple[int, ...] | tuple[str, ...] = ()


def read(paths: Sequence[Path]) -> Left:
    """All files below these paths. Raises UsageError for a path that is none."""
    texts, dumps, unread = {}, [], {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder; accepted: what a job left")
    for name, path in _files(paths):
        content, error = _content(path)
        if error is not None:
            unread[name] = str(getattr(error, "strerror", None) or error).lower()
        name_unpacked = path.with_suffix("").name if path.suffix in _PACKED else path.name
        if (dump := read_dump(name_unpacked, content)) is not None:
            dumps.append(dump)
        elif _is_text(content):
            texts[name] = decoded(content)
    return Left(texts, tuple(dumps), unread)


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Files by names: below the only path that was given, or whole."""
    every = (
        (path, one)
        for path in paths
        for one in (sorted(path.rglob("*")) if path.is_dir() else [path])
    )
    regular = (
        (root, one)
        for root, one in every
        if _is_file(one) and (one == root or one.suffix.lower() not in _NO_LOGS)
    )
    for (root, one), _ in zip(regular, range(MOST_FILES), strict=False):
        below = one.relative_to(root) if root.is_dir() else Path(one.name)
        yield str(below if len(paths) == 1 else one), one


def _is_file(path: Path) -> bool:
    """Whether it is one, or may be: a folder may let nobody look."""
    try:
        return path.is_file()
    except OSError:
        return True


def _content(path: Path) -> tuple[bytes, Exception | None]:
    """The file, unpacked, as far as it can be read, and why not whole; of a long one its beginning
    and its end."""
    half, kept, failed = MOST_BYTES // 2, 0, None
    start, end = bytearray(), deque[bytes]()
    opened = _PACKED.get(path.suffix.lower(), open)
    try:
        with opened(path, "rb") as file:
            while len(start) < half and (block := file.read1(half)):
                start += block
            if opened is open and path.stat().st_size > 2 * half:
                file.seek(-half, SEEK_END)
            while block := file.read1(half):
                end.append(block)
                kept += len(block)
                while kept - len(end[0]) >= half:
                    kept -= len(end.popleft())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        failed = error
    return bytes(start) + b"".join(end)[-half:], failed


def _is_text(content: bytes) -> bool:
    """Whether it is text at its beginning, in its middle and at its end. A log that a node wrote as
    it died has zero bytes."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    start = len(content) - len(content.lstrip(b"\0"))
    samples = (
        content[at : at + _SAMPLE].translate(None, b"\0")
        for at in (start, (start + len(content)) // 2, max(start, len(content) - _SAMPLE))
    )
    return all(len(one.translate(None, _NO_TEXT)) >= 0.98 * len(one) for one in samples)


def answer(left: Left) -> Answer:
    """The cause that explains what a job left. Pure."""
    read = Causes(left.texts)
    hosts = {**read.hosts, **left.places}
    recorded = ((FLIGHT_RECORDER, one) for one in dump_causes(left.dumps))
    every = (*read.found, *recorded, *((STACKS, one) for one in not_joined(left.texts)))
    found = [Found(_placed(one, file, hosts, left), file) for file, one in every]
    earlier = [Found(_placed(one, file, hosts, left), file) for file, one in read.earlier]
    over = [file for file, text in left.texts.items() if _ATTEMPT.search(file) and _end_in(text)]
    of_last = _of_last_attempt([*(one.file for one in found), *over])
    earlier += [one for one in found if not of_last(one.file)]
    found = [one for one in found if of_last(one.file)]
    lost = [one for one in found if one.cause.name in (_JOINED, "rank lost")]
    awaited = {*_ranks(one for one in lost if not one.cause.by_victim), *read.silent}
    found.sort(key=lambda one: _weight(one.cause, awaited))
    found = [*_of_broken_node(found, read.apart)]
    unlike: dict[tuple[object, ...], Found] = {}
    joined = _on_logged_node([*_joined(found)], _began_and_ended(left.texts))
    for one in sorted(joined, key=lambda one: _raised_by(one.cause, awaited, read.failed)):
        cause = one.cause
        unlike.setdefault((cause.name, cause.ranks, cause.host, cause.device), one)
    kept = list(unlike.values())
    named = {one.cause.name for one in kept if one.cause.known}
    kept = [one for one in kept if one.cause.known or one.cause.name not in named]
    aside = _aside(kept, awaited, read.failed, left)
    kept = [one for one in kept if one not in aside]
    elsewhere = [one for one in kept if _is_elsewhere(one, read.every_host, left.texts)]
    kept = [one for one in kept if one not in elsewhere]
    differ = [one for one in kept if one.cause.name in _DIFFERS and not one.cause.ranks]
    kept = [one for one in kept if one not in differ]
    waiting = [one for one in kept if _is_for_another(one.cause)]
    roots = [
        one
        for one in kept
        if one.cause.root
        and (
            one.cause.name not in ENDINGS
            or awaited.intersection(one.cause.ranks)
            or _is_of_another(one, waiting)
        )
    ]
    if roots and roots[0] in waiting:
        roots.sort(key=lambda one: not _is_of_another(one, waiting))
    rest = [one for one in kept if one not in roots]
    completed = _completed(left.texts, [one for one in found if one not in differ])
    first = None if completed else next(iter([*roots, *rest]), None)
    if first and first.cause.name in _OF_AN_END and _were_told_to_end(found, left.texts):
        first = next((one for one in rest if one.cause.name == _ENDED), first)
    suspects = _suspects(first, rest, waiting, read, left) if first else ()
    was_ended = completed or any(one.cause.name in _BY_SCHEDULER for one in (*kept, *aside))
    for one in differ if not was_ended else ():
        if _explains(one, first, roots, suspects):
            first, suspects = one, ()
            break
    alike = _alike(first, kept, found, read, left) if first else []
    named_hosts = {name for one in kept for name in (one.cause.host, one.cause.peer) if name}
    named_hosts |= {*read.hosts.values()}
    placed = first and _on_host_of_file(first, named_hosts, found, left)
    shown = placed and _located(placed, suspects, left, alike)
    dated = [one for one in aside if not one.cause.ranks and one.cause.name not in _BY_SCHEDULER]
    others = (one for one in (*roots, *differ) if one not in (first, *alike))
    return Answer(
        shown,
        (*others, *aside, *elsewhere, *earlier),
        tuple(one for one in rest if one is not first),
        (completed,)
        if completed
        else tuple(_missing(first, suspects, left, dated, stacks=shown != placed)),
        len(left.texts) + len(left.dumps),
        suspects,
        tuple(sorted(_ranks(alike))) or tuple(sorted(one.cause.host or "" for one in alike)),
    )


def _explains(
    one: Found, first: Found | None, roots: Sequence[Found], suspects: Collection[int]
) -> bool:
    """Whether a difference between nodes, which is weak evidence, may be the cause: nothing else is
    known; or it loses packets, and ranks only wait for nobody in particular, or for this node.

    first, roots, suspects: without differences.
    """
    cause, lost = one.cause, [other.cause for other in roots]
    if first is None or suspects or cause.name in _SLOW:
        return first is None and cause.root
    if first.cause.name == "collective timed out":
        return cause.root
    if first.cause.name not in _BY_RDMA or any(other.name not in _BY_RDMA for other in lost):
        return False
    here, *by = [(host or "").partition(".")[0] for host in (cause.host, *(c.host for c in lost))]
    peers = {other.peer or "" for other in lost}
    named = {peer.partition(".")[0] for peer in peers if not _ADDRESS.fullmatch(peer)}
    if named or {*by} == {here}:
        return {*by} == {here} or named == {here}
    # The node with errors is the one that several like it do not reach.
    kinds = {_DIGITS.sub("", name) for name in (here, *by)}
    return len({*by}) > 1 and here not in by and len(kinds) == 1 == len(peers - {""})


def _suspects(
    first: Found, rest: Sequence[Found], waiting: Sequence[Found], read: Causes, left: Left
) -> tuple[int, ...]:
    """Ranks that the victims who report the cause seem to wait for."""
    if first.cause.name == "collective timed out":
        late = first.cause.ranks if first.file == FLIGHT_RECORDER else read.silent
        return late if len(late) != len(left.dumps) else ()
    if first.cause.name in _BY_RDMA:
        reporting = _ranks(waiting)
        ended = _ranks(one for one in rest if one.cause.name == _ENDED) - reporting
        return tuple(sorted(ended)) if 2 * len(ended) <= len(reporting) else ()
    if first.cause.name in (*_OF_AN_END, _STUCK) and len(read.failed) == 1:
        return tuple(read.failed - _ranks(one for one in rest if one.cause.name in _BY_OTHERS))
    return ()


def _alike(
    one: Found, kept: Sequence[Found], found: Sequence[Found], read: Causes, left: Left
) -> list[Found]:
    """Those that show this cause, if all ranks that wrote, or without ranks all nodes, and all
    files of its kind, do. Of two nodes each may have a broken device, and if ranks fill nodes, of 4
    or more GPUs, logs may be of these nodes alone [choice], unless lines name more than theirs."""
    texts, kind = left.texts, _DIGITS.sub("", one.file)
    same = [other for other in kept if _kind(other.cause) == _kind(one.cause)]
    ranks, hosts = _ranks(same), {other.cause.host for other in same}
    files = {file for file in texts if _DIGITS.sub("", file) == kind}
    files -= {other.file for other in found if other.cause.name == one.cause.name}
    if len(ranks) > 1 and one.cause.name in ("NCCL failed", "MPI failed", "aborted"):
        return same  # others broke
    may_be_more = not ranks or len(hosts) == 1
    more = may_be_more and _names_like(one.cause.host or "\0", texts.values()) - hosts
    if files or one.cause.by_victim or not one.cause.root or more:
        return []
    if not ranks:
        most = 1 + (one.cause.device is not None)
        return same if None not in hosts and len(hosts) > most else []
    named = {int(of[1]) for file in texts if (of := RANK_OF_FILE.search(file))} | _ranks(found)
    named |= {int(rank) for text in texts.values() for rank in _LABEL.findall(text)}
    whole = 0 in ranks or ranks == {r - r % 4 + n for r in ranks for n in range(4)}
    return same if whole and len(ranks) > 1 and ranks == {*named, *read.hosts} else []


def _kind(cause: Cause) -> tuple[str, ...]:
    """What equal causes of several ranks have in common, beside their numbers."""
    raised = split_prefix(cause.line)[1] if cause.name == "Python error" else ""
    return cause.name, *(_DIGITS.sub("", text) for text in (cause.detail or "", raised))


def _were_told_to_end(found: Sequence[Found], texts: Mapping[str, str]) -> bool:
    """Whether launchers were ended from outside before their ranks lost others."""
    lost = [one for one in found if one.cause.name in _BY_OTHERS]
    ends = ((texts.get(one.file, ""), one.cause.line) for one in lost)
    return all(0 <= text.find("SIGTERM death signal") < text.find(line) for text, line in ends)


def _of_broken_node(found: Sequence[Found], apart: Collection[str]) -> Iterator[Found]:
    """With no other peer than one that twice as many report as any other: else the network may be
    broken between them, or each only saw the next one end. That several do not reach it is its own.
    """
    seen: dict[tuple[str, str | None], set[object]] = {}
    for cause in (one.cause for one in found if one.cause.name in _OF_PEERS and one.cause.peer):
        seen.setdefault((cause.name, cause.peer), set()).add(cause.host or cause.ranks)
    for one in found:
        cause, key = one.cause, (one.cause.name, one.cause.peer)
        here = len(seen.get(key, ()))
        others = [len(of) for other, of in seen.items() if other[0] == key[0] and other != key]
        own = here and not cause.by_victim and cause.name not in _AT_THE_START
        if here < 2 * max(others, default=0):
            cause = replace(cause, peer=None)
        elif own and (here > 1 or (cause.peer in apart and cause.host not in apart)):
            cause = replace(cause, host=None, ranks=())
        yield replace(one, cause=cause)


def _joined(found: Sequence[Found]) -> Iterator[Found]:
    """Of a root cause that several ranks have, one with all of them. Another exception may be of a
    rank that only followed."""
    alike: dict[tuple[object, ...], set[int]] = {}

    def key(one: Found) -> tuple[object, ...] | None:
        cause = one.cause
        if not cause.ranks or not cause.root or cause.by_victim:
            return None
        return _kind(cause), cause.host, cause.device, cause.peer, cause.detail

    for one in found:
        if (which := key(one)) is not None:
            alike.setdefault(which, set()).update(one.cause.ranks)
    for one in found:
        if (which := key(one)) is None:
            yield one
        elif ranks := alike.pop(which, None):
            yield replace(one, cause=replace(one.cause, ranks=tuple(sorted(ranks))))


def _on_logged_node(found: Sequence[Found], span: tuple[float, float] | None) -> Iterator[Found]:
    """With the only node whose kernel log shows what ranks report that fit into one node."""
    logged = [one.cause for one in found if node_of_kernel_log(one.file) and not one.cause.ranks]
    of_kernels = [cause for cause in logged if not _is_far(time_of(cause.line), span)]
    for one in found:
        hosts = {cause.host for cause in of_kernels if cause.name == one.cause.name}
        fit = len({rank // _MOST_GPUS for rank in one.cause.ranks}) == 1 == len(hosts)
        host = one.cause.host or (hosts.pop() if fit else None)
        yield replace(one, cause=replace(one.cause, host=host))


def _of_last_attempt(files: Iterable[str]) -> Callable[[str], bool]:
    """Whether a file is of the last attempt or job, by the number in its name or folder, of those
    of these files; one without a number may be of any."""
    numbers = {file: int(found[1]) for file in files if (found := _ATTEMPT.search(file))}
    last = max(numbers.values(), default=0)
    return lambda file: numbers.get(file, last) == last


def _completed(texts: Mapping[str, str], found: Sequence[Found]) -> str | None:
    """Why nothing failed: Slurm's accounting has steps, which all have completed, so that they
    survived what they reported, or printed it as their data; or training ended, and elsewhere or
    then only others' ends are seen, beside warnings and what kernels and schedulers wrote."""
    tables = (text for text in texts.values() if "COMPLETED" in text)
    if {found[1] for text in tables for found in _STATE.finditer(text)} == {"COMPLETED"}:
        return _COMPLETED
    ends = {file: text.rfind(line) for file, text in texts.items() if (line := _end_in(text))}

    def is_farewell(one: Found) -> bool:
        line, end = one.cause.line, ends.get(one.file, -1)
        late = one.cause.name in _OF_AN_END and texts.get(one.file, "").find(line) > end
        elsewhere = end < 0 and one.cause.name in (*_BY_SCHEDULER, *_OF_NODES)
        survived = late or elsewhere or _WARNED.search(line) is not None
        return survived or node_of_kernel_log(one.file) is not None

    return _FINISHED if ends and all(map(is_farewell, found)) else None


def _end_in(text: str) -> str:
    """The last line that says that training ended; "" if none does."""
    lines = (line for line in reversed(text.splitlines()) if any(map(line.__contains__, _OF_ENDS)))
    return next(filter(_END.search, lines), "")


def _is_for_another(cause: Cause) -> bool:
    """Whether it only tells that another rank or node did not come, or is gone."""
    named = cause.name == _JOINED and cause.known and not cause.by_victim
    return cause.name in (*_BY_RDMA, *_AT_THE_START) and not named


def _ranks(found: Iterable[Found]) -> set[int]:
    return {rank for one in found for rank in one.cause.ranks}


def _is_of_another(one: Found, waiting: Sequence[Found]) -> bool:
    """Whether it befell a rank, or the writer of a file, that does not report these others."""
    if one in waiting:
        return False
    if one.cause.ranks and (ranks := _ranks(waiting)):
        return ranks.isdisjoint(one.cause.ranks)
    hosts = {other.cause.host for other in waiting}
    if one.cause.host and hosts and None not in hosts:
        return one.cause.host not in hosts
    of_start = [other.file for other in waiting if other.cause.name in _AT_THE_START]
    return bool(of_start) and one.file not in of_start


def _aside(found: Sequence[Found], awaited: set[int], failed: set[int], left: Left) -> list[Found]:
    """Root causes that explain nothing: of a scheduler that ended a job that waited, of a rank
    that went on, to wait with others or until another one was killed, or dated outside the job.

    failed: ranks whose failure torchrun observed first.
    """
    names = {one.cause.name for one in found}
    odd = {
        r for one in found if one.cause.name == "ranks' collectives differ" for r in one.cause.ranks
    }
    timed_out = [one.cause for one in found if one.cause.name == "collective timed out"]
    waiting = {r for cause in timed_out if len(cause.ranks) > 1 for r in cause.ranks}
    survivors = waiting - awaited - odd
    gave_up_first = _ranks(one for one in found if one.cause.name == "rank waited in vain")
    gave_up_first = gave_up_first if len(gave_up_first) > 1 else set()
    was_killed = failed and failed <= _ranks(one for one in found if one.cause.name == "killed")
    python_error = known_cause("Python error").order
    lines = (cause.line for cause in timed_out)
    gave_up = min((at for line in lines if (at := time_of(line)) is not None), default=None)
    span = _began_and_ended(left.texts)

    def is_outside(line: str, after_s: float) -> bool:
        at = time_of(line)
        late = at is not None and gave_up is not None and elapsed_s(gave_up, at) > after_s
        return late or _is_far(at, span)

    def is_aside(one: Found) -> bool:
        cause = one.cause
        if cause.name in _BY_SCHEDULER and not cause.detail and not names.isdisjoint(_WAITS):
            return True
        if cause.ranks and (
            (cause.name in (*_OF_A_PROGRAM, *ENDINGS) and survivors.issuperset(cause.ranks))
            or (cause.name in _AFTER_A_WAIT and gave_up_first.issuperset(cause.ranks))
            or (cause.name == "Python error" and was_killed and failed.isdisjoint(cause.ranks))
        ):
            return True
        if cause.name == "time limit":
            before, ended, _ = left.texts.get(one.file, "").partition(cause.line)
            return bool(ended) and any(
                other.file == one.file
                and other.cause.order < python_error
                and other.cause.name not in (*_OF_A_PROGRAM, *_BY_SCHEDULER)
                and other.cause.line in before
                for other in found
                if other.cause.root
            )
        after_s = 0 if cause.name in ENDINGS else AFTER_S
        if cause.ranks or not is_outside(cause.line, after_s):
            return False
        # Of equal causes in a file, the first line is kept.
        text = left.texts.get(one.file, "")
        inside = "\n".join(line for line in text.splitlines() if not is_outside(line, after_s))
        return all(
            (again.name, again.device) != (cause.name, cause.device) for again in causes(inside)
        )

    return [one for one in found if one.cause.root and is_aside(one)]


def _is_elsewhere(one: Found, every_host: Collection[str], texts: Mapping[str, str]) -> bool:
    """Whether it befell a node that is none of the job's, as a controller or a kernel logs them, or
    a table of all nodes lists them of which other files name only others.

    every_host: of the job's ranks, if all are known. Names of pods and of nodes are not compared:
    those that differ in more than numbers may be of one machine.
    """
    hosts = {host.partition(".")[0] for host in every_host}
    host = (one.cause.host or "").partition(".")[0]
    if host and _ROW.search(one.cause.line):
        named = _names_like(host, (text for file, text in texts.items() if file != one.file))
        return bool(named) and host not in named
    alike = _DIGITS.sub("", host) in {_DIGITS.sub("", other) for other in hosts}
    return one.cause.root and not one.cause.ranks and alike and host not in hosts


def _names_like(host: str, texts: Iterable[str]) -> set[str]:
    """Names in texts that differ from this one in their numbers only."""
    names = re.compile(rf"(?<![\w-]){_DIGITS.sub('[0-9]+', re.escape(host))}(?![\w-])")
    return {name for text in texts for name in names.findall(text)}


def _began_and_ended(texts: Mapping[str, str]) -> tuple[float, float] | None:
    """Between which times ranks wrote, as far as the ends of their logs have dates."""
    logs = (
        text
        for name, text in texts.items()
        if RANK_OF_FILE.search(name) or "NCCL " in text or "[rank" in text
    )
    ends = (
        line
        for text in logs
        for line in (*text[:10_000].splitlines()[:20], *text[-10_000:].splitlines()[-20:])
    )
    return first_and_last(map(time_of, ends))


def _is_far(at: float | None, span: tuple[float, float] | None) -> bool:
    """Whether a time is so far from those between which ranks wrote that it is outside the job."""
    if at is None or span is None:
        return False
    return max(elapsed_s(at, span[0]), elapsed_s(span[1], at)) > BEFORE_S


def _weight(cause: Cause, awaited: set[int]) -> tuple[float, ...]:
    """Smaller is weightier. awaited: ranks that others wait for."""
    order: float = cause.order
    joined = known_cause(_JOINED).order
    if cause.root and cause.name != _JOINED and awaited.intersection(cause.ranks):
        order = min(order, joined - 0.5)  # it tells why this rank did not join
    time_s = time_of(cause.line)
    return order, cause.order, -cause.known, inf if time_s is None else time_s


def _raised_by(cause: Cause, awaited: set[int], failed: set[int]) -> tuple[float, ...]:
    """Weight, where an exception that fewer ranks raised, or that which failed first, is weightier:
    the others followed."""
    number = len(cause.ranks) if cause.name == "Python error" else 0
    return (*_weight(cause, awaited)[:3], number, failed.isdisjoint(cause.ranks))


def _placed(cause: Cause, file: str, hosts: Mapping[int, str], left: Left) -> Cause:
    """The cause with the rank or the node of its file, and the node of its rank, if no line names
    them."""
    node = left.nodes.get(file)
    found = None if node else RANK_OF_FILE.search(file)
    # A rank that waits for others writes that they did not come.
    if found and not cause.ranks and cause.name not in (*_WAITS, *_BY_SCHEDULER):
        cause = replace(cause, ranks=(int(found[1]),))
    by_scheduler = cause.name in _BY_SCHEDULER and not cause.detail  # a preempted pod has its name
    if by_scheduler or (cause.name == _ENDED and not cause.ranks):
        return replace(cause, host=None)  # it names the first node of the job
    on = {hosts.get(rank) for rank in cause.ranks} or {node_of_kernel_log(file) or None}
    if node and on == {None} and cause.name not in _WAITS:
        on = {node}
    return replace(cause, host=next(iter(on))) if len(on) == 1 and not cause.host else cause


def _by_files_of_nodes(texts: Mapping[str, str]) -> dict[int, str]:
    """Nodes by ranks, if files whose names differ in their number only have ranks of their own."""
    kinds: dict[str, list[tuple[str, set[int]]]] = {}
    for file, text in texts.items():
        node = node_in(PurePath(file).stem)
        if not _NO_NODE.match(node) and (ranks := {*map(int, _OWN_LABEL.findall(text))}):
            kinds.setdefault(_DIGITS.sub("", file), []).append((node, ranks))
    return {
        rank: node
        for files in kinds.values()
        if len(files) > 1
        and sum(len(of) for _, of in files) == len({*chain(*(f[1] for f in files))})
        for node, ranks in files
        for rank in ranks
    }


def _on_host_of_file(one: Found, hosts: set[str], found: Sequence[Found], left: Left) -> Found:
    """With the host by which the file or its folder is called, if other lines name this host, or if
    no other file shows the cause, and others differ in their number only: gpu3.log, gpu4.log."""
    cause, path = one.cause, PurePath(one.file)
    if (holder := _HOLDER.match(cause.detail or "")) and not cause.host:
        lists = re.compile(rf"^\W*(\d+ +N/A +N/A +)?{holder[1]}\b(.*)", re.MULTILINE)
        rows = [(file, *row) for file, of in left.texts.items() for row in lists.findall(of)]
        if any(_RANKS_OWN.search(command) for *_, command in rows):
            return replace(one, cause=replace(cause, kind=known_cause(cause.name), detail=None))
        nodes = {node_in(PurePath(file).stem) for file, by_smi, _ in rows if by_smi}
        nodes = nodes or {node_in(PurePath(file).stem) for file, *_ in rows}
        host = nodes.pop() if len(nodes) == 1 else None
        return replace(one, cause=replace(cause, host=host or None))
    by_scheduler = cause.name in _BY_SCHEDULER and not cause.detail
    writer = None if RANK_OF_FILE.search(one.file) else _LABEL.search(cause.line)
    of_others = cause.ranks and not (writer and int(writer[1]) in cause.ranks)
    of_peer = cause.peer is not None and cause.name in _OF_PEERS
    by_rank = _by_files_of_nodes(left.texts) if cause.ranks and not cause.by_victim else {}
    on = {by_rank.get(rank) for rank in cause.ranks}
    if len(on) == 1 and not cause.host and None not in on:
        return replace(one, cause=replace(cause, host=on.pop()))
    if of_others or of_peer or cause.host or cause.by_victim or by_scheduler:
        return one
    hosts = set() if cause.ranks else hosts  # a node may log the ranks of all
    files = {other.file for other in found if other.cause.name == cause.name}
    node = node_in(path.stem)
    if len(files) == 1 and cause.name not in _OF_OTHERS and not _NO_NODE.match(node):
        stems = [PurePath(file).stem for file in left.texts if file != one.file]
        alike = _DIGITS.sub("0", path.stem) in [_DIGITS.sub("0", stem) for stem in stems]
        hosts = {*hosts, node} if alike else hosts
    names = (path.stem, node, *reversed(path.parts[:-1]))
    ends = [host for host in hosts if node and host.endswith(f"-{node}")]
    host = next((name for name in names if name in hosts), ends[0] if len(ends) == 1 else None)
    return replace(one, cause=replace(cause, host=host))


def _located(first: Found, suspects: tuple[int, ...], left: Left, alike: Sequence[Found]) -> Found:
    """The cause, with where its ranks are by their stacks, or the suspects; of none if alike."""
    at = located(replace(first.cause, ranks=suspects or first.cause.ranks), left.texts)
    cause = replace(first.cause, detail=at.detail)
    if alike:
        here = len({one.cause.host for one in alike}) == 1 and cause.name not in _OF_A_PROGRAM
        cause = replace(cause, ranks=(), device=None, host=cause.host if here else None)
    return replace(first, cause=cause)


def _missing(
    first: Found | None,
    suspects: Sequence[int],
    left: Left,
    dated: Sequence[Found],
    *,
    stacks: bool,
) -> Iterator[str]:
    """What was not there, as far as it would tell more. stacks: whether the culprit's are.

    dated: causes that were not during the job.
    """
    if left.unread:
        names = ", ".join(f"{name} ({why})" for name, why in list(left.unread.items())[:4])
        yield f"{len(left.unread)} files could not be read whole: {names}"
    waits = first is None or first.cause.name in (*_WAITS, "aborted")
    if waits and dated:
        what = f"{dated[0].cause.name} was not during the job by its clock"
        yield f"the time zone of {dated[0].file}: {what}"
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
