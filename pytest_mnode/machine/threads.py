"""System calls, C stack (by gdb) and connections of a process that hangs outside of Python.

Source of system call, its descriptor and wait channel: Linux, filesystems/proc.rst (task/TID/comm,
syscall, wchan); syscall numbers of arch/x86/entry/syscalls and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.machine import sysfs, tcp
from pytest_mnode.machine.process import descriptors

# Name: number on x86_64, number on aarch64, and an explanation if the name is not enough.
_CALLS: dict[str, tuple[int, int, str]] = {
    "futex": (202, 98, "waits for a lock or another thread"),
    "poll": (7, -1, "waits for files or sockets"),
    "ppoll": (271, 73, "waits for files or sockets"),
    "select": (23, -1, "waits for files or sockets"),
    "pselect6": (270, 72, "waits for files or sockets"),
    "epoll_wait": (232, -1, "waits for files or sockets"),
    "epoll_pwait": (281, 22, "waits for files or sockets"),
    "nanosleep": (35, 101, "sleeps"),
    "clock_nanosleep": (230, 115, "sleeps"),
    "pause": (34, -1, "waits for a signal"),
    "wait4": (61, 260, "waits for a child process"),
    "waitid": (247, 95, "waits for a child process"),
    "read": (0, 63, ""),
    "write": (1, 64, ""),
    "pread64": (17, 67, ""),
    "pwrite64": (18, 68, ""),
    "readv": (19, 65, ""),
    "writev": (20, 66, ""),
    "recvfrom": (45, 207, ""),
    "recvmsg": (47, 212, ""),
    "sendto": (44, 206, ""),
    "sendmsg": (46, 211, ""),
    "connect": (42, 203, ""),
    "accept": (43, 202, ""),
    "accept4": (288, 242, ""),
    "ioctl": (16, 29, ""),
    "fsync": (74, 82, ""),
    "flock": (73, 32, ""),
    "close": (3, 57, ""),
    "getdents64": (217, 61, ""),
    "openat": (257, 56, "opens a file"),
    "newfstatat": (262, 79, "looks up a file"),
    "statx": (332, 291, "looks up a file"),
    "fcntl": (72, 25, ""),
    "kill": (62, 129, ""),
    "tgkill": (234, 131, ""),
}
_NAMES = {
    "x86_64": {number: name for name, (number, _, _) in _CALLS.items()},
    "aarch64": {number: name for name, (_, number, _) in _CALLS.items()},
}.get(platform.machine(), {})
GDB_LIMIT_S = 120.0
_TITLE = "C stack, most recent call first:"
_BACKTRACE = f"""
import gdb, re
frame, read, found = gdb.newest_frame(), set(), []
try:
    while frame is not None and frame.name() != "_PyEval_EvalFrameDefault":
        library, place = gdb.solib_name(frame.pc()), frame.find_sal()
        if library in (None, *read):
            where = place.symtab and f"{{place.symtab.filename}}:{{place.line}}" or library
            found.append(f"  {{frame.name() or '??'}}" + (f" ({{where}})" if where else ""))
            frame = frame.older()
        else:
            read.add(library)
            gdb.execute("sharedlibrary " + re.sub("[^/0-9A-Za-z_]", ".", library))
            frame, found = gdb.newest_frame(), []
finally:
    print("{_TITLE}", *found[:30], sep=chr(10), end=2 * chr(10))
"""
"""For gdb: down to the interpreter, with symbols of no other libraries than are in the stack."""


def threads_text(pid: int, proc: Path = Path("/proc")) -> str:
    """A line for each thread, the main one first; "" if the process is gone."""
    tasks: list[Path] = []
    with contextlib.suppress(OSError):
        tasks = sorted((proc / str(pid) / "task").iterdir(), key=lambda task: int(task.name))
    files = descriptors(proc / str(pid)) | _connections(pid, proc)
    lines = []
    for task in tasks:
        name = f"thread {sysfs.text(task / 'comm') or task.name}" + (
            " (main)" if task.name == str(pid) else ""
        )
        where = syscall_text(sysfs.text(task / "syscall") or "", files)
        channel = sysfs.text(task / "wchan")
        if channel not in (None, "", "0"):
            where += f" (kernel: {channel})"
        lines.append(f"{name}: {where}")
    return "\n".join(lines)


def native_frames(pid: int) -> str:
    """The main thread's C stack, read by gdb, which stops the process; or why it is unknown."""
    if (gdb := shutil.which("gdb")) is None:
        return "C stack: unknown; install gdb on the node"
    argv = [gdb, "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(pid)]
    argv += ["-ex", f"python exec({_BACKTRACE!r})"]
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "DEBUGINFOD_URLS": ""},  # otherwise gdb downloads symbols
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GDB_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"C stack: unknown; gdb did not end within {GDB_LIMIT_S:g} s"
    except OSError as error:  # built for another processor, or on a lost file server
        return f"C stack: unknown; {gdb} cannot be run: {error.strerror}"
    if frames := done.stdout.partition(_TITLE)[2].partition("\n\n")[0]:
        return _TITLE + frames
    why = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
    return f"C stack: unknown; gdb: {why}"


def syscall_text(text: str, files: Mapping[int, str]) -> str:
    """Description of /proc/PID/task/TID/syscall. files: the file or connection by descriptor."""
    words = text.split()
    if not words:
        return "its system call cannot be read"
    if words[0] == "running":
        return "runs in user space"
    if not words[0].isdigit():
        return "waits in the kernel outside of a system call"
    name = _NAMES.get(int(words[0]))
    if name is None:
        return f"in system call {words[0]}"
    if meaning := _CALLS[name][2]:
        return f"in {name}: {meaning}"
    fd = int(words[1], 16) if len(words) > 1 else None
    return f"in {name} on descriptor {fd}, {files.get(fd, 'unknown')}" if fd is not None else name


def _connections(pid: int, proc: Path) -> dict[int, str]:
    """TCP connections by descriptor."""
    return {
        one.descriptor: f"TCP {tcp.text(one.local)} → {tcp.text(one.remote)}"
        for one in tcp.connections(pid, proc)
    }
