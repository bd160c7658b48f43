"""Local process that represents a command on a node: `remote_proxy.py CONFIG HOST COMMAND…`.

Run by its path, without site-packages. CONFIG is a file with a command for each node
(bootstrap.config). The command gets its variables (launchers.node_env), the caller's working
directory and standard streams over the connection, never in an argument list. The exit status is
the command's, or 128 + signal; 255, with one line on standard error, if the node was not reached or
the connection lost.
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
from pytest_mnode.launchers.remote import bootstrap, wire
from pytest_mnode.launchers.remote.bridged import Bridged
from pytest_mnode.launchers.remote.node_command import as_sent
from pytest_mnode.machine import pidfd
from pytest_mnode.protocol.listening_clock import ListeningClock

LOST = 255
_NUMBER = 1
"""Of the only command on the connection."""
STATUS_S = 2.0
"""Time until ssh has ended, after its connection has."""
ATOMIC_BYTES = 4096
"""A pipe that is ready for writing takes this many bytes without blocking (PIPE_BUF)."""
PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class RemoteProxy:
    """One command on a node; `serve` returns its exit status.

    start_s: limit for shell and interpreter to start on an open connection; late: why they may not
    start in time. silence_s: how long the node may send nothing afterwards.
    """

    start_s = 60.0
    late = "its Python is slow to start, or hangs"
    silence_s = wire.SILENCE_S

    def __init__(
        self,
        ssh: subprocess.Popen[bytes] | Bridged,
        daemon: int | None,
        first: bytes,
    ) -> None:
        assert ssh.stdin is not None
        assert ssh.stdout is not None
        assert ssh.stderr is not None
        self.ssh = ssh
        self.to_node, self.from_node = ssh.stdin.fileno(), ssh.stdout.fileno()
        self.errors = ssh.stderr.fileno()
        self.daemon = daemon
        self.frames = wire.Frames()
        self.greeting = b""
        self.greeted = False
        self.sent = bytearray(first)
        self.printed_bytes = bytearray()
        self.shown: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.input_open = True
        self.ahead = 0
        self.status: int | None = None
        self.lost = ""
        self.clock = ListeningClock()
        self.heard = self.clock.now()
        self.beaten = time.monotonic()
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.to_node, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in PASSED_ON:
            signal.signal(number, self.pass_on)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def pass_on(self, number: int, _: object) -> None:
        self.sent += wire.frame(wire.SIGNAL, _NUMBER, bytes([number]))

    def serve(self) -> int:
        """Relay until the command has ended, or the connection has."""
        while not (self.status is not None and not any(self.shown.values())) and not self.lost:
            self.turn()
        return LOST if self.lost else self.status or 0

    def turn(self) -> None:
        """Wait for events, and handle them."""
        full = any(len(data) > wire.ROOM_BYTES for data in self.shown.values())
        ready = self.ready(full)
        if self.daemon in ready:
            self.lost = "the run that started this command is over"
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.errors in ready:
            self.read_errors()
        if self.from_node in ready:
            self.read_node()
        if 0 in ready:
            self.read_input()
        for fd in ready & {1, 2}:
            self.show(fd)
        self.beat(full)
        self.send()

    def ready(self, full: bool) -> set[int]:
        """Descriptors ready for reading or writing. full: no more output can be shown now."""
        poll = select.poll()
        if self.sent:
            poll.register(self.to_node, select.POLLOUT)
        elif self.input_open and self.greeted and self.ahead < wire.ROOM_BYTES:
            poll.register(0, select.POLLIN)
        if not full and self.status is None:
            poll.register(self.from_node, select.POLLIN)
        if self.errors >= 0:
            poll.register(self.errors, select.POLLIN)
        for fd, data in self.shown.items():
            if data:
                poll.register(fd, select.POLLOUT)
        poll.register(self.wake, select.POLLIN)
        if self.daemon is not None:
            poll.register(self.daemon, select.POLLIN)
        return {fd for fd, _ in poll.poll(500)}

    def read_errors(self) -> None:
        data = os.read(self.errors, wire.CHUNK_BYTES)
        self.printed_bytes += data
        del self.printed_bytes[:-8192]
        if not data:
            self.errors = -1

    def read_all_errors(self) -> None:
        """Read everything that has arrived on standard error."""
        while self.errors >= 0 and select.select([self.errors], [], [], 0)[0]:
            self.read_errors()

    def read_node(self) -> None:
        data = os.read(self.from_node, wire.CHUNK_BYTES)
        if not data:
            if self.status is None:
                self.ended()
            return
        self.heard = self.clock.now()
        if not self.greeted:
            self.greeting += data
            _, hello, data = self.greeting.partition(wire.HELLO)
            if not hello:
                return
            self.greeted = True
            self.read_all_errors()
            self.printed_bytes.clear()  # a login shell's output explains no later loss
        for kind, _, payload in self.frames.feed(data):
            if kind == wire.OUT:
                self.shown[1] += payload
            elif kind == wire.ERR:
                self.shown[2] += payload
            elif kind == wire.TAKEN:
                self.ahead -= int.from_bytes(payload, "big")
            elif kind == wire.EXIT:
                code = int(payload)
                self.status = code if code >= 0 else 128 - code

    def read_input(self) -> None:
        try:
            data = os.read(0, wire.CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            self.ahead += len(data)
            self.sent += wire.frame(wire.DATA, _NUMBER, data)
        else:
            self.input_open = False
            self.sent += wire.frame(wire.END, _NUMBER)

    def show(self, fd: int) -> None:
        try:
            count = os.write(fd, self.shown[fd][:ATOMIC_BYTES])
        except OSError:  # the reader is gone
            count = len(self.shown[fd])
        del self.shown[fd][:count]
        self.sent += wire.taken(_NUMBER, count)

    def beat(self, full: bool) -> None:
        now, listened = time.monotonic(), self.clock.now()
        if full:
            self.heard = listened  # the node is not read while the caller is slow
        limit = self.silence_s if self.greeted else self.start_s
        if self.status is None and listened > self.heard + limit:
            self.lost = why_given_up(limit, self.printed(), self.greeted, self.late)
        if self.greeted and now > self.beaten + wire.BEAT_S and len(self.sent) < wire.ROOM_BYTES:
            self.beaten = now
            self.sent += wire.frame(wire.BEAT)

    def send(self) -> None:
        try:
            while self.sent:
                del self.sent[: os.write(self.to_node, self.sent[: wire.CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # the program ended; `read_node` finds out how
            self.sent.clear()

    def end(self) -> None:
        """Let the node's program end, before the connection does."""
        self.sent += wire.frame(wire.HANG_UP)
        self.send()
        end = time.monotonic() + STATUS_S
        while (left_s := end - time.monotonic()) > 0:
            ready = select.select([self.from_node], [], [], left_s)[0]
            if ready and not os.read(self.from_node, wire.CHUNK_BYTES):
                return

    def ended(self) -> None:
        """The connection ended before the command did."""
        try:
            code: int | None = self.ssh.wait(STATUS_S)
        except subprocess.TimeoutExpired:
            code = None
        self.read_all_errors()
        self.lost = why_it_ended(code, self.printed(), self.greeted)

    def printed(self) -> list[str]:
        """Lines that ssh printed, and that the node printed before remote_exec ran."""
        first = b"" if self.greeted else self.greeting
        return (first + b"\n" + bytes(self.printed_bytes)).decode(errors="replace").splitlines()


def why_it_ended(code: int | None, printed: Sequence[str], greeted: bool) -> str:
    """Why ssh or srun ended before the command did, from its status and the lines it printed.

    greeted: whether remote_exec ran on the node.
    """
    last = _last(printed)
    if (step := _slurm_message(printed)) is not None:
        return step
    if last.startswith("srun: "):  # then the status is not a command's
        return last.replace("error: ", "", 1)
    if greeted:
        return f"the connection was lost{': ' * bool(last)}{last}"
    if code == 255:
        return last or "ssh ended and printed nothing"
    how = f"status {code}" if code is not None else "no status"
    return f"Python did not start on the node ({how}{': ' * bool(last)}{last})"


def why_given_up(limit_s: float, printed: Sequence[str], greeted: bool, late: str) -> str:
    """The reason to give up a node that sent nothing for `limit_s` seconds."""
    if greeted:
        return f"the connection was lost: no data for {limit_s:g} s"
    last = _last(printed)
    printed_last = f" ({last})" if last else ""
    remedy = "raise --mnode-start-limit if it is slow"
    return f"no answer within {limit_s:g} s{printed_last}: {late}; {remedy}"


def _slurm_message(printed: Sequence[str]) -> str | None:
    """slurmstepd's message about the end of a step: srun prints less, and later."""
    for line in printed:
        program, _, text = line.strip().partition(": error: ")
        if not program.startswith("slurmstepd"):  # from 23.11 on, the node's name follows
            continue
        if text.startswith("execve(): "):
            return f"Python did not start on the node ({text})"
        if text.startswith("*** "):
            return f"Slurm says {text.strip('* ')}"
    return None


def _last(printed: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(printed) if line.strip()), "")


def over(node: str) -> int:
    sys.stderr.write(f"{node}: the run that made this command is over\n")
    return LOST


def main(arguments: Sequence[str]) -> int:
    config, node, *argv = arguments
    try:
        settings = json.loads(Path(config).read_text())
        command = settings["commands"][node]
    except (OSError, ValueError, KeyError):
        return over(node)
    try:
        daemon = pidfd.pidfd_open(settings["daemon"]) if settings["daemon"] else None
    except ProcessLookupError:
        return over(node)
    except OSError as error:
        sys.stderr.write(f"{node}: {error.filename} on this machine: {error.strerror}\n")
        return LOST
    bootstrap.give_back_files(settings.get("open_files"))
    silence_s = settings.get("silence_s", wire.SILENCE_S)
    order = bootstrap.order(
        node,
        [as_sent(word) for word in argv],
        as_sent(bootstrap.directory()),
        bootstrap.variables(os.environ),
        bootstrap.variables(bootstrap.inherited_from(settings["daemon"])),
    )
    first = bootstrap.source(silence_s) + wire.frame(wire.ORDER, _NUMBER, order)
    bridge = settings.get("bridge")
    running = Bridged(bridge, node, command) if bridge else child.start(command, PIPE, PIPE, PIPE)
    proxy = RemoteProxy(running, daemon, first)
    proxy.start_s = settings.get("start_s", proxy.start_s)
    proxy.late = settings.get("late", proxy.late)
    proxy.silence_s = silence_s
    status = proxy.serve()
    if not proxy.lost:
        proxy.end()
    else:
        sys.stderr.write(f"{node}: {proxy.lost}\n")
        sys.stderr.flush()
    proxy.ssh.kill()  # not its group: srun's own child process ends the step
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
