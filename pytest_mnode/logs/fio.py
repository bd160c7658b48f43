"""Reads the JSON that fio prints (`--output-format=json`, also json+ and with other formats).

Of fio 3 a rate is `bw_bytes` and times are in ns; fio 2 has `bw`, in KiB/s, `io_bytes` in KiB, and
times in us. Warnings stand before and behind the JSON. Source: fio's stat.c, of 2.1 to 3.38.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_NO_NUMBER = re.compile(r"(:\s*)-?(?:nan|inf)\b", re.IGNORECASE)
_COMMA = re.compile(r"(:\s*-?\d+),(\d{6})(?=\s*[,}\]\n])")
"""A fraction as other locales write it; fio prints six digits."""
_SAID = re.compile(r"fio: (?:.*\berror=)?(.+)")
_ALL = "All clients"
"""The sum that a client of several servers adds."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What all jobs read, or wrote. time_s: of the slowest job, without the fsync at its end."""

    size_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class FioResult:
    """What fio printed. version: such as "fio-3.33". read, write: None if nothing was. errors: of
    jobs and of fio itself, each once; without them, the result is whole."""

    version: str = ""
    read: Transfer | None = None
    write: Transfer | None = None
    errors: tuple[str, ...] = ()


def read_fio(output: str, errors: str = "") -> FioResult:
    """Read fio's standard output and its standard error; raises nothing."""
    said = [*_said(f"{output}\n{errors}")]
    page = _page(output)
    if page is None:
        why = "its output is cut" if '"fio version"' in output else "it printed no JSON"
        return FioResult(errors=tuple(dict.fromkeys(said)) or (why,))
    jobs = [job for job in _jobs(page) if job.get("jobname") != _ALL]
    if not jobs:
        said.append("no job is in its JSON")
    failed = [os.strerror(abs(int(n))) for job in jobs if (n := _number(job.get("error")))]
    texts = failed or said  # fio says in words why a job failed, too
    version = str(page.get("fio version", ""))
    read, write = (_transfer(jobs, kind) for kind in ("read", "write"))
    return FioResult(version, read, write, tuple(dict.fromkeys(texts)))


def _page(output: str) -> Mapping[str, Any] | None:
    """The first JSON object with jobs, wherever it begins."""
    text = _COMMA.sub(r"\1.\2", _NO_NUMBER.sub(r"\1null", output))
    for start in re.finditer(r"^\s*\{", text, re.MULTILINE):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start.end() - 1)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and ("fio version" in found or _jobs(found)):
            return found
    return None


def _jobs(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    every = page.get("jobs") or page.get("client_stats") or []
    return [one for one in every if isinstance(one, dict)] if isinstance(every, list) else []


def _transfer(jobs: Sequence[Mapping[str, Any]], kind: Literal["read", "write"]) -> Transfer | None:
    parts = [part for job in jobs if (part := _part(job.get(kind))) is not None]
    if not parts:
        return None
    return Transfer(sum(one.size_bytes for one in parts), max(one.time_s for one in parts))


def _part(found: Any) -> Transfer | None:
    """One job's share; None if it moved nothing."""
    if not isinstance(found, dict):
        return None
    time_s = (_number(found.get("runtime")) or 0) / 1000
    rate = _number(found.get("bw_bytes")) or (_number(found.get("bw")) or 0) * 1024
    size = _number(found.get("io_bytes")) if "io_kbytes" in found else None
    size = size or (_number(found.get("io_kbytes")) or 0) * 1024 or rate * time_s
    if not size or not rate:
        return None
    return Transfer(round(size), time_s or size / rate)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _said(text: str) -> Iterator[str]:
    """Errors in words: lines of fio that are no warnings."""
    for line in text.splitlines():
        if (found := _SAID.match(line.strip())) and not _is_note(line):
            yield found[1]


def _is_note(line: str) -> bool:
    noted = ("this platform does not", "starting", "terminating on signal", "output format", "note")
    return any(word in line.lower() for word in (*noted, "warning", "forcing", "will be ignored"))
