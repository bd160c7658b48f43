"""Checks whether this machine can run a rack, and with which rights."""

from __future__ import annotations

import errno
import os
import select
import signal
import warnings
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.rack import mounts
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.pidfd import pidfd_open

MODES = ("auto", "root", "rootless")
CAP_SYS_ADMIN = 21
LIMIT_S = 5.0


def is_rootless(mode: str) -> bool:
    """Whether this mode means a user namespace; raises UsageError for an unknown mode."""
    if mode not in MODES:
        raise UsageError(f"rack: mode {mode!r}: must be one of {', '.join(MODES)}")
    return mode == "rootless" or (mode == "auto" and not _may_as_root())


def _may_as_root() -> bool:
    if os.geteuid() != 0:
        return False
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def unavailable(mode: str = "auto") -> str | None:
    """Why this machine cannot run a rack, in one line; None if it can.

    A forked child tries all the steps that rights or limits can forbid. A kernel without veth or
    tbf is noticed only when a rack is started.
    """
    rootless = is_rootless(mode)
    answer_read, answer_write = os.pipe()
    with warnings.catch_warnings():
        # Python warns of other threads' locks, which the child does not take.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(answer_read)
            os.write(answer_write, _try(rootless).encode())
        finally:
            os._exit(0)
    os.close(answer_write)
    try:
        poll = select.poll()
        poll.register(answer_read, select.POLLIN)
        if not poll.poll(LIMIT_S * 1000):
            os.kill(child, signal.SIGKILL)
            return f"trying namespaces took more than {LIMIT_S:g} s"
        answer = os.read(answer_read, 4096).decode()
    finally:
        os.close(answer_read)
        os.waitpid(child, 0)
    return {"": "trying namespaces crashed", "ok": None}.get(answer, answer)


def _try(rootless: bool) -> str:
    """ "ok", or the reason why not; leaves the calling process in other namespaces."""
    try:
        os.close(pidfd_open(os.getpid()))
        namespaces.leave_host(rootless)
        inside_read, inside_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(inside_write, _try_inside(rootless).encode())
            os._exit(0)
        os.waitpid(child, 0)
        return os.read(inside_read, 4096).decode()
    except OSError as error:
        return reason(error, rootless)


def _try_inside(rootless: bool) -> str:
    try:
        namespaces.die_with_parent()
        mounts.mount_proc()
        namespaces.unshare(
            namespaces.NEWUTS | namespaces.NEWIPC | namespaces.NEWNS | namespaces.NEWNET
        )
        mounts.mount_sys()
        mounts.mount_names("")
        mounts.mount_shm(4096)
    except OSError as error:
        return reason(error, rootless)
    return "ok"


def reason(error: OSError, rootless: bool) -> str:
    """The error in one line, with a hint."""
    step = error.filename or "namespaces"
    who = "in a user namespace" if rootless else "as root"
    text = f"{step} {who}: {error.strerror}"
    hints = [hint for path, bad, hint in _HINTS if rootless and _first_word(path) == bad]
    if hints:
        return f"{text} ({'; '.join(hints)})"
    if error.errno == errno.ENOSPC:
        return f"{text} (a limit under /proc/sys/user is reached)"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{text} (containers often lack the right to create namespaces)"
    return text


_HINTS = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=0"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=1",
    ),
)


def _first_word(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
