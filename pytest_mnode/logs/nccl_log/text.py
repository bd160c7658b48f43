"""NCCL's own messages, without the additions of launchers, schedulers and terminals. Pure."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pytest_mnode.logs.nccl_log.model import NOBODY, NcclProcess

# NCCL's buffers hold 2 kB, so longer lines are not NCCL's; the limits keep the time linear.
_LONGEST_MESSAGE = 8192
_LONGEST_PREFIX = 320
_LONGEST_TAIL = 100
_COMPARED = 64

_COLOUR = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\))"
)
# Of several lines that differ only in numbers, Ray shows one with the number of those left out.
_RAY_LEFT_OUT = re.compile(
    r" ?\[repeated \d{1,9}x across cluster\]"
    r"(?: \(Ray deduplicates logs by default\.[^\n]{0,400}\))?[ \t]*$",
    re.MULTILINE | re.ASCII,
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

_TEXT_KEYS = (
    *("log", "message", "msg", "MESSAGE", "textPayload", "@message", "line", "stdout", "event"),
)
"""Of Docker, Elastic, Ansible, journald, Google Cloud, CloudWatch, Loki and structlog."""
_RAISED_KEYS = ("exception", "exc_info", "stack_trace")
"""Of Python's logs as JSON."""
_WHOLE_OUTPUT = re.compile(r'\s{0,99}"(?:msg|stdout)": "')

# Beginnings of messages whose `host:pid:tid [0] NCCL INFO` was removed.
_MESSAGE = re.compile(
    r"(?:^|[\s>\]|:])(?P<message>(?:(?:Channel|Ring|CollNet|Coll) \d{2}|"
    r"NET/[\w /-]{1,40} ?:|NET/OFI |"
    r"Using network |Bootstrap ?: Using|GPU Direct RDMA |nccl\w{1,40} comm 0x|comm 0x\w+ rank |"
    r"NCCL_\w+ set (?:by|to) |Connected all |(?:Initialized|Assigned) NET plugin ).*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message and its writer.

    level: `INFO`, `WARN`, …; `INFO` if the line shows none. whole: False for a last line
    without a line end, which may be cut. place: in NCCL's source, as printed with warnings.
    """

    process: NcclProcess
    thread: int | None
    cuda_device: int | None
    level: str
    message: str
    whole: bool = True
    place: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain lines of a log. ended: whether the last one has its line end.

    zeros: number of zero bytes. left_out: number of lines that stand for others that Ray left out.
    """

    lines: tuple[str, ...]
    ended: bool
    zeros: int
    left_out: int = 0


def plain_text(log: str | bytes) -> Text:
    """`log` without colours, carriage returns and zero bytes, in any encoding."""
    text = log if isinstance(log, str) else decoded(log)
    zeros = text.count("\0")
    text = _COLOUR.sub("", text.replace("\0", "")).replace("\r\n", "\n").replace("\r", "\n")
    text, left_out = _RAY_LEFT_OUT.subn("", text) if "x across cluster]" in text else (text, 0)
    lines = text.split("\n")
    # A text of one line needs no line end.
    ended = lines[-1] == "" or len(lines) == 1
    return Text(lines=tuple(lines), ended=ended, zeros=zeros, left_out=left_out)


def decoded(log: bytes) -> str:
    """A log's text: UTF-8, or UTF-16 with its mark; other bytes become U+FFFD."""
    if log.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return log.decode("utf-16", "replace")
    return log.decode("utf-8-sig", "replace")


def first_line_is_cut(text: Text) -> bool:
    """Whether the text begins within a line: without a host name, or with the end of one."""
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


def messages(text: Text, *, start: int) -> Iterator[Message]:
    """NCCL's messages from line `start` on, without immediate repetitions."""
    before: Message | None = None
    last = len(text.lines) - 1
    for number in range(start, len(text.lines)):
        for line in _messages_of(text.lines[number]):
            whole = text.ended or number != last
            found = line if whole else replace(line, whole=False)
            if found != before:
                yield found
            before = found


def _messages_of(raw: str) -> Iterator[Message]:
    """All messages in one line: several writers may share a line."""
    raw = unwrapped(raw) if "NCCL" in raw else raw
    marks = list(_MARK.finditer(raw))
    if not marks:
        found = _MESSAGE.search(raw[:_LONGEST_MESSAGE])
        if found is not None:
            yield Message(NOBODY, None, None, "INFO", found["message"].strip())
        return
    ends = [0, *(mark.end() for mark in marks)]
    heads = [_head(raw, end, mark.start()) for end, mark in zip(ends, marks, strict=False)]
    starts = [*(head.start for head in heads[1:]), len(raw)]
    for mark, head, stop in zip(marks, heads, starts, strict=True):
        message = raw[mark.end() : min(stop, mark.end() + _LONGEST_MESSAGE)].strip()
        if head is not heads[-1]:
            tail = _BEFORE_NEXT.sub("", message[-_LONGEST_TAIL:])
            message = message[:-_LONGEST_TAIL] + tail
        yield Message(
            head.process, head.thread, head.device, mark.group(1), message, place=head.place
        )


@dataclass(frozen=True, slots=True)
class _Head:
    """The writer of a message. start: position of the head's first character in the line."""

    start: int
    process: NcclProcess
    thread: int | None
    device: int | None
    place: str = ""


def _head(raw: str, start: int, stop: int) -> _Head:
    """The head in `raw[start:stop]`, where `stop` is the position of the mark `NCCL INFO`."""
    start = max(start, stop - _LONGEST_PREFIX)
    # Times become blanks of the same length, so that positions stay those of `raw`.
    before = _WHEN.sub(lambda when: " " * len(when.group()), raw[start:stop])
    named = [found for found in _WHO.finditer(before) if not _is_time_of_day(found)]
    if named:
        who = named[-1]
        process = NcclProcess(who["host"] or None, _number(who["pid"]))
        numbers = _number(who["tid"]), _number(who["device"])
        return _Head(start + who.start(), process, *numbers, before[who.end() :].strip())
    host = _HOST_ONLY.search(before)
    if host is not None:
        process = NcclProcess(host["host"], None)
        return _Head(start + host.start(), process, None, int(host["device"]))
    device = _DEVICE_ONLY.search(before)
    return _Head(stop, NOBODY, None, int(device["device"]) if device else None)


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


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


def unwrapped(raw: str) -> str:
    """The text in a record of a log collector (`{"log": "…", "stream": …}`), or `raw`.

    Also of a line that has a whole output as one string, as Ansible shows it.
    """
    if not raw.startswith("{") and "\\n" not in raw:  # most lines
        return raw
    return _text_in(_record(raw)) or raw


def as_printed(raw: str) -> str:
    """A record of a log collector as the collector's own tool prints it as text, or `raw`.

    With its host as journalctl shows it, its pod as `kubectl logs --prefix` does, or its rank.
    """
    record = _record(raw)
    if (text := _text_in(record)) is None:
        is_object = not record.keys().isdisjoint(("items", "spec"))  # of Kubernetes
        return json.dumps(record, indent=1) if is_object else raw
    raised = [one for key in _RAISED_KEYS if isinstance(one := record.get(key), str)]
    before, pod = "", record.get("kubernetes")
    if host := record.get("_HOSTNAME"):
        before = f"{host} {record.get('SYSLOG_IDENTIFIER', 'unknown')}: "
    elif isinstance(pod, dict) and (name := pod.get("pod_name")):
        before = f"[pod/{name}/{pod.get('container_name', 'main')}] "
    elif isinstance(rank := record.get("rank"), int):
        before = f"[rank{rank}]: "
    return "\n".join(before + line for one in (text, *raised) for line in one.splitlines())


def _record(raw: str) -> dict[str, Any]:
    if _WHOLE_OUTPUT.match(raw) and "\\n" in raw:
        raw = f"{{{raw.strip().rstrip(',')}}}"
    if not raw.startswith("{"):
        return {}
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _text_in(record: Mapping[str, Any]) -> str | None:
    texts = {key: text for key, text in record.items() if isinstance(text, str)}
    of_nccl = next((text for text in texts.values() if "NCCL" in text), None)
    return of_nccl or next((texts[key] for key in _TEXT_KEYS if key in texts), None)
