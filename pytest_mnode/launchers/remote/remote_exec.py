"""A node's program: runs commands for the other end of its stream, and ends them with the stream.

Its source may be sent over the stream, so the node needs Python but not this package. Frames
arrive: an order for each command (arguments, variables, directory), then its input, signals, and
heartbeats. Frames go back: the output of commands, heartbeats and exit statuses. Each command has a
process above it (`keep`), which ends it with its descendants. When the stream ends, or is silent
for too long, inputs end, commands get SIGTERM, and after GRACE_S their descendants are killed.
A file is touched while bytes arrive, so that others on the node see whether the run lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import time

if __package__:  # on a node, the sources of these modules may precede this one
    from pytest_mnode.launchers.remote.command_process import (
        become,
        close_all_but,
        descendants,
        kill,
    )
    from pytest_mnode.launchers.remote.wire import (
        ALIVE,
        BEAT,
        BEAT_S,
        CHUNK_BYTES,
        DATA,
        END,
        ERR,
        EXIT,
        HANG_UP,
        HELLO,
        ORDER,
        OUT,
        ROOM_BYTES,
        SIGNAL,
        SILENCE_S,
        TAKEN,
        UNUSABLE,
        Frames,
        frame,
        taken,
    )
    from pytest_mnode.protocol.listening_clock import ListeningClock

GRACE_S = 6.0
"""Time for a command to end by itself after its input ended; a supervisor takes a second."""
DRAIN_S = 2.0
PIPE_BYTES = 1 << 20
"""Most that a pipe holds, unless root has raised pipe-max-size."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class UnusableError(Exception):
    """Why this node cannot be used."""


def kill_all(limit_s: float = 5.0) -> None:
    """SIGKILL and reap everything below this process, which adopts orphans, within `limit_s`."""
    limit = time.monotonic() + limit_s
    while (left := descendants(os.getpid())) and time.monotonic() < limit:
        for pid in left:
            kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def adopt_orphans(name: bytes) -> None:
    """Become the parent of orphaned descendants, so that none escapes. name: of this process."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME


def wake_on_signals() -> int:
    """A descriptor that becomes readable with each signal of this process."""
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake


class Keeper:
    """The process above one command: passes signals on, and ends it with its descendants.

    Its socket takes the numbers of signals, and tells the command's status; with the socket's end,
    the command ends too.
    """

    def __init__(self, control: socket.socket, child: int) -> None:
        self.control, self.child = control, child
        self.killed_at: float | None = None
        self.wake = wake_on_signals()
        for number in ENDING:
            signal.signal(number, lambda *_: self.hang_up())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def status(self) -> int:
        """Wait for the command's end."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 125
            if pid == self.child:
                return os.waitstatus_to_exitcode(status)
            if pid == 0:
                self.wait()

    def wait(self) -> None:
        poll, left_ms = select.poll(), None
        poll.register(self.wake, select.POLLIN)
        if self.killed_at is None:
            poll.register(self.control, select.POLLIN)
        else:
            left_ms = max(0.0, 1000 * (self.killed_at - time.monotonic()))
        ready = {fd for fd, _ in poll.poll(left_ms)}
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.control.fileno() in ready:
            try:
                numbers = self.control.recv(4096)
            except OSError:
                numbers = b""
            for number in numbers:
                kill(self.child, number)
            if not numbers:
                self.hang_up()
        if self.killed_at is not None and time.monotonic() >= self.killed_at:
            self.killed_at += 0.1
            for pid in descendants(os.getpid()):
                kill(pid, signal.SIGKILL)

    def hang_up(self) -> None:
        if self.killed_at is None:
            self.killed_at = time.monotonic() + GRACE_S
            kill(self.child, signal.SIGTERM)


def keep(order: dict[str, object], fds: list[int], control: socket.socket) -> None:
    """In the forked child: run the command to its end, and report its status. Never returns."""
    try:
        adopt_orphans(b"mnode-exec")
        signal.set_wakeup_fd(-1)
        close_all_but({*fds, control.fileno()})
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):  # the stream ends with the node's program alone
            os.dup2(null, fd)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            become(order, fds, parent)
        for fd in fds:
            os.close(fd)
        status = Keeper(control, child).status()
        kill_all()
        control.sendall(str(status).encode())
    finally:
        os._exit(0)


class Command:
    """One command of the node's program. status: None while it runs. ahead: bytes of output that
    were sent and not yet taken. reported: its end. unread: nobody reads its output any more."""

    def __init__(self, number: int, order: dict[str, object]) -> None:
        """Raises OSError if this node cannot start it."""
        self.number = number
        self.to_child = bytearray()
        self.input_over = self.reported = self.unread = False
        self.status: int | None = None
        self.ended_at = 0.0
        self.ahead = 0
        pipes: list[int] = []
        self.control, theirs = socket.socketpair()
        try:
            for _ in range(3):
                pipes += os.pipe()
            ours, its = [pipes[1], pipes[2], pipes[4]], [pipes[0], pipes[3], pipes[5]]
            self.keeper = os.fork()
            if self.keeper == 0:
                keep(order, its, theirs)
        except OSError:
            for fd in pipes:
                os.close(fd)
            self.control.close()
            raise
        finally:
            theirs.close()
        for fd in its:
            os.close(fd)
        self.child_input = ours[0]
        self.outputs = {ours[1]: OUT, ours[2]: ERR}
        self.control.setblocking(False)
        for fd in (self.child_input, *self.outputs):
            os.set_blocking(fd, False)

    def register(self, poll: select.poll) -> None:
        if self.to_child and self.child_input >= 0:
            poll.register(self.child_input, select.POLLOUT)
        if self.ahead < ROOM_BYTES or self.unread:
            for fd in self.outputs:
                poll.register(fd, select.POLLIN)
        if self.status is None:
            poll.register(self.control, select.POLLIN)

    def turn(self, ready: set[int]) -> bytes:
        """Handle what is ready; the frames to send."""
        sent = bytearray()
        for fd in [fd for fd in self.outputs if fd in ready]:
            sent += self.read_output(fd)
        sent += self.feed()
        if self.status is None and self.control.fileno() in ready:
            self.read_status()
        return bytes(sent) + self.report()

    def read_status(self) -> None:
        try:
            data = self.control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.status = int(data or -signal.SIGKILL)  # without data, its keeper was killed
        self.ended_at = time.monotonic()

    def read_output(self, fd: int, most: int = CHUNK_BYTES) -> bytes:
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return b""
        if not data:
            self.close_output(fd)
            return b""
        if self.unread:
            return b""
        self.ahead += len(data)
        return frame(self.outputs[fd], self.number, data)

    def close_output(self, fd: int) -> None:
        os.close(fd)
        del self.outputs[fd]

    def feed(self) -> bytes:
        """Pass input on; the frame that says how much the command has read."""
        if self.child_input < 0:
            self.to_child.clear()
            return b""
        count = 0
        try:
            while self.to_child:
                written = os.write(self.child_input, self.to_child[:CHUNK_BYTES])
                del self.to_child[:written]
                count += written
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self.input_over = True
            self.to_child.clear()
        if self.input_over and not self.to_child:
            os.close(self.child_input)
            self.child_input = -1
        return taken(self.number, count) if count else b""

    def report(self) -> bytes:
        """The frame of the command's end, once it has ended and its output was read."""
        if self.status is None or self.reported:
            return b""
        # While no output is read, time does not count.
        if self.ahead >= ROOM_BYTES and not self.unread:
            self.ended_at = time.monotonic()
        rest = b""
        if time.monotonic() > self.ended_at + DRAIN_S:
            for fd in list(self.outputs):  # held by a process that is no descendant
                rest += self.read_output(fd, PIPE_BYTES)  # this program may have stood still
                if fd in self.outputs:
                    self.close_output(fd)
        if self.outputs:
            return b""
        self.reported = True
        return rest + frame(EXIT, self.number, str(self.status).encode())

    def signal(self, numbers: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.control.send(numbers)

    def hang_up(self) -> None:
        """Nobody waits for it any more: make it end."""
        self.to_child.clear()
        self.input_over = self.unread = True
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.control.close()
        if self.child_input >= 0:
            os.close(self.child_input)


class Stdio:
    """The stream over this program's standard input and output."""

    greeting = HELLO

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self.source, self.sink = source, sink
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def register(self, poll: select.poll, writes: bool) -> bool:
        """Whether there is something to read already."""
        poll.register(self.source, select.POLLIN)
        if writes:
            poll.register(self.sink, select.POLLOUT)
        return False

    def read(self) -> bytes | None:
        """What has arrived; None if nothing has, empty at the stream's end."""
        try:
            return os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def write(self, data: bytearray) -> int:
        """How many bytes were taken. Raises OSError once the stream has ended."""
        try:
            return os.write(self.sink, data[:CHUNK_BYTES])
        except BlockingIOError:
            return 0


class RemoteExec:
    """The commands of this node; `serve` runs until the stream is over, and nothing is left.

    alive: the file to touch; "" for none. Raises UnusableError if it cannot be written.
    """

    def __init__(self, stream: Stdio, silence_s: float = SILENCE_S, alive: str = ALIVE) -> None:
        self.stream, self.silence_s = stream, silence_s
        self.alive, self.touched = alive, -BEAT_S
        self.touch()
        self.frames = Frames()
        self.out = bytearray(stream.greeting)
        self.commands: dict[int, Command] = {}
        self.keepers: set[int] = set()
        self.orphans_until = 0.0
        self.clock = ListeningClock()
        self.heard = self.clock.now()
        self.beaten = 0.0
        self.gone_since: float | None = None
        self.told_to_end = False
        self.wake = wake_on_signals()
        for number in ENDING:
            signal.signal(number, self.end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def end(self, *_: object) -> None:
        self.told_to_end = True

    def serve(self) -> None:
        while not self.over():
            self.turn()

    def over(self) -> bool:
        if self.gone_since is None:
            return False
        return not self.commands or time.monotonic() > self.gone_since + GRACE_S + 1.0

    def turn(self) -> None:
        """Wait for events, and handle them."""
        poll, arrived = select.poll(), False
        if self.gone_since is None:
            arrived = self.stream.register(poll, bool(self.out))
        for command in self.commands.values():
            command.register(poll)
        poll.register(self.wake, select.POLLIN)
        ending = (
            self.gone_since is not None
            or time.monotonic() < self.orphans_until
            or any(command.status is not None for command in self.commands.values())
        )
        ready = {fd for fd, _ in poll.poll(0 if arrived else 100 if ending else 500)}
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.told_to_end:
            self.hang_up()
        if self.gone_since is None:
            self.receive()
        for command in list(self.commands.values()):
            self.out += command.turn(ready)
            if command.reported:
                command.close()
                del self.commands[command.number]
        self.reap()
        self.beat()
        self.flush()

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.keepers:
                    self.keepers.remove(pid)
                    if status:
                        self.orphans_until = time.monotonic() + GRACE_S
        if time.monotonic() < self.orphans_until:
            self.kill_orphans()

    def kill_orphans(self) -> None:
        """Kill what a killed keeper has left: this program is its parent now, or becomes it once
        those between have ended."""
        for pid in descendants(os.getpid(), self.keepers):
            kill(pid, signal.SIGKILL)

    def receive(self) -> None:
        data = self.stream.read()
        if data is None:
            return
        if not data:
            self.hang_up()
            return
        self.heard = self.clock.now()
        with contextlib.suppress(UnusableError):  # it could be written, and may be again
            self.touch()
        for kind, number, payload in self.frames.feed(data):
            command = self.commands.get(number)
            if kind == ORDER:
                self.start(number, json.loads(payload))
            elif kind == HANG_UP and number == 0:
                self.hang_up()
            elif command is None:
                continue
            elif kind == DATA:
                command.to_child += payload
            elif kind == END:
                command.input_over = True
            elif kind == SIGNAL:
                command.signal(payload)
            elif kind == TAKEN:
                command.ahead -= int.from_bytes(payload, "big")
            elif kind == HANG_UP:
                command.hang_up()

    def touch(self) -> None:
        """At most once per BEAT_S."""
        if not self.alive or time.monotonic() < self.touched + BEAT_S:
            return
        self.touched = time.monotonic()
        try:
            with open(self.alive, "a"):  # noqa: PTH123  pathlib would cost its import
                os.utime(self.alive)
        except OSError as error:
            folder = os.path.dirname(self.alive)  # noqa: PTH120
            raise UnusableError(
                f"cannot write {self.alive}: {error.strerror}; mount a writable volume, such as an "
                f"emptyDir, at {folder}"
            ) from None

    def start(self, number: int, order: dict[str, object]) -> None:
        try:
            command = self.commands[number] = Command(number, order)
            self.keepers.add(command.keeper)
        except OSError as error:
            why = f"{order.get('where')}: cannot run it: {error.strerror}\n"
            self.out += frame(ERR, number, why.encode()) + frame(EXIT, number, b"125")

    def beat(self) -> None:
        now = time.monotonic()
        if self.gone_since is None and self.clock.now() > self.heard + self.silence_s:
            self.hang_up()
        if self.gone_since is None and now > self.beaten + BEAT_S:
            self.beaten = now
            self.out += frame(BEAT)

    def flush(self) -> None:
        if self.gone_since is not None:
            self.out.clear()
            return
        try:
            while self.out and (written := self.stream.write(self.out)):
                del self.out[:written]
        except OSError:
            self.hang_up()

    def hang_up(self) -> None:
        """The other end is gone: make all commands end."""
        if self.gone_since is None:
            self.gone_since = time.monotonic()
            for command in self.commands.values():
                command.hang_up()


def main() -> None:
    adopt_orphans(b"mnode-node")
    status = 1
    try:
        RemoteExec(Stdio()).serve()
        status = 0
    except UnusableError as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
        status = UNUSABLE
    except BaseException as error:  # the other end reports the last line of a stream that ended
        os.write(2, f"mnode-node: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        kill_all()
        os._exit(status)


if __name__ == "__main__":
    main()
