"""Holds ssh's connections to the nodes, and ends them with the run: `keeper.py`.

Run by its path, without site-packages. Standard input brings orders, a line of JSON each: what to
connect (`connect`, `argv`, `socket`, `within_s`), what to end (`end`), what to remove once the run
is over (`remove`), and that it is over in order (`done`). Standard output tells of connections that
are up, that did not come up and why, and that ended. When standard input ends without `done`, the
controller is gone: connections are ended, and what was to be removed is.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[3])
from pytest_mnode.launchers.remote import child, ending

POLL_S = 0.02
END_S = 1.0
REMOVE_S = 6.0
"""What still runs on nodes may write there until it has seen that the connection is gone."""
AGAIN_AT_ONCE = 8
"""Of those that an sshd dropped: from 10 that have not said who they are it drops some
(MaxStartups), and a jump host has the connections of all nodes to take at once."""
AGAIN_S = 0.5
TRIES = 6


@dataclass(slots=True)
class Connection:
    """ssh as the master of one connection.

    program: None while it waits for its turn to be tried again, from `since` on.
    """

    argv: Sequence[str]
    socket: Path
    until: float
    program: subprocess.Popen[bytes] | None = None
    up: bool = False
    tries: int = 0
    since: float = 0.0
    why: str = ""

    @property
    def said(self) -> Path:
        """What ssh prints; open for as long as it takes to start: there may be many of us."""
        return self.socket.with_name(f"{self.socket.name}.said")

    def start(self) -> None:
        """Raises OSError, or SubprocessError."""
        self.socket.unlink(missing_ok=True)  # of a connection that was lost
        self.tries += 1
        with self.said.open("wb") as errors:
            self.program = child.start(self.argv, DEVNULL, DEVNULL, errors)

    def ended(self) -> bool:
        """Whether ssh has; it is not reaped, so that its group has its number still."""
        assert self.program is not None
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.program.pid, how) is not None

    def signal(self, number: int) -> None:
        """To ssh, and to its own ssh to a jump host."""
        if self.program is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, number)

    def bury(self) -> int:
        """Nothing of it is left; its status."""
        assert self.program is not None
        self.signal(signal.SIGKILL)
        code, self.program = self.program.wait(), None
        return code

    def words(self) -> list[str]:
        """What ssh has said."""
        try:
            return self.said.read_bytes().decode(errors="replace").splitlines()
        except OSError:
            return []


class Keeper:
    """All connections of a run, by the name of what they lead to."""

    def __init__(self) -> None:
        self.held: dict[str, Connection] = {}
        self.remove: list[str] = []
        self.done = False

    def serve(self) -> None:
        pending = b""
        while True:
            waiting = any(not one.up for one in self.held.values())
            if select.select([0], [], [], POLL_S if waiting else 0.2)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))
            for name in list(self.held):
                self.look_at(name)
            self.try_again()

    def obey(self, order: dict[str, Any]) -> None:
        match order:
            case {"connect": name, "argv": argv, "socket": socket, "within_s": within_s}:
                self.end(name)
                self.held[name] = Connection(argv, Path(socket), time.monotonic() + within_s)
                self.start(name)
            case {"end": name}:
                self.end(name)
            case {"remove": paths}:
                self.remove = paths
            case {"done": _}:
                self.done = True

    def start(self, name: str) -> None:
        one = self.held[name]
        try:
            one.start()
        except (OSError, subprocess.SubprocessError) as error:
            self.failed(name, f"cannot start {one.argv[0]} on this machine: {reason(error)}")

    def failed(self, name: str, why: str) -> None:
        del self.held[name]
        tell({"failed": name, "why": why})

    def look_at(self, name: str) -> None:
        one = self.held[name]
        late = time.monotonic() > one.until
        if one.program is None:
            if late:
                self.failed(name, one.why)
        elif one.ended():
            code, said = one.bury(), one.words()
            one.why = ending.why_not_there(said) or f"ssh ended with status {code}"
            if one.up:
                del self.held[name]
                tell({"ended": name, "why": one.why})
            elif ending.was_dropped(said) and one.tries < TRIES and not late:
                one.since = time.monotonic() + AGAIN_S
            else:
                self.failed(name, one.why)
        elif not one.up and one.socket.exists():
            one.up = True
            tell({"up": name})
        elif not one.up and late:
            one.bury()
            self.failed(name, ending.why_not_there(one.words()) or "no connection in time")

    def try_again(self) -> None:
        """A few at a time, in the order in which they were dropped."""
        trying = sum(not one.up and one.tries > 1 for one in self.held.values() if one.program)
        now = time.monotonic()
        due = [name for name, one in self.held.items() if not one.program and one.since < now]
        due.sort(key=lambda name: self.held[name].since)
        for name in due[: max(0, AGAIN_AT_ONCE - trying)]:
            self.start(name)

    def end(self, name: str) -> None:
        if (one := self.held.pop(name, None)) is not None:
            finish([one])

    def close(self) -> None:
        finish(list(self.held.values()))
        again = time.monotonic() + (0.0 if self.done else REMOVE_S)
        while True:
            for path in self.remove:
                shutil.rmtree(path, ignore_errors=True)
            if time.monotonic() > again:
                return
            time.sleep(0.5)


def finish(connections: Sequence[Connection]) -> None:
    running = [one for one in connections if one.program is not None]
    for one in running:
        one.signal(signal.SIGTERM)
    end = time.monotonic() + END_S
    while not all(one.ended() for one in running) and time.monotonic() < end:
        time.sleep(POLL_S)
    for one in running:
        one.bury()


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def tell(what: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # the controller is gone; standard input ends, too
        os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input ends it
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(15, b"mnode-keeper", 0, 0, 0)  # PR_SET_NAME
    keeper = Keeper()
    try:
        keeper.serve()
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
