"""The near end of a command on another machine: `near.py CONFIG NODE COMMAND…`.

Run by its path, without site-packages. CONFIG is a file that says how the node is reached
(sending.told). Environment, working directory and standard streams are the caller's, and go over
the connection, never into an argument list; the exit status is the command's, or 128 + signal; 255
with one line on standard error where the node was not reached, or the connection was lost.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE

if not __package__:  # run by its path
    sys.path[0] = str(Path(__file__).resolve().parents[3])
from pytest_mnode.launchers.cleanup import child
from pytest_mnode.launchers.remote import ending, far, sending
from pytest_mnode.machine import pidfd
from pytest_mnode.protocol.listening_clock import ListeningClock

LOST = 255
ATOMIC_BYTES = 4096
"""A pipe that is ready for writing takes so many without blocking (PIPE_BUF)."""
START_S = 30.0
"""For a session on a connection that is there: a shell, and an interpreter from shared storage."""
PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class Near:
    """State of the near end; `serve` gives the exit status."""

    def __init__(self, ssh: subprocess.Popen[bytes], keeper: int | None, first: bytes) -> None:
        assert ssh.stdin is not None
        assert ssh.stdout is not None
        assert ssh.stderr is not None
        self.ssh = ssh
        self.to_far, self.from_far = ssh.stdin.fileno(), ssh.stdout.fileno()
        self.complaints = ssh.stderr.fileno()
        self.keeper = keeper
        self.frames = far.Frames()
        self.greeting = b""
        self.greeted = False
        self.sent = bytearray(first)
        self.said = bytearray()
        self.shown: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.input_open = True
        self.ahead = 0
        self.status: int | None = None
        self.lost = ""
        self.clock = ListeningClock()
        self.heard = self.clock.now()
        self.beaten = time.monotonic()
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.to_far, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in PASSED_ON:
            signal.signal(number, self.pass_on)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def pass_on(self, number: int, _: object) -> None:
        self.sent += far.frame(far.SIGNAL, bytes([number]))

    def serve(self) -> int:
        """Relay until the command has ended, or the connection has."""
        while not (self.status is not None and not any(self.shown.values())) and not self.lost:
            self.turn()
        return LOST if self.lost else self.status or 0

    def turn(self) -> None:
        """Wait for something to do, and do it."""
        full = any(len(data) > far.ROOM_BYTES for data in self.shown.values())
        ready = self.ready(full)
        if self.keeper in ready:
            self.lost = "the run that started this command is over"
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.complaints in ready:
            self.read_complaints()
        if self.from_far in ready:
            self.read_far()
        if 0 in ready:
            self.read_input()
        for fd in ready & {1, 2}:
            self.show(fd)
        self.beat(full)
        self.send()

    def ready(self, full: bool) -> set[int]:
        """Descriptors with something to read, or room; full: no more can be shown now."""
        poll = select.poll()
        if self.sent:
            poll.register(self.to_far, select.POLLOUT)
        elif self.input_open and self.greeted and self.ahead < far.ROOM_BYTES:
            poll.register(0, select.POLLIN)
        if not full and self.status is None:
            poll.register(self.from_far, select.POLLIN)
        if self.complaints >= 0:
            poll.register(self.complaints, select.POLLIN)
        for fd, data in self.shown.items():
            if data:
                poll.register(fd, select.POLLOUT)
        poll.register(self.wake, select.POLLIN)
        if self.keeper is not None:
            poll.register(self.keeper, select.POLLIN)
        return {fd for fd, _ in poll.poll(500)}

    def read_complaints(self) -> None:
        data = os.read(self.complaints, far.CHUNK_BYTES)
        self.said += data
        del self.said[:-8192]
        if not data:
            self.complaints = -1

    def take_complaints(self) -> None:
        """Read all that is there."""
        while self.complaints >= 0 and select.select([self.complaints], [], [], 0)[0]:
            self.read_complaints()

    def read_far(self) -> None:
        data = os.read(self.from_far, far.CHUNK_BYTES)
        if not data:
            if self.status is None:
                self.ended()
            return
        self.heard = self.clock.now()
        if not self.greeted:
            self.greeting += data
            _, hello, data = self.greeting.partition(far.HELLO)
            if not hello:
                return
            self.greeted = True
            self.take_complaints()
            self.said.clear()  # of a login shell, or of what was waited for: of no loss to come
        for kind, payload in self.frames.feed(data):
            if kind == far.OUT:
                self.shown[1] += payload
            elif kind == far.ERR:
                self.shown[2] += payload
            elif kind == far.TAKEN:
                self.ahead -= int.from_bytes(payload, "big")
            elif kind == far.EXIT:
                code = int(payload)
                self.status = code if code >= 0 else 128 - code

    def read_input(self) -> None:
        try:
            data = os.read(0, far.CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self.ahead += len(data)
            self.sent += far.frame(far.DATA, data)
        else:
            self.input_open = False
            self.sent += far.frame(far.END)

    def show(self, fd: int) -> None:
        try:
            del self.shown[fd][: os.write(fd, self.shown[fd][:ATOMIC_BYTES])]
        except OSError:  # nobody reads it any more
            self.shown[fd].clear()

    def beat(self, full: bool) -> None:
        now, listened = time.monotonic(), self.clock.now()
        if full:
            self.heard = listened  # what it says is not read: the caller is slow
        limit = far.SILENCE_S if self.greeted else START_S
        if self.status is None and listened > self.heard + limit:
            self.lost = ending.how_silent(limit, self.printed(), self.greeted)
        if self.greeted and now > self.beaten + far.BEAT_S and len(self.sent) < far.ROOM_BYTES:
            self.beaten = now
            self.sent += far.frame(far.BEAT)

    def send(self) -> None:
        try:
            while self.sent:
                del self.sent[: os.write(self.to_far, self.sent[: far.CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it ended; reading says how
            self.sent.clear()

    def ended(self) -> None:
        """The connection ended before the command did."""
        try:
            code: int | None = self.ssh.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        self.take_complaints()
        self.lost = ending.how_it_ended(code, self.printed(), self.greeted)

    def printed(self) -> list[str]:
        """What ssh, and the node before our program, have said."""
        said = b"" if self.greeted else self.greeting
        return (said + b"\n" + bytes(self.said)).decode(errors="replace").splitlines()


def over(node: str) -> int:
    sys.stderr.write(f"{node}: the run that made this command is over\n")
    return LOST


def main(arguments: Sequence[str]) -> int:
    config, node, *argv = arguments
    try:
        settings = json.loads(Path(config).read_text())
        command = settings["ways"][node]["command"]
    except (OSError, ValueError, KeyError):
        return over(node)
    try:
        keeper = pidfd.pidfd_open(settings["keeper"]) if settings["keeper"] else None
    except ProcessLookupError:
        return over(node)
    except OSError as error:
        sys.stderr.write(f"{node}: {error.filename} on this machine: {error.strerror}\n")
        return LOST
    sending.give_back_files(settings.get("open_files"))
    first = sending.source() + sending.order(node, argv)
    near = Near(child.start(command, PIPE, PIPE, PIPE), keeper, first)
    status = near.serve()
    if near.lost:
        sys.stderr.write(f"{node}: {near.lost}\n")
        sys.stderr.flush()
    near.ssh.kill()  # and none with it: srun leaves it to a child of its own to end the step
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
