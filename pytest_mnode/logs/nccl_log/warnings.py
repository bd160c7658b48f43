"""Warnings, and whether the process that printed one recovered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_mnode.logs.nccl_log.model import NcclProcess, Warn
from pytest_mnode.logs.nccl_log.text import Message

# Each function that an error passes on its way out prints `file:line -> code`, from 2.30 on
# `file:line (function) -> code`. 0 is success and 7 means in progress.
_ERROR_PASSED_ON = re.compile(
    r"(?:\[[\w ]{1,40}\] )?[\w./-]{1,160}:\d{1,6}(?: \(.{1,200}\))? -> (?![07]\b)\d{1,3}\b",
    re.ASCII,
)
_RETRIES = re.compile(r"\bretrying\b", re.IGNORECASE)
_ABOUT_A_CONNECTION = re.compile(r"socket|connect|\bpoll\b|\baccept\b", re.IGNORECASE)
# NCCL calls events of a port after which it continues "async error event" or "non-fatal".
_GAVE_UP = re.compile(
    r"\babort|async(?:hronous)? error\b(?! event)|unhandled|timed out|time-?out|"
    r"(?<!non-)\bfatal\b|catastrophic|"
    r"\bport error\b|Got completion (?:from peer|with)|Call to ibv_\w+ failed|Duplicate GPU|"
    r"network .{1,80} not found|no socket interface",
    re.IGNORECASE,
)
_LONGEST = 2000


@dataclass(slots=True)
class Warnings:
    """Warnings read so far; messages are counted to compare which came later."""

    last: dict[tuple[NcclProcess, int | None, str], int] = field(default_factory=dict)
    progressed: dict[NcclProcess, int] = field(default_factory=dict)
    gave_up: dict[NcclProcess, int] = field(default_factory=dict)
    retried: dict[NcclProcess, int] = field(default_factory=dict)
    count: int = 0

    def read(self, line: Message, *, progress: bool) -> None:
        """Read `line`; progress: a communicator was created, connected or destroyed."""
        self.count += 1
        if line.place.startswith("ras/"):
            return  # its monitor only: one process of a node gets its port
        if is_warning(line):
            self.last[line.process, line.cuda_device, line.message[:_LONGEST]] = self.count
        elif progress:
            self.progressed[line.process] = self.count
        elif _ERROR_PASSED_ON.match(line.message):
            self.gave_up[line.process] = self.count
        elif _RETRIES.search(line.message):
            self.retried[line.process] = self.count

    def all(self) -> tuple[Warn, ...]:
        return tuple(
            Warn(process, device, text, self._recovered(process, text, when))
            for (process, device, text), when in self.last.items()
        )

    def _recovered(self, process: NcclProcess, text: str, when: int) -> bool | None:
        if self.progressed.get(process, 0) > when:
            return True
        if _RETRIES.search(text):
            return None
        retried = self.retried.get(process, 0) if _ABOUT_A_CONNECTION.search(text) else 0
        if self.gave_up.get(process, 0) > max(when, retried):
            return False
        if retried > when:
            return None
        if _GAVE_UP.search(text):
            return False
        return None


def is_warning(line: Message) -> bool:
    """Whether NCCL printed the line with level WARN or ERROR."""
    return line.level in ("WARN", "ERROR")
