"""Runs one command on a node for remote_proxy, and ends it with the connection.

Its source is sent over the connection, so the node needs Python but not this package. Frames
arrive on standard input: an order (arguments, variables, directory), then the command's input,
signals and heartbeats. Frames go back on standard output: the command's output, heartbeats and its
exit status. When the input ends, or is silent for longer than the order says, the command's own
input ends, the command gets SIGTERM, and after GRACE_S all its descendants are killed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import time

if __package__:  # on a node, the sources of these modules precede this one
    from pytest_mnode.launchers.remote.command_process import become, descendants, kill
    from pytest_mnode.launchers.remote.wire import (
        BEAT,
        BEAT_S,
        CHUNK_BYTES,
        DATA,
        END,
        ERR,
        EXIT,
        HELLO,
        ORDER,
        OUT,
        ROOM_BYTES,
        SIGNAL,
        SILENCE_S,
        TAKEN,
        Frames,
        frame,
    )
    from pytest_mnode.protocol.listening_clock import ListeningClock

GRACE_S = 6.0
"""Time for a command to end by itself after its input ended; a supervisor takes a second."""
DRAIN_S = 2.0


class RemoteExec:
    """One command on this node; `serve` runs until nothing is left to do."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self.source, self.sink = source, sink
        self.frames = Frames()
        self.out = bytearray(HELLO)
        self.child = 0
        self.status: int | None = None
        self.to_child = bytearray()
        self.child_input = -1
        self.input_over = False
        self.outputs: dict[int, bytes] = {}
        self.clock = ListeningClock()
        self.heard = self.clock.now()
        self.silence_s = SILENCE_S
        self.beaten = 0.0
        self.gone_since: float | None = None
        self.ended_at = 0.0
        self.reported = False
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.hang_up())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def serve(self) -> None:
        while not self.over():
            self.turn()

    def over(self) -> bool:
        now = time.monotonic()
        if self.gone_since is not None:
            # The connection is gone: over when the command has ended, or after GRACE_S.
            return not self.child or self.status is not None or now > self.gone_since + GRACE_S
        return self.reported and not self.out

    def turn(self) -> None:
        """Wait for events, and handle them."""
        poll = select.poll()
        if self.gone_since is None:
            poll.register(self.source, select.POLLIN)
            if self.out:
                poll.register(self.sink, select.POLLOUT)
        if self.to_child and self.child_input >= 0:
            poll.register(self.child_input, select.POLLOUT)
        if len(self.out) < ROOM_BYTES:
            for fd in self.outputs:
                poll.register(fd, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        ending = self.gone_since is not None or self.status is not None
        ready = {fd for fd, _ in poll.poll(100 if ending else 500)}
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.source in ready:
            self.read_source()
        for fd in [fd for fd in self.outputs if fd in ready]:
            self.read_output(fd)
        self.feed_child()
        self.reap()
        self.beat()
        self.flush()

    def read_source(self) -> None:
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return
        self.heard = self.clock.now()
        for kind, payload in self.frames.feed(data):
            if kind == ORDER:
                order = json.loads(payload)
                self.silence_s = order["silence_s"]
                self.start(order)
            elif kind == DATA:
                self.to_child += payload
            elif kind == END:
                self.input_over = True
            elif kind == SIGNAL and self.child and self.status is None:
                kill(self.child, payload[0])

    def start(self, order: dict[str, object]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        parent = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            become(order, [pipes[0][0], pipes[1][1], pipes[2][1]], parent)
        os.close(pipes[0][0])
        self.child_input = pipes[0][1]
        os.set_blocking(self.child_input, False)
        for (reads, writes), kind in ((pipes[1], OUT), (pipes[2], ERR)):
            os.close(writes)
            os.set_blocking(reads, False)
            self.outputs[reads] = kind

    def read_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self.out += frame(self.outputs[fd], data)
        else:
            self.close_output(fd)

    def close_output(self, fd: int) -> None:
        os.close(fd)
        del self.outputs[fd]

    def feed_child(self) -> None:
        if self.child_input < 0:
            self.to_child.clear()
            return
        try:
            while self.to_child:
                taken = os.write(self.child_input, self.to_child[:CHUNK_BYTES])
                del self.to_child[:taken]
                self.out += frame(TAKEN, taken.to_bytes(4, "big"))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self.input_over = True
            self.to_child.clear()
        if self.input_over:
            os.close(self.child_input)
            self.child_input = -1

    def reap(self) -> None:
        """Reap children; once the command has ended, kill its descendants and report its status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.child:
                self.status = os.waitstatus_to_exitcode(status)
                self.ended_at = time.monotonic()
        if self.status is None:
            return
        for pid in descendants(os.getpid()):
            kill(pid, signal.SIGKILL)
        if len(self.out) >= ROOM_BYTES:  # no output is read now: this time does not count
            self.ended_at = time.monotonic()
        if self.outputs and time.monotonic() > self.ended_at + DRAIN_S:
            for fd in list(self.outputs):  # held by a process that is no descendant
                self.close_output(fd)
        if not self.outputs and not self.reported:
            self.reported = True
            self.out += frame(EXIT, str(self.status).encode())

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
            while self.out:
                del self.out[: os.write(self.sink, self.out[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self.hang_up()

    def hang_up(self) -> None:
        """The proxy is gone: make the command end."""
        if self.gone_since is not None:
            return
        self.gone_since = time.monotonic()
        self.out.clear()
        self.to_child.clear()
        self.input_over = True
        if self.child and self.status is None:
            kill(self.child, signal.SIGTERM)


def main() -> None:
    """Serve. Orphaned descendants become children of this process, so that none escapes."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    ctypes.CDLL(None).prctl(15, b"mnode-exec", 0, 0, 0)  # PR_SET_NAME
    status = 1
    try:
        RemoteExec().serve()
        status = 0
    except BaseException as error:  # the proxy reports the last line of a connection that ended
        os.write(2, f"mnode-exec: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        limit = time.monotonic() + 5.0
        while (left := descendants(os.getpid())) and time.monotonic() < limit:
            for pid in left:
                kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                break
            time.sleep(0.005)
        os._exit(status)


if __name__ == "__main__":
    main()
