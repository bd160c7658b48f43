"""The terminal of a debugged rank, held outside of the rank."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Callable, Iterator
from typing import Any

from pytest_mnode import processes
from pytest_mnode.protocol.messages import DebuggerAnswer, OpenTerminal, TerminalData

_INTERRUPT = b"\x03"
_LOCAL_FLAGS, _OUTPUT_FLAGS = 3, 1
_CHUNK_BYTES = 1 << 16


class Terminal:
    """A pseudo-terminal, or two pipes if the user's input is no terminal and ends by itself.

    The rank opens `reads` and `writes`, /proc paths of this process's descriptors, because it did
    not inherit the descriptors and a node's file system may lack the names of pseudo-terminals.
    """

    def __init__(self, order: OpenTerminal, pid: int) -> None:
        """Open the terminal. Raises OSError if the node has no pseudo-terminals."""
        self.order = order
        self._pid = pid
        self._typed = bytearray()
        self._ended = False
        self._is_tty = order.size is not None
        if order.size is not None:
            self._ours, self._theirs = os.openpty()
            attributes = termios.tcgetattr(self._theirs)
            attributes[_OUTPUT_FLAGS] &= ~termios.OPOST  # the user's terminal processes output
            # The kernel handles a Ctrl-C some time after it was written, and without NOFLSH would
            # then drop output that the rank has written since, such as its prompt.
            attributes[_LOCAL_FLAGS] |= termios.NOFLSH
            termios.tcsetattr(self._theirs, termios.TCSANOW, attributes)
            termios.tcsetwinsize(self._theirs, order.size)
            self.output = self._input = self._ours
            ends = self._theirs, self._theirs
            self._open = {self._ours, self._theirs}
        else:
            theirs_in, self._input = os.pipe()
            self.output, theirs_out = os.pipe()
            ends = theirs_in, theirs_out
            self._open = {theirs_in, self._input, self.output, theirs_out}
        os.set_blocking(self._input, False)
        os.set_blocking(self.output, False)
        self.reads, self.writes = (f"/proc/{os.getpid()}/fd/{fd}" for fd in ends)

    @property
    def has_input(self) -> bool:
        """Whether input is left that the rank's buffer had no room for."""
        return bool(self._typed)

    def type(self, data: bytes) -> None:
        """Forward input; b"" is its end. A Ctrl-C interrupts the rank as in its own terminal."""
        interrupts = self._is_tty and _INTERRUPT in data and self._interrupts()
        if interrupts:
            self._typed.clear()
            termios.tcflush(self._theirs, termios.TCIFLUSH)
            data = data[data.rindex(_INTERRUPT) :]
        self._typed += data
        self._ended = self._ended or not data
        self.pass_on()
        if interrupts:
            processes.kill(self._pid, signal.SIGINT)

    def _interrupts(self) -> bool:
        """Whether Ctrl-C sends SIGINT: False if a program of the rank reads it as a key."""
        return bool(termios.tcgetattr(self._theirs)[_LOCAL_FLAGS] & termios.ISIG)

    def pass_on(self) -> None:
        """Write as much input as the rank's buffer has room for."""
        with contextlib.suppress(BlockingIOError):
            while self._typed:
                del self._typed[: os.write(self._input, self._typed)]
        if self._ended and not self._typed and not self._is_tty and self._input in self._open:
            self._open.discard(self._input)
            os.close(self._input)

    def read(self) -> Iterator[bytes]:
        """Output that the rank wrote since the last call."""
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.output, _CHUNK_BYTES):
                yield data

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)
        self._open.clear()


class TerminalHolder:
    """Holds the terminal of the debugged rank of a world's part, if any."""

    def __init__(self, poll: select.poll, send: Callable[[Any], None]) -> None:
        """poll: where the output descriptor is registered. send: sends to the test's client."""
        self._poll, self._send = poll, send
        self._held: Terminal | None = None

    @property
    def has_input(self) -> bool:
        return self._held is not None and self._held.has_input

    def obey(self, order: OpenTerminal | TerminalData, pid: int | None) -> None:
        """Carry out an order. pid: the rank's pid, None if the rank has died."""
        match order:
            case OpenTerminal() if pid is not None:
                self._open_for(order, pid)
            case TerminalData(data=None):
                self.close(order.rank)
            case TerminalData(data=bytes(data)) if self._held is not None:
                self._held.type(data)

    def _open_for(self, order: OpenTerminal, pid: int) -> None:
        self._drop()  # an earlier terminal that nobody waits for any more
        try:
            held = self._held = Terminal(order, pid)
        except OSError as error:
            why = f"no pseudo-terminal on {order.node}: {error.strerror}"
            self._send(DebuggerAnswer(order.world, order.rank, error=why))
            return
        self._poll.register(held.output, select.POLLIN)
        place = order.world, order.rank
        self._send(DebuggerAnswer(*place, held.reads, held.writes, order.term))

    def pass_on(self) -> None:
        """Forward the user's input and the rank's output."""
        if (held := self._held) is not None:
            held.pass_on()
            for data in held.read():
                self._send_data(held.order, data)

    def close(self, rank: int) -> None:
        """Close this rank's terminal, if it is the one held."""
        held = self._held
        if held is None or held.order.rank != rank:
            return
        self.pass_on()
        self._drop()
        self._send_data(held.order, None)

    def _send_data(self, order: OpenTerminal, data: bytes | None) -> None:
        self._send(TerminalData(order.node, order.world, order.rank, data))

    def _drop(self) -> None:
        if self._held is not None:
            self._poll.unregister(self._held.output)
            self._held.close()
            self._held = None
