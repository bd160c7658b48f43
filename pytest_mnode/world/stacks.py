"""Reads what faulthandler wrote of a rank: where it is, and in which collective it waits."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_C10D = "torch/distributed/distributed_c10d.py"
_HIDDEN = (
    "/_pytest/",
    "/pluggy/",
    "/pytest_mnode/world/",
    "/torch/multiprocessing/",
    "/torch/distributed/elastic/",
    "/torch/distributed/launcher/",
    "/multiprocessing/",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack; `line` is None where faulthandler did not know it."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def code(self) -> str:
        """The source line, where it can be read."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread's frames, most recent call first."""

    ident: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a rank is. `collective` is None where it waits in none."""

    frame: Frame | None
    collective: str | None

    def __str__(self) -> str:
        if self.frame is None:
            return "no Python frame of the test"
        code = f": {self.frame.code}" if self.frame.code else ""
        return f"{self.frame.place} in {self.frame.function}{code}"


def parse(text: str) -> list[Thread]:
    """All threads of a dump; lines that fit nothing are passed over."""
    threads: list[Thread] = []
    ident: int | None = None
    frames: list[Frame] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            if ident is not None:
                threads.append(Thread(ident, tuple(frames)))
            ident, frames = int(match[1], 16), []
        elif match := _FRAME.match(line):
            number = int(match[2]) if match[2].isdigit() else None
            frames.append(Frame(match[1], number, match[3]))
    if ident is not None:
        threads.append(Thread(ident, tuple(frames)))
    return threads


def main_thread(threads: Sequence[Thread], ident: int | None) -> Thread | None:
    """The thread with `ident`, else the last: faulthandler lists the oldest last."""
    for thread in threads:
        if thread.ident == ident:
            return thread
    return threads[-1] if threads else None


def where(thread: Thread | None) -> Where:
    """The innermost frame that is neither ours, pytest's nor torch's, and the collective it is in."""
    if thread is None:
        return Where(None, None)
    collective: str | None = None
    torch_frame: Frame | None = None
    for frame in thread.frames:
        path = frame.file.replace("\\", "/")
        if any(part in path for part in _HIDDEN):
            break
        if path.endswith(_C10D):
            # Frames run inwards out: the last one met is what the test called.
            collective = frame.function if not frame.function.startswith("_") else collective
        if "/torch/" in path:
            torch_frame = frame
            continue
        if "/lib/python3" in path and "site-packages" not in path:
            continue
        return Where(frame, collective or _awaited(frame, torch_frame))
    return Where(torch_frame, collective)


def _awaited(frame: Frame, torch_frame: Frame | None) -> str | None:
    """`work.wait()` waits in C++, and leaves no frame but the line that called it."""
    if ".wait(" in frame.code:
        return "wait"
    if torch_frame is not None and torch_frame.function in ("backward", "_engine_run_backward"):
        return "backward" if "/torch/autograd/" in torch_frame.file else None
    return None


def tidy(text: str) -> str:
    """A dump without the frames of pytest and of ours below the test."""
    kept: list[str] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match and any(part in match[1].replace("\\", "/") for part in _HIDDEN):
            if kept and kept[-1] != "  …":
                kept.append("  …")
            continue
        kept.append(line)
    return "\n".join(kept)
