"""Changes a network port for a while: `port_meanwhile.py NAME SECONDS [MTU BEFORE]` takes it down,
or sets its MTU. Afterwards the port is up, or has the MTU that it had before.

Run by its path, without site-packages, by a rank with the right to do it. It alone touches the
port: at its start, and again after SECONDS, or as soon as its input ends, which it does when the
rank is killed, or at a signal. So a SIGKILL of the rank, of the agent and of the controller, in any
order, leaves the port as it was: it has a session of its own, leaves its control groups, which a
scheduler kills as a whole, and is not among the processes that a clean-up kills
(`processes.children`).

It prints "changed S" and "restored S", with the time (time.monotonic), or one line "error WHY".
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NAME = "mnode-port"
"""Of this process, in /proc/PID/comm."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_GET_MTU, _SET_MTU = 0x8921, 0x8922
_IPOIB = 32
_FIRST_PIDS = 0xEFFFFFFC
"""Inode of the machine's own PID namespace. Source: Linux, include/linux/proc_ns.h."""
TRIES_S = 60.0
"""How long it goes on if the kernel refuses to restore the port."""
_REQUEST = struct.Struct("16si12x")


def is_up(name: str) -> bool:
    """Whether a port is set up. Raises OSError."""
    return bool(_flags(name) & _UP)


def set_port(name: str, *, up: bool) -> None:
    """Raises OSError."""
    flags = _flags(name)
    _asked(_SET_FLAGS, name, flags | _UP if up else flags & ~_UP)


def _flags(name: str) -> int:
    return _asked(_GET_FLAGS, name) & 0xFFFF  # a short; what follows it is not of the answer


def mtu_of(name: str) -> int:
    """The MTU of a port. Raises OSError."""
    return _asked(_GET_MTU, name)


def set_mtu(name: str, mtu: int) -> None:
    """Raises OSError."""
    _asked(_SET_MTU, name, mtu)


def _asked(request: int, name: str, value: int = 0) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        answer = fcntl.ioctl(there, request, _REQUEST.pack(name.encode(), value))
    found: int = _REQUEST.unpack(answer)[1]
    return found


def why_not(name: str, sys_net: Path = Path("/sys/class/net")) -> str:
    """Why this port must not be changed from here; "" if it may."""
    with contextlib.suppress(OSError, ValueError):
        if int((sys_net / name / "type").read_text()) == _IPOIB:
            return f"{name} is an interface of InfiniBand (IPoIB): its port stays up without it"
    contained = Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PIDS
    if contained and (sys_net / name / "device").exists():
        return f"{name} is the machine's, and this a container: if it is killed, nobody restores it"
    return ""


def _leave_groups() -> None:
    for group in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(os.getpid()))


class Port:
    """The program that takes a port down, or changes its MTU, seen from the rank that runs it.

    before: the MTU to put back; None for that of now. Raises OSError.
    changed_s, restored_s: when it did. why: why it did not, or "".
    """

    def __init__(
        self, name: str, seconds: float, mtu: int | None = None, before: int | None = None
    ) -> None:
        self._name, self.changed_s, self.restored_s, self.why = name, 0.0, 0.0, ""
        self._mtu = None if mtu is None else before or mtu_of(name)
        python = [sys.executable, "-S", "-E", "-s", str(Path(__file__))]
        self._process = subprocess.Popen(
            [*python, name, str(seconds), *([] if mtu is None else [str(mtu), str(self._mtu)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            # Not the run's variables, by which a clean-up would know it.
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            text=True,
        )
        self.changed_s = self._said("changed")

    def _said(self, word: str) -> float:
        assert self._process.stdout is not None
        said, _, rest = self._process.stdout.readline().strip().partition(" ")
        if said == word:
            return float(rest)
        self.why = self.why or (rest if said == "error" else f"{self._name}: its program ended")
        return 0.0

    @property
    def ended(self) -> bool:
        """Whether it has restored the port, or will not."""
        if self._process.poll() is None:
            return False
        if not self.restored_s and not self.why:
            self.restored_s = self._said("restored")
        return True

    def close(self) -> None:
        """Have the port restored. Only if the program was killed is there anything to do."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TRIES_S + 10)
        with contextlib.suppress(OSError):
            if self._mtu is not None:
                set_mtu(self._name, self._mtu)
            elif self.changed_s and not is_up(self._name):
                set_port(self._name, up=True)


def main(name: str, seconds: float, mtu: int | None = None, before: int = 0) -> None:
    ended, wake = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(wake, b"x"))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(15, NAME.encode(), 0, 0, 0)  # PR_SET_NAME
    if why := why_not(name):
        print("error", why)
        return
    _leave_groups()
    try:
        restore = change(name, mtu, before)
    except OSError as error:
        wanted = "down" if mtu is None else f"to an MTU of {mtu}"
        print("error", f"{name} cannot be set {wanted}: {error.strerror}")
        return
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        print("changed", time.monotonic(), flush=True)
    select.select([0, ended], [], [], seconds)
    while True:
        try:
            restore()
        except OSError:
            if time.monotonic() > until + TRIES_S:
                raise
            time.sleep(0.05)
        else:
            break
    with contextlib.suppress(OSError):
        print("restored", time.monotonic(), flush=True)


def change(name: str, mtu: int | None, before: int) -> Callable[[], None]:
    """Take a port down, or set its MTU; what restores it. Raises OSError."""
    if mtu is None:
        set_port(name, up=False)
        return functools.partial(set_port, name, up=True)
    set_mtu(name, mtu)
    return functools.partial(set_mtu, name, before)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
