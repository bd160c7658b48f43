"""Linux processes: naming, ending with a parent, finding and ending process trees."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_PF_EXITING = 0x4
_CHILDREN = Path("/proc/thread-self/children")
"""Missing on a kernel that was built without CONFIG_PROC_CHILDREN."""
KILLED_S = 5.0
"""Time in which a killed process has ended, unless it waits inside the kernel."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def last_line(output: str | bytes) -> str:
    """The last line of a program's output that is not blank; "" if there is none."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def set_name(name: str) -> None:
    """Set the name that process listings show (its first 15 bytes)."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _libc.prctl(_PR_SET_NAME, ctypes.addressof(buffer), 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent`, which forked it, ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent of 0 is one outside this PID namespace: alive, or the namespace is about to end.
    if os.getppid() not in (parent, 0):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that none escapes a clean-up."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Pids of the direct children of all threads of `pid`; empty if it is gone, or unknown (0)."""
    found: list[int] = []
    if pid <= 0:  # 0 is also the parent that /proc gives for init and kernel threads
        return found
    with contextlib.suppress(OSError):
        if not _CHILDREN.exists():
            pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
            found = [one for one in pids if int(_stat(one)[1]) == pid]
            return [one for one in found if not _restores_a_port(one)]
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(word) for word in (task / "children").read_text().split()]
    return [one for one in found if not _restores_a_port(one)]


def _restores_a_port(pid: int) -> bool:
    """Whether it is measuring.port_meanwhile, which ends by itself: not to be killed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes() == b"mnode-port\n"
    return False


def descendants(pid: int) -> list[int]:
    """Pids of all descendants of `pid`, parents before children."""
    found = children(pid)
    for child in found:
        found += [c for c in children(child) if c not in found]
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process if it exists; never 0 (the caller's own group), −1 (all) or 1 (init)."""
    if pid <= 1:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Killable(Protocol):
    """subprocess.Popen, or alike."""

    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def end_programs(programs: Sequence[Killable], limit_s: float = KILLED_S) -> None:
    """SIGKILL and reap programs, within `limit_s` for all: one in state D may outlive SIGKILL.

    `returncode` of such a program stays None.
    """
    for program in programs:
        program.kill()
    end = time.monotonic() + limit_s
    for program in programs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(max(0.0, end - time.monotonic()))


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def kill_descendants(limit_s: float = 5.0) -> None:
    """SIGKILL and reap everything below this process, also what is an orphan then, within
    `limit_s`."""
    end, killed = time.monotonic() + limit_s, set[int]()
    while time.monotonic() < end:
        below = descendants(os.getpid())
        killed.update(below)
        if not below and all(map(has_ended, killed)):
            return
        for pid in below:
            kill(pid)
        reap()
        time.sleep(0.005)


def started_with(variable: str, value: str) -> list[int]:
    """Pids of other processes that were started with this variable in their environment."""
    wanted, own, found = f"{variable}={value}".encode(), os.getpid(), []
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdecimal() else own
        with contextlib.suppress(OSError):
            if pid != own and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end_started_with(variable: str, value: str, grace_s: float = 1.0, limit_s: float = 5.0) -> None:
    """SIGTERM to each process of `started_with`; SIGKILL to those left after `grace_s`."""
    began = time.monotonic()
    for pid in started_with(variable, value):
        kill(pid, signal.SIGTERM)
    while (left := started_with(variable, value)) and time.monotonic() < began + limit_s:
        if time.monotonic() >= began + grace_s:
            for pid in left:
                kill(pid)
        time.sleep(0.02)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; state X and zeros if the process is gone."""
    try:
        # The name before the state may contain any character, also blanks and brackets.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 6]


def has_ended(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    return _stat(pid)[0] in "XZ"


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is exiting: a PID namespace's first process exits last."""
    fields = _stat(pid)
    return fields[0] in "XZ" or bool(int(fields[6]) & _PF_EXITING)


def is_running(pid: int) -> bool:
    """Whether the main thread of a process runs, or waits for a core to run on."""
    return _stat(pid)[0] == "R"


def why_silent(pid: int) -> str:
    """Why a process does not answer, by its state in the kernel; "" if the state is no reason."""
    return {
        "T": "its process is stopped (SIGSTOP)",
        "t": "its process is stopped by a debugger",
        "D": "its process waits inside the kernel and cannot be interrupted",
        "Z": "its process has ended",
        "X": "its process is gone",
    }.get(_stat(pid)[0], "")


@contextlib.contextmanager
def made_to_stay() -> Iterator[None]:
    """Exempt all objects created inside from garbage collection until this process ends.

    `import torch` creates 300,000 objects that stay. Scanning them, during the import and when
    Python ends, takes a third of the CPU time that torch costs a process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def guard_forks() -> None:
    """Before each fork, wait until no thread is making or ending its Python thread state.

    Otherwise the child may inherit the lock of all thread states and hang in os.fork: CPython
    before 3.11.10 (gh-112275). Threads of a process group take this lock, and workers of a
    DataLoader are forked beside them: on busy cores, 4 of 100 worlds of four ranks hung.
    """
    if sys.version_info < (3, 11, 10):
        os.register_at_fork(before=sys._current_frames)  # takes that lock, and releases it


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`."""
    low = 3
    for fd in (*sorted(fd for fd in keep if fd > 2), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, fd)
        low = fd + 1


def run_and_exit(function: Callable[[], None]) -> NoReturn:
    """In a forked child: call `function`, then exit without returning to the parent's code."""
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def thread_names() -> list[str]:
    """Names of this process's kernel threads, the main one first."""
    names = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda p: int(p.name)):
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text(errors="replace").strip())
    return names
