"""The files of a rank in the log directory, and reading what matters of them.

They are read where the rank itself cannot answer: it hangs, is stopped, or has died.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
from pathlib import Path

from pytest_mnode.logs.causes import causes
from pytest_mnode.protocol.agent_messages import Progress
from pytest_mnode.protocol.world import WorldInfo

STACK_SIGNAL = signal.SIGRTMIN + 5
"""Asks a rank for its stacks: high enough that no library uses it."""
CUT = "…"
"""Stands for what came before the end that is shown."""
NCCL_SECTION = "NCCL's log"
"""Name of the section of a failed rank's report with what `nccl_causes` found."""
_TAIL_BYTES = 4096
_FAULT_BYTES = 64 * 1024
_NCCL_BYTES = 2**20
_PROGRESS_BYTES = 64
_PROGRESS_FILE_BYTES = 4096
_LOCAL_RANK_BYTES = 4


def agent_log(log_dir: str, agent: int, incarnation: int) -> Path:
    """What an agent prints, a file for each time that it is started."""
    return Path(log_dir, f"agent{agent}.{incarnation}.log")


class RankFiles:
    """Paths of the files of one rank.

    stacks: where faulthandler writes when it is asked for stacks; fault: where it writes in a
    crash. progress: the test and phase that the rank is in. calls: the collectives that it called.
    nccl: the log of NCCL. coverage: a directory for what coverage.py measures. live: what the rank
    prints, where that is shown while it runs.
    """

    def __init__(self, world: WorldInfo, rank: int) -> None:
        self.directory = Path(world.log_dir, world.id)
        self.stacks = self.directory / f"rank{rank}.stacks"
        self.fault = self.directory / f"rank{rank}.fault"
        self.progress = self.directory / f"rank{rank}.progress"
        self.calls = self.directory / f"rank{rank}.calls"
        self.nccl = self.directory / f"rank{rank}.nccl.log"
        self.output = self.directory / f"rank{rank}.output.log"
        self.coverage = self.directory / f"rank{rank}.coverage"
        self.live = self.directory / f"rank{rank}.live.log"


def captured(files: RankFiles, pid: int) -> list[int]:
    """Descriptors of the files that a rank's output is captured in; none if it is shown live."""
    found = []
    for fd in (1, 2):
        path = Path(f"/proc/{pid}/fd/{fd}")
        with contextlib.suppress(OSError):
            if not (files.live.exists() and path.samefile(files.live)):
                found.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return found


def give_output(line: socket.socket, files: RankFiles, local_rank: int) -> None:
    """Hand what `captured` finds of this rank to its launcher, for the files die with the rank."""
    fds = captured(files, os.getpid())
    socket.send_fds(line, [local_rank.to_bytes(_LOCAL_RANK_BYTES, "big")], fds)
    for fd in fds:
        os.close(fd)


def take_output(line: socket.socket) -> tuple[int, list[int]] | None:
    """A local rank and the descriptors that it gave; None where no rank is left to give any."""
    data, fds, _, _ = socket.recv_fds(line, _LOCAL_RANK_BYTES, 2)
    for fd in fds:
        os.set_inheritable(fd, False)
    return (int.from_bytes(data, "big"), fds) if data else None


def size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path) -> str:
    """`tail_of_fd` of a file by its path; "" where there is none."""
    try:
        with path.open("rb") as file:
            return tail_of_fd(file.fileno())
    except OSError:
        return ""


def head(path: Path) -> str:
    """What matters of a fault comes first, before a long list of loaded modules."""
    try:
        with path.open("rb") as file:
            return file.read(_FAULT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def tail_of_fd(fd: int) -> str:
    """The last whole lines of a file, after a line with CUT where there are more."""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ""
    text = data.decode(errors="replace")
    if size <= _TAIL_BYTES:
        return text
    _, newline, lines = text.partition("\n")
    return f"{CUT}\n{lines if newline else text}"


def end_of_output(fd: int, keep_in: Path | None) -> str:
    """The end of what a dead rank's test printed; all of it is added to this file, if any."""
    text = tail_of_fd(fd)
    if not text.startswith(CUT):
        return text
    if keep_in is None:
        return text.replace(CUT, f"{CUT} (--mnode-log-dir=DIR keeps all of it)", 1)
    with contextlib.suppress(OSError), keep_in.open("ab") as kept:
        offset = 0
        while data := os.pread(fd, 2**20, offset):
            kept.write(data)
            offset += len(data)
        return text.replace(CUT, f"{CUT} (all of it is in {keep_in})", 1)
    return text


def nccl_causes(path: Path, start: int = 0) -> str:
    """Lines of NCCL's own log from byte `start` on, which a rank does not print, that tell why it
    failed."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - _NCCL_BYTES))
            data = file.read(_NCCL_BYTES)
    except OSError:
        return ""
    return "".join(f"{cause.line}\n" for cause in causes(data))


def error_message(path: Path) -> str:
    """The message of torchrun's error file, where a rank's own loop raised.

    "" where there is none: a test knows the path, and may have written anything there.
    """
    try:
        message = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return ""
    for _ in range(2):  # torch has a message in its message, or the text alone
        message = message.get("message") if isinstance(message, dict) else message
    return message if isinstance(message, str) else ""


class ProgressFile:
    """Where a rank is, in a mapped file: what it wrote last survives however the rank ends.

    A rank shares it with the children that it forks.

    Mapped, and not a descriptor: a test may close all there are.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_PROGRESS_FILE_BYTES)
            self._map = mmap.mmap(file.fileno(), _PROGRESS_FILE_BYTES)

    def write(self, ordinal: int, phase: str) -> None:
        self._map[:_PROGRESS_BYTES] = f"{ordinal} {phase}".encode().ljust(_PROGRESS_BYTES, b"\0")

    def leave_note(self, text: str) -> None:
        """Kept for the rank itself: what a child that it forked did in its name."""
        room = _PROGRESS_FILE_BYTES - _PROGRESS_BYTES
        data = text.encode(errors="replace")[:room]
        self._map[_PROGRESS_BYTES:] = data.ljust(room, b"\0")

    def take_note(self) -> str:
        """What a forked child left here, "" for nothing; cleared."""
        text = _text(self._map[_PROGRESS_BYTES:])
        if text:
            self.leave_note("")
        return text


def read_progress(path: Path) -> Progress:
    """What a rank wrote last; nothing known where there is no such file or it is not ours."""
    try:
        words = _text(path.read_bytes()[:_PROGRESS_BYTES]).split()
        return Progress(int(words[0]), words[1]) if words else Progress()
    except (OSError, ValueError, IndexError):
        return Progress()


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")
