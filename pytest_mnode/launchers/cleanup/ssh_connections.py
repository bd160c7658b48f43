"""The daemon's task for ssh: the master connections to all hosts of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from pytest_mnode.launchers.cleanup import child
from pytest_mnode.processes import KILLED_S

POLL_S = 0.02
END_S = 1.0
AT_ONCE = 32
"""Most connections that are made at once: each also runs an ssh on this machine, and a jump host
gets those of all nodes."""
AGAIN_AT_ONCE = 8
"""The same once a connection was dropped: an sshd drops some if 10 or more have not authenticated
yet (MaxStartups)."""
AGAIN_S = 0.5
TRIES = 6
_EXCHANGE = "_exchange_identification: "
_NO_PEER = "UNKNOWN port 65535"
"""ssh's name for a peer that is a program and not a network connection."""
_CLOSED = ("Connection closed by ", "Connection reset by ")


@dataclass(slots=True)
class Connection:
    """ssh as the master of one connection.

    program: None while it waits for its turn, from `since` on. within_s: limit of each try. until:
    end of the current try. end_s: see _end.
    """

    argv: Sequence[str]
    socket: Path
    within_s: float
    end_s: float = END_S
    program: subprocess.Popen[bytes] | None = None
    up: bool = False
    tries: int = 0
    since: float = 0.0
    until: float = 0.0
    reason: str = ""

    @property
    def errors(self) -> Path:
        """File of ssh's output; no descriptor stays open, because there may be many connections."""
        return self.socket.with_name(f"{self.socket.name}.errors")

    def start(self) -> None:
        """Start ssh. Raises OSError, or SubprocessError."""
        self.socket.unlink(missing_ok=True)  # left by a lost connection
        self.tries += 1
        self.until = time.monotonic() + self.within_s
        with self.errors.open("wb") as errors:
            self.program = child.start(self.argv, DEVNULL, DEVNULL, errors)

    def ended(self) -> bool:
        """Whether ssh has ended; it is not reaped, so that its process group keeps its number."""
        assert self.program is not None
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.program.pid, how) is not None

    def signal(self, number: int) -> None:
        """Signal ssh, and its own ssh to a jump host."""
        if self.program is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, number)

    def reap(self, until: float | None = None) -> int:
        """Kill ssh's process group; ssh's exit status, that of SIGKILL if it outlives this.

        until: limit of the wait (time.monotonic); None for KILLED_S from now.
        """
        assert self.program is not None
        self.signal(signal.SIGKILL)
        left_s = KILLED_S if until is None else max(0.0, until - time.monotonic())
        try:
            code = self.program.wait(left_s)
        except subprocess.TimeoutExpired:  # it waits inside the kernel
            code = -signal.SIGKILL
        self.program = None
        return code

    def messages(self) -> list[str]:
        try:
            return self.errors.read_bytes().decode(errors="replace").splitlines()
        except OSError:
            return []


class SshConnections:
    """All connections of a run, by the name of the host. Implements Task.

    report(name, …) takes up=True, failed=reason, or ended=reason.
    """

    on_nodes = True

    def __init__(self, report: Callable[..., None]) -> None:
        self.held: dict[str, Connection] = {}
        self._at_once = AT_ONCE
        self._report = report

    @property
    def busy(self) -> bool:
        return any(not one.up for one in self.held.values())

    def descriptors(self) -> Iterable[int]:
        return ()

    def connect(
        self, name: str, argv: Sequence[str], socket: Path, within_s: float, end_s: float = END_S
    ) -> None:
        """within_s: limit from its own start; only some connections are made at a time."""
        self.disconnect(name)
        self.held[name] = Connection(argv, socket, within_s, end_s)
        self._start_due()

    def disconnect(self, name: str) -> None:
        if (one := self.held.pop(name, None)) is not None:
            _end([one])

    def turn(self) -> None:
        for name in list(self.held):
            self._look_at(name)
        self._start_due()

    def end(self) -> None:
        _end(list(self.held.values()))

    def _start(self, name: str) -> None:
        one = self.held[name]
        try:
            one.start()
        except (OSError, subprocess.SubprocessError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._failed(name, f"cannot start {one.argv[0]} on this machine: {reason}")

    def _failed(self, name: str, why: str) -> None:
        del self.held[name]
        self._report(name, failed=why)

    def _look_at(self, name: str) -> None:
        one = self.held[name]
        if one.program is None:
            return
        late = time.monotonic() > one.until
        if one.ended():
            code, lines = one.reap(), one.messages()
            one.reason = why_no_connection(lines) or f"ssh ended with status {code}"
            if one.up:
                del self.held[name]
                self._report(name, ended=one.reason)
            elif was_dropped(lines) and one.tries < TRIES and not late:
                one.since = time.monotonic() + AGAIN_S
                self._at_once = AGAIN_AT_ONCE
            else:
                self._failed(name, one.reason)
        elif not one.up and one.socket.exists():
            one.up = True
            self._report(name, up=True)
        elif not one.up and late:
            one.reap()
            self._failed(name, why_no_connection(one.messages()) or "no connection in time")

    def _start_due(self) -> None:
        """Start connections whose turn it is, in the order in which they were asked for, and then
        dropped."""
        trying = sum(not one.up for one in self.held.values() if one.program)
        now = time.monotonic()
        due = [name for name, one in self.held.items() if not one.program and one.since < now]
        due.sort(key=lambda name: self.held[name].since)
        for name in due[: max(0, self._at_once - trying)]:
            self._start(name)


def _end(connections: Sequence[Connection]) -> None:
    running = [one for one in connections if one.program is not None]
    for one in running:
        one.signal(signal.SIGTERM)
    end = time.monotonic() + max((one.end_s for one in running), default=0.0)
    while not all(one.ended() for one in running) and time.monotonic() < end:
        time.sleep(POLL_S)
    for one in running:
        one.signal(signal.SIGKILL)
    until = time.monotonic() + KILLED_S
    for one in running:
        one.reap(until)


def why_no_connection(lines: Sequence[str]) -> str:
    """Why ssh has no connection, from its output; "" if it printed nothing.

    The last line of an ssh through a jump host says only that the way through it has ended.
    """
    printed = [line.strip() for line in lines if line.strip()]
    own = [line for line in printed if not _follows(line)]
    if own and own[-1] != printed[-1]:  # own[-1] may be only a jump host's banner: show both
        return f"{own[-1]} ({printed[-1]})"
    return (printed or [""])[-1]


def was_dropped(lines: Sequence[str]) -> bool:
    """Whether an sshd closed the connection at once, because it has too many of them."""
    found = [line.strip() for line in lines]
    printed = [line for line in found if line and not line.startswith("Warning: ")]
    at_once = any(_EXCHANGE in line for line in printed)
    return at_once and all(_follows(line) or line.startswith(_CLOSED) for line in printed)


def _follows(line: str) -> bool:
    """Whether the line only says that the way through a jump host ended."""
    return _EXCHANGE in line or _NO_PEER in line or line == "stdio forwarding failed"
