"""Lines of NCCL, out of what launchers, schedulers, collectors and terminals made of them. Pure."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from pytest_mnode.logs.nccl_log.facts import Process

NOBODY = Process(host=None, pid=None)

# Longer ones are no lines of NCCL, whose buffers hold 2 kB; the limits keep the time linear.
_LONGEST_MESSAGE = 8192
_LONGEST_PREFIX = 320
_LONGEST_TAIL = 100
_COMPARED = 64

_COLOUR = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\))"
)
_MARK = re.compile(r"NCCL (INFO|WARN|ERROR|TRACE|ABORT)(?: |$)")
_WHEN = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_WHO = re.compile(
    r"(?P<host><[\w.-]{1,80}>|[^\s:<>|()\[\]{}/\"',;=]{0,255})"
    r":(?:(?P<pid>\d{1,9}):(?P<tid>\d{1,9})|[Xx*#?]{1,9}(?::[Xx*#?]{1,9})?) "
    r"(?:\[(?P<device>\d{1,4})\] ?)?",
    re.ASCII,
)
_HOST_ONLY = re.compile(
    r"(?:^|\s)(?P<host>[A-Za-z][\w.-]{0,254}) \[(?P<device>\d{1,4})\] $", re.ASCII
)
_DEVICE_ONLY = re.compile(r"\[(?P<device>\d{1,4})\] $", re.ASCII)
_BEFORE_NEXT = re.compile(
    r"(?:\s|\||\[[^\[\]\s]{0,60}\](?:<std(?:out|err)>)?:|\d{1,6}: "
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,10}(?:Z|[+-]\d\d:?\d\d)?\]?)+$",
    re.ASCII,
)

# How lines begin whose `host:pid:tid [0] NCCL INFO` was taken away.
_HEAD = re.compile(
    r"(?:^|[\s>\]|:])(?P<message>(?:(?:Channel|Ring|CollNet|Coll) \d{2}|"
    r"NET/[\w /-]{1,40} ?:|NET/OFI |"
    r"Using network |Bootstrap ?: Using|GPU Direct RDMA |nccl\w{1,40} comm 0x|comm 0x\w+ rank |"
    r"NCCL_\w+ set (?:by|to) |Connected all |(?:Initialized|Assigned) NET plugin ).*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One message and who printed it."""

    process: Process
    thread: int | None
    cuda_device: int | None
    level: str
    """`INFO`, `WARN`, …; `INFO` where the line does not say."""
    where: str | None
    message: str
    whole: bool
    """False for a last line without an end, which may have been longer."""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain lines of a log, and what is odd about it."""

    lines: tuple[str, ...]
    ended: bool
    """Whether the last line has its end; a text of one line needs none."""
    zeros: int


def plain_text(log: str | bytes) -> Text:
    """`log` without colours, carriage returns and zero bytes, whatever its encoding."""
    text = log if isinstance(log, str) else _decoded(log)
    zeros = text.count("\0")
    text = _COLOUR.sub("", text.replace("\0", "")).replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    ended = lines[-1] == "" or len(lines) == 1
    return Text(lines=tuple(lines), ended=ended, zeros=zeros)


def _decoded(log: bytes) -> str:
    if log.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return log.decode("utf-16", "replace")
    return log.decode("utf-8-sig", "replace")


def first_line_is_cut(text: Text) -> bool:
    """Whether the text begins in the middle of a line: it names no host, or but the end of one."""
    first = next(_messages_of(text.lines[0]), None)
    if first is None:
        return False
    others = {line.process for line in islice(messages(text, start=1), _COMPARED)}
    if first.process in others or not any(other.host for other in others):
        return False
    if first.process == NOBODY:
        return True
    host = first.process.host or ""
    return any(other.host and other.host != host and other.host.endswith(host) for other in others)


def messages(text: Text, *, start: int = 0) -> Iterator[Line]:
    """Messages of NCCL from line `start` on; one that was printed twice in a row comes once."""
    before: Line | None = None
    last = len(text.lines) - 1
    for number in range(start, len(text.lines)):
        raw = text.lines[number]
        for line in _messages_of(raw):
            whole = text.ended or number != last
            found = line if whole else replace(line, whole=False)
            if found != before:
                yield found
            before = found


def _messages_of(raw: str) -> Iterator[Line]:
    if raw.startswith("{") and "NCCL" in raw:
        raw = _from_json(raw)
    marks = list(_MARK.finditer(raw))
    if not marks:
        line = _unmarked(raw)
        if line is not None:
            yield line
        return
    heads = [
        _head(raw, 0 if i == 0 else marks[i - 1].end(), m.start()) for i, m in enumerate(marks)
    ]
    for i, (mark, head) in enumerate(zip(marks, heads, strict=True)):
        stop = heads[i + 1].start if i + 1 < len(heads) else len(raw)
        message = raw[mark.end() : min(stop, mark.end() + _LONGEST_MESSAGE)].strip()
        if i + 1 < len(heads):
            tail = _BEFORE_NEXT.sub("", message[-_LONGEST_TAIL:])
            message = message[:-_LONGEST_TAIL] + tail
        yield Line(
            process=head.process,
            thread=head.thread,
            cuda_device=head.device,
            level=mark.group(1),
            where=head.where,
            message=message,
            whole=True,
        )


@dataclass(frozen=True, slots=True)
class _Head:
    start: int
    process: Process
    thread: int | None
    device: int | None
    where: str | None


def _head(raw: str, start: int, stop: int) -> _Head:
    """Who stands before the mark at `stop`; nothing before `start` is its."""
    start = max(start, stop - _LONGEST_PREFIX)
    # Of the same length, so that positions stay those of `raw`.
    before = _WHEN.sub(lambda when: " " * len(when.group()), raw[start:stop])
    who = None
    for found in _WHO.finditer(before):
        if not _is_time_of_day(found):
            who = found
    if who is None:
        host = _HOST_ONLY.search(before)
        if host is None:
            only = _DEVICE_ONLY.search(before)
            device = int(only["device"]) if only else None
            return _Head(start=stop, process=NOBODY, thread=None, device=device, where=None)
        return _Head(
            start=start + host.start(),
            process=Process(host=host["host"], pid=None),
            thread=None,
            device=int(host["device"]),
            where=None,
        )
    return _Head(
        start=start + who.start(),
        process=Process(
            host=who["host"] or None, pid=None if who["pid"] is None else int(who["pid"])
        ),
        thread=None if who["tid"] is None else int(who["tid"]),
        device=None if who["device"] is None else int(who["device"]),
        where=before[who.end() :].strip() or None,
    )


def _is_time_of_day(who: re.Match[str]) -> bool:
    host, minutes, seconds = who["host"], who["pid"], who["tid"]
    return (
        who["device"] is None
        and minutes is not None
        and len(minutes) == 2
        and len(seconds) == 2
        and host.isdigit()
        and len(host) <= 2
    )


def _unmarked(raw: str) -> Line | None:
    found = _HEAD.search(raw[:_LONGEST_MESSAGE])
    if found is None:
        return None
    message = found["message"].strip()
    return Line(
        process=NOBODY,
        thread=None,
        cuda_device=None,
        level="INFO",
        where=None,
        message=message,
        whole=True,
    )


def _from_json(raw: str) -> str:
    """The text in a record of a log collector (`{"log": "…", "stream": …}`), or `raw`."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    texts = record.values() if isinstance(record, dict) else ()
    return next((t for t in texts if isinstance(t, str) and "NCCL" in t), raw)
