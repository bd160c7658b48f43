"""The debugger of one rank in the user's terminal."""

from __future__ import annotations

import codecs
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable
from typing import Any

from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.protocol.messages import (
    Call,
    DebuggerAnswer,
    OpenTerminal,
    TerminalData,
    WorldInfo,
)

_TURN_S = 0.02
"""Interval at which keys are forwarded."""
_ANSWER_LIMIT_S = 10.0
"""Limit for a terminal to open or to close."""
_CHUNK_BYTES = 4096
_INTERRUPT = b"\x03"
_OUTPUT_FLAGS = 1
_NO_TERMINAL = (
    "a rank cannot be debugged with pytest-xdist, whose workers have no terminal; "
    "try using -n0 or -nno"
)
_NO_INPUT = "a rank cannot be debugged: pytest has no standard input here; start it with one"

Hear = Callable[[Any], bool]
"""Handles messages that do not concern the terminal; True if the debugged rank is gone."""


class DebuggerSession:
    """Chooses the debugged rank of a test and connects it to the user's terminal."""

    def __init__(self, client: Client, world: WorldInfo, console: Console | None) -> None:
        self._client, self._world, self._console = client, world, console
        self._chosen: int | None = None if console is None else console.debug_rank
        self._told = False
        self._asks_again = False
        """The debugged rank reached its next breakpoint while its terminal was being closed."""

    def attach(self, rank: int, hear: Hear) -> bool:
        """Answer a rank's request; if it is the debugged rank, return when the user continues it.

        Returns whether the user ends the run.
        """
        console = self._console
        if console is None or console.is_worker or sys.__stdin__ is None:
            self._answer(rank, _NO_INPUT if sys.__stdin__ is None else _NO_TERMINAL)
            return False
        size = self._world.shape.size
        if self._chosen is not None and self._chosen >= size and not self._told:
            self._told = True
            most = f"this test has the ranks 0 to {size - 1}, and none is debugged"
            console.show([f"mnode: --mnode-debug-rank={self._chosen}: {most}"])
        if self._chosen not in (None, rank):
            self._answer(rank)
            return False
        self._chosen = rank
        with console.uncaptured(with_input=True), Keyboard() as keyboard:
            self._asks_again = True
            try:
                while self._asks_again:
                    self._asks_again = False
                    quits = self._talk(rank, hear, keyboard, console)
            finally:
                console.leave_debugger()
        return quits

    def _answer(self, rank: int, error: str = "") -> None:
        """Answer without a terminal. error: see DebuggerAnswer."""
        self._pass_on(DebuggerAnswer(self._world.id, rank, error=error))

    def _pass_on(self, answer: DebuggerAnswer) -> None:
        self._client.tell_rank(self._world, answer.rank, Call(0, "debug", (answer,)))

    def _talk(self, asks: int, hear: Hear, keyboard: Keyboard, console: Console) -> bool:
        place = self._world.node_of(asks), self._world.id, asks
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._client.tell("order", OpenTerminal(*place, keyboard.size, keyboard.term))
        limit: float | None = time.monotonic() + _ANSWER_LIMIT_S
        opened = quits = False
        while limit is None or time.monotonic() < limit:
            match message := self._client.next_message(_TURN_S):
                case None:
                    pass
                case Call(method="debug", args=(rank,)) if rank == asks:
                    self._asks_again = True  # requested before its last terminal was closed
                case DebuggerAnswer(rank=rank) | TerminalData(rank=rank) if rank != asks:
                    pass  # from an earlier, abandoned session
                case DebuggerAnswer(error=error):
                    self._pass_on(message)
                    if error:
                        return False
                    opened, limit = True, None
                case TerminalData(data=None):
                    return quits
                case TerminalData(data=bytes(data)):
                    keyboard.heard_of_rank()
                    console.show_debugger(decode(data))
                case Call(method="debugger_left", args=(_, quits)):
                    self._client.tell("order", TerminalData(*place, None))
                    limit = time.monotonic() + _ANSWER_LIMIT_S
                case _ if hear(message):
                    return False
            if opened and (typed := keyboard.read()) is not None:
                self._client.tell("order", TerminalData(*place, typed))
        if not opened:
            why = f"{place[0]} opened no terminal within {_ANSWER_LIMIT_S:g} s"
            self._answer(asks, why)
        return quits


class Keyboard:
    """The user's input, key by key if it is a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._interrupted = self._ended = False
        self.size: tuple[int, int] | None = None
        self.term = ""

    def __enter__(self) -> Keyboard:
        if os.isatty(self._fd):
            self._before = termios.tcgetattr(self._fd)
            self.size = termios.tcgetwinsize(self._fd)
            self.term = os.environ.get("TERM", "dumb")
            tty.setraw(self._fd, termios.TCSADRAIN)
            raw = termios.tcgetattr(self._fd)
            raw[_OUTPUT_FLAGS] = self._before[_OUTPUT_FLAGS]
            termios.tcsetattr(self._fd, termios.TCSADRAIN, raw)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def heard_of_rank(self) -> None:
        """Note that the rank wrote output, so it is not stuck."""
        self._interrupted = False

    def read(self) -> bytes | None:
        """Input typed since the last call, None if there is none; b"" is the end of the input.

        Raises KeyboardInterrupt at a second Ctrl-C if the rank did not react to the first.
        """
        if self._ended or not select.select([self._fd], [], [], 0)[0]:
            return None
        data = os.read(self._fd, _CHUNK_BYTES)
        self._ended = not data
        if self._before is not None and _INTERRUPT in data:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        return data
