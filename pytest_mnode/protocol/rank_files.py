"""The files of a rank in the log directory, and functions that read them.

They are read when the rank itself cannot answer: it hangs, is stopped, or has died.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import socket
from pathlib import Path

from pytest_mnode.logs.causes import causes
from pytest_mnode.protocol.messages import Progress, WorldInfo

STACK_SIGNAL = signal.SIGRTMIN + 5
"""Makes a rank dump its stacks; the number is high enough that no library uses it."""
CUT = "…"
"""Replaces the omitted beginning of a text of which only the end is shown."""
NCCL_SECTION = "NCCL's log"
"""Name of the report section of a failed rank that holds the result of `nccl_causes`."""
_TAIL_BYTES = 4096
_FAULT_BYTES = 64 * 1024
_NCCL_BYTES = 2**20
_PROGRESS_BYTES = 64
_PROGRESS_FILE_BYTES = 4096
_LOCAL_RANK_BYTES = 4


def agent_log(log_dir: str, agent: int, incarnation: int) -> Path:
    """Log file of an agent's output, one per incarnation."""
    return Path(log_dir, f"agent{agent}.{incarnation}.log")


class RankFiles:
    """Paths of the files of one rank.

    stacks: where faulthandler writes stacks on request; fault: where it writes in a crash.
    progress: the test and phase that the rank is in. calls: the collectives that it called.
    nccl: the log of NCCL. output: all that the tests of a dead rank printed. coverage: a directory
    for coverage.py's data. live: the rank's output, if it is shown live.
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
    """Descriptors of the files that capture a rank's output; none if the output is shown live."""
    found = []
    for fd in (1, 2):
        path = Path(f"/proc/{pid}/fd/{fd}")
        with contextlib.suppress(OSError):
            if not (files.live.exists() and path.samefile(files.live)):
                found.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return found


def give_output(line: socket.socket, files: RankFiles, local_rank: int) -> None:
    """Send this rank's `captured` descriptors to its launcher; the files vanish with the rank."""
    fds = captured(files, os.getpid())
    socket.send_fds(line, [local_rank.to_bytes(_LOCAL_RANK_BYTES, "big")], fds)
    for fd in fds:
        os.close(fd)


def take_output(line: socket.socket) -> tuple[int, list[int]] | None:
    """A local rank and the descriptors that it sent; None if no rank is left to send any."""
    data, fds, _, _ = socket.recv_fds(line, _LOCAL_RANK_BYTES, 2)
    for fd in fds:
        os.set_inheritable(fd, False)
    return (int.from_bytes(data, "big"), fds) if data else None


def size(path: Path) -> int:
    """Size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path) -> str:
    """`tail_of_fd` of the file at `path`; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return tail_of_fd(file.fileno())
    except OSError:
        return ""


def head(path: Path) -> str:
    """The first bytes of a fault file: the stacks precede a long list of loaded modules."""
    try:
        with path.open("rb") as file:
            return file.read(_FAULT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def tail_of_fd(fd: int) -> str:
    """The last whole lines of a file, preceded by a line with CUT if there are more."""
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
    """The end of what a dead rank's test printed.

    If the text is cut, all of it is appended to the file `keep_in`, if one is given.
    """
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
    """Lines of NCCL's own log, which ranks do not print, from byte `start` on, that explain a
    failure."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - _NCCL_BYTES))
            data = file.read(_NCCL_BYTES)
    except OSError:
        return ""
    return "".join(f"{cause.line}\n" for cause in causes(data))


def error_message(path: Path) -> str:
    """The message in torchrun's error file, written when a rank's own loop raised.

    "" if there is none. The file is not trusted: a test knows its path and may have written to it.
    """
    try:
        message = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return ""
    for _ in range(2):  # torch writes a message inside a message, or the text alone
        message = message.get("message") if isinstance(message, dict) else message
    return message if isinstance(message, str) else ""


def new_map(path: Path, size_bytes: int) -> mmap.mmap:
    """A new file of zeros, mapped. Raises OSError if the disk has no room for all of it, because a
    write to a page without room would end the process by SIGBUS."""
    with path.open("w+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                file.truncate(size_bytes)  # not every file system can reserve room
            else:
                text = f"{error.strerror}: free some space there, or set TMPDIR or --mnode-log-dir"
                raise OSError(error.errno, text, str(path)) from None
        return mmap.mmap(file.fileno(), size_bytes)


class ProgressFile:
    """A rank's current test and phase, in a mapped file that survives however the rank ends.

    A rank shares the mapping with the children that it forks. It is a mapping and not a descriptor
    because a test may close every descriptor.
    """

    def __init__(self, path: Path) -> None:
        self._map = new_map(path, _PROGRESS_FILE_BYTES)

    def write(self, ordinal: int, phase: str) -> None:
        self._map[:_PROGRESS_BYTES] = f"{ordinal} {phase}".encode().ljust(_PROGRESS_BYTES, b"\0")

    def leave_note(self, text: str) -> None:
        """Store a note from a forked child for the rank itself."""
        room = _PROGRESS_FILE_BYTES - _PROGRESS_BYTES
        data = text.encode(errors="replace")[:room]
        self._map[_PROGRESS_BYTES:] = data.ljust(room, b"\0")

    def take_note(self) -> str:
        """Return the note of a forked child and clear it; "" if there is none."""
        text = _text(self._map[_PROGRESS_BYTES:])
        if text:
            self.leave_note("")
        return text


def read_progress(path: Path) -> Progress:
    """The progress that a rank wrote last; an empty Progress if the file is missing or invalid."""
    try:
        words = _text(path.read_bytes()[:_PROGRESS_BYTES]).split()
        return Progress(int(words[0]), words[1]) if words else Progress()
    except (OSError, ValueError, IndexError):
        return Progress()


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")
