"""Warnings, and whether the process that printed one went on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_mnode.logs.nccl_log.facts import Process, Warn
from pytest_mnode.logs.nccl_log.text import Line

# Each function that an error passes on its way out prints `file:line -> code`, from 2.30 on
# `file:line (function) -> code`. 0 is success and 7 means in progress.
_PASSED_ON = re.compile(
    r"(?:\[[\w ]{1,40}\] )?[\w./-]{1,160}:\d{1,6}(?: \(.{1,200}\))? -> (?![07]\b)\d{1,3}\b",
    re.ASCII,
)
WARNED = ("WARN", "ERROR")
"""Levels of lines that tell of something wrong."""
_RETRIES = re.compile(r"\bretrying\b", re.IGNORECASE)
_GAVE_UP = re.compile(
    r"\babort|async(?:hronous)? error|unhandled|timed out|time-?out|\bfatal\b|catastrophic|"
    r"\bport error\b|Got completion (?:from peer|with)|Call to ibv_\w+ failed|Duplicate GPU|"
    r"network .{1,80} not found|no socket interface",
    re.IGNORECASE,
)
_LONGEST = 2000


@dataclass(slots=True)
class _Seen:
    where: str | None
    count: int = 0
    last: int = 0


@dataclass(slots=True)
class Warned:
    """Warnings met so far; lines are counted to know what came later."""

    seen: dict[tuple[Process, int | None, str], _Seen] = field(default_factory=dict)
    went_on: dict[Process, int] = field(default_factory=dict)
    passed_on: dict[Process, int] = field(default_factory=dict)
    lines: int = 0

    def take(self, line: Line, *, progress: bool) -> None:
        """Count `line`; `progress`: a communicator was made, connected or taken down."""
        self.lines += 1
        if line.level in WARNED:
            key = line.process, line.cuda_device, line.message[:_LONGEST]
            seen = self.seen.setdefault(key, _Seen(where=line.where))
            seen.count += 1
            seen.last = self.lines
        elif progress:
            self.went_on[line.process] = self.lines
        elif _PASSED_ON.match(line.message):
            self.passed_on[line.process] = self.lines

    def all(self) -> tuple[Warn, ...]:
        return tuple(
            Warn(
                process=process,
                cuda_device=device,
                text=text,
                where=seen.where,
                count=seen.count,
                recovered=self._recovered(process, text, seen.last),
            )
            for (process, device, text), seen in self.seen.items()
        )

    def _recovered(self, process: Process, text: str, when: int) -> bool | None:
        if self.went_on.get(process, 0) > when:
            return True
        if _RETRIES.search(text):
            return None
        if self.passed_on.get(process, 0) > when or _GAVE_UP.search(text):
            return False
        return None
