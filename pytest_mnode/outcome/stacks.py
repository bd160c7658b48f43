"""Reader of a rank's faulthandler dump: where the rank is, and in which collective it waits."""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_SHIM = "__init__"
"""File of a frame that Python 3.13 puts below an object's `__init__`, which is no code."""
_PRINTED_FRAME = re.compile(r"frame #\d+: |#\d+ \S.* from \S.*:\d+$")
WAIT = "work.wait()"
"""Stands for a collective that was begun before, and whose name the stack does not show."""
_IMPORT = "<frozen importlib."
C10D = "torch/distributed/distributed_c10d.py"
_TESTING = "/torch/testing/"
"""Folder whose frames say more than those of torch that run them, if no frame is the test's."""
_WAITS = {
    "wait_tensor": ("torch/distributed/_functional_collectives.py", WAIT),
    "shutdown": ("torch/distributed/rpc/api.py", "rpc.shutdown"),
}
"""By the function that waits for other ranks: its file, and what it waits in."""
_DDP = ("torch/nn/parallel/distributed.py", "torch/distributed/utils.py")
"""Files whose functions call collectives of DistributedDataParallel in C++, which has no frames."""
POINT_TO_POINT = ("recv", "recv_object_list", "send", "send_object_list")
"""Calls that wait for one other rank, not for all ranks of a group."""
_RECORDER = "/pytest_mnode/rank/recorder.py"
"""File whose frames are between the test and every collective."""
_COUNTS = "_count_for_ever"
"""Function of rank.recorder, in a thread of its own."""
_REPORTS = "pytest_runtest_makereport"
_FINISHES = "finish_device"
"""Function of rank.session that waits for the device."""
_HIDDEN = (
    "/_pytest/",
    "/pluggy/",
    "/pytest_mnode/agent/",
    "/pytest_mnode/contrib/",
    "/pytest_mnode/processes.py",
    "/pytest_mnode/rank/debugger.py",
    "/pytest_mnode/rank/entry.py",
    "/pytest_mnode/rank/session.py",
    "/torch/multiprocessing/",
    "/torch/distributed/elastic/",
    "/torch/distributed/launcher/",
    "/multiprocessing/",
    "<frozen runpy>",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack; `line` is None if faulthandler did not know it."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def code(self) -> str:
        """The source line; "" if it cannot be read."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""


Thread = tuple[Frame, ...]
"""A thread's frames, most recent call first."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where a rank is. `collective` is None if it waits in none.

    reports: whether its test has ended, but its report is not made yet.
    finishes: whether its body has ended, but the work of its device has not.
    begun_at: line that began a collective which continues on the device; None inside its call.
    """

    frame: Frame | None
    collective: str | None
    reports: bool = False
    finishes: bool = False
    begun_at: str | None = None

    def __str__(self) -> str:
        if self.reports:
            return "the creation of its report of this test"
        if self.finishes:
            return "the end of the body, where it waits for its device"
        if self.frame is None:
            return "no Python frame of the test"
        code = f": {self.frame.code}" if self.frame.code else ""
        return f"{self.frame.place} in {self.frame.function}{code}"


def is_hidden(file: str) -> bool:
    """Whether this file is pytest's or this package's, whose frames below the test are hidden."""
    return any(part in file.replace("\\", "/") for part in _HIDDEN)


def is_torchs(file: str) -> bool:
    """Whether this file is torch's, installed or in a checkout; a user's own torch/ is not."""
    return "-packages/torch/" in file or "/pytorch/torch/" in file


def is_pythons(file: str) -> bool:
    """Whether this file is one of Python's own modules: Debian installs others in dist-packages."""
    return ("/lib/python3" in file and "-packages/" not in file) or file.startswith(_IMPORT)


def parse(text: str) -> list[Thread]:
    """All threads of a dump; other lines are skipped."""
    return [tuple(_frames_of(thread)) for thread in _threads_of(text)[1:]]


def _frames_of(text: str) -> Iterator[Frame]:
    for line in text.splitlines():
        if (match := _FRAME.match(line)) and match[1] != _SHIM:
            number = int(match[2]) if match[2].isdigit() else None
            yield Frame(match[1], number, match[3])


def where(thread: Thread) -> Where:
    """The innermost frame of the user's own code, and the collective it waits in."""
    if any(frame.function == _REPORTS for frame in thread):
        return Where(None, None, reports=True)
    if any(frame.function == _FINISHES for frame in thread):
        return Where(None, None, finishes=True)
    collective: str | None = None
    torch_frame: Frame | None = None
    called_directly = True
    for frame in thread:
        path = frame.file.replace("\\", "/")
        if path.endswith(_RECORDER):
            continue
        if path.endswith(C10D):
            # Frames come innermost first: the last match is the function that the test called.
            collective = frame.function if not frame.function.startswith("_") else collective
        elif (waits := _WAITS.get(frame.function)) and path.endswith(waits[0]):
            collective = waits[1]
        elif frame is thread[0] and path.endswith(_DDP):
            collective = "a collective of DistributedDataParallel"
        if is_torchs(path):
            if torch_frame is None or _TESTING not in torch_frame.file:
                torch_frame = frame
            continue
        if is_pythons(path):
            called_directly = False  # such as threading.Event().wait()
            continue
        if is_hidden(path):
            break
        return Where(frame, collective or _awaited(frame, torch_frame, called_directly))
    return Where(torch_frame, collective)


def where_of_rank(threads: Sequence[Thread]) -> Where:
    """Where the main thread is, which faulthandler lists last as the oldest; if it is in no
    collective, with that of another thread."""
    main = where(threads[-1] if threads else ())
    if main.collective is None:
        for thread in threads:
            if (collective := where(thread).collective) is not None:
                return Where(main.frame, collective)
    return main


@functools.lru_cache(4096)
def where_of_dump(text: str) -> Where:
    """Where a rank is, from its dump; equal dumps of many ranks are read once."""
    return where_of_rank(parse(text))


def _awaited(frame: Frame, torch_frame: Frame | None, called_directly: bool) -> str | None:
    """`work.wait()` waits in C++, and leaves no frame but the line that called it."""
    if called_directly and ".wait(" in frame.code:
        return WAIT
    in_backward = torch_frame is not None and torch_frame.function == "backward"
    return "backward" if in_backward else None


def tidy(text: str) -> str:
    """A dump without the frames of pytest and of this package below the test."""
    kept: list[str] = []
    begin = 0
    for line in "\n".join(filter(_tells, _threads_of(text))).splitlines():
        match = _FRAME.match(line)
        if _THREAD.match(line):
            begin = len(kept) + 1
        if match and match[3] == _REPORTS:
            del kept[begin:]
        if match and (match[1] == _SHIM or match[1].endswith(_RECORDER)):
            continue
        if match and is_hidden(match[1]):
            if kept and kept[-1] != "  …":
                kept.append("  …")
            continue
        if match and match[1].startswith(_IMPORT):  # a long import has hundreds of them
            continue
        if not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept).strip()


def _threads_of(text: str) -> list[str]:
    """The text before the first thread of a dump, and then the text of each thread."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            parts.append([])
        parts[-1].append(line)
    return ["\n".join(lines) for lines in parts]


def _tells(thread: str) -> bool:
    """Whether a thread of a dump helps the reader.

    Not if it is in C++ only, or counts operations. Not if torch itself imports its modules and what
    they need: NCCL's watchdog does so, to print Python stacks when a collective has failed.
    """
    frames = list(_frames_of(thread))
    files = [frame.file for frame in frames]
    if any(frame.function == _COUNTS for frame in frames):
        return False
    if not files:
        return not thread.startswith("Thread ")
    installed = all("-packages/" in file or is_pythons(file) for file in files)
    imports = any(file.startswith(_IMPORT) for file in files)
    return not (imports and is_torchs(files[-1]) and installed)


def without_native_frames(text: str) -> str:
    """Output without the C++ and Python stacks that torch's c10d prints with every error."""
    return "".join(line for line in text.splitlines(True) if not _PRINTED_FRAME.match(line))
