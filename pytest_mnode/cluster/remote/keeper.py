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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

POLL_S = 0.02
END_S = 1.0
REMOVE_S = 6.0
"""What still runs on nodes may write there until it has seen that the connection is gone."""


@dataclass(slots=True)
class Connection:
    """ssh as the master of one connection."""

    program: subprocess.Popen[bytes]
    errors: IO[bytes]
    socket: Path
    until: float
    up: bool = False

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


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

    def obey(self, order: dict[str, Any]) -> None:
        match order:
            case {"connect": name, "argv": argv, "socket": socket, "within_s": within_s}:
                self.end(name)
                Path(socket).unlink(missing_ok=True)  # of a connection that was lost
                errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the connection
                program = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=die_with_parent,  # noqa: PLW1509  there is one thread
                )
                until = time.monotonic() + within_s
                self.held[name] = Connection(program, errors, Path(socket), until)
            case {"end": name}:
                self.end(name)
            case {"remove": paths}:
                self.remove = paths
            case {"done": _}:
                self.done = True

    def look_at(self, name: str) -> None:
        one = self.held[name]
        code = one.program.poll()
        if code is not None:
            del self.held[name]
            why = one.last_words() or f"ssh ended with status {code}"
            tell({"ended" if one.up else "failed": name, "why": why})
        elif not one.up and one.socket.exists():
            one.up = True
            tell({"up": name})
        elif not one.up and time.monotonic() > one.until:
            del self.held[name]
            one.program.kill()
            tell({"failed": name, "why": one.last_words() or "no connection in time"})

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


def finish(connections: list[Connection]) -> None:
    for one in connections:
        one.program.terminate()
    end = time.monotonic() + END_S
    for one in connections:
        try:
            one.program.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.program.kill()
            one.program.wait()
        one.errors.close()


def tell(what: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # the controller is gone; standard input ends, too
        os.write(1, json.dumps(what).encode() + b"\n")


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


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
