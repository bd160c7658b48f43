"""The terminal that is held for a rank, with a small program in place of the rank."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_mnode.agent.terminal import TerminalHolder
from pytest_mnode.protocol.messages import DebuggerAnswer, OpenTerminal, TerminalData
from tests.waiting import until

PLACE = ("node0", "w1", 3)
CLOSE = TerminalData(*PLACE, None)
PROGRAM = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_RDONLY | os.O_NOCTTY), 0)
for fd in (1, 2):
    os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_NOCTTY), fd)
print("size", tuple(os.get_terminal_size(1)) if os.isatty(1) else None, flush=True)
while True:
    try:
        print("read", repr(input("> ")), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except EOFError:
        print("end", flush=True)
        break
"""
LIMIT_S = 20


class Held:
    """A terminal holder, and its messages about a program in its terminal."""

    def __init__(self, size: tuple[int, int] | None) -> None:
        self.poll = select.poll()
        self.sent: list[Any] = []
        self.holder = TerminalHolder(self.poll, self.sent.append)
        # The program waits for the paths: its pid is needed before the paths are known.
        start = "import sys; sys.argv[1:] = sys.stdin.readline().split(); " + f"exec({PROGRAM!r})"
        self.program = subprocess.Popen(
            [sys.executable, "-c", start], stdin=subprocess.PIPE, text=True
        )
        self.holder.obey(OpenTerminal(*PLACE, size), self.program.pid)
        [opened] = self.sent
        assert isinstance(opened, DebuggerAnswer)
        assert not opened.error
        assert self.program.stdin is not None
        self.program.stdin.write(f"{opened.reads} {opened.writes}\n")
        self.program.stdin.flush()

    @property
    def output(self) -> str:
        return b"".join(m.data or b"" for m in self.sent if isinstance(m, TerminalData)).decode()

    def type(self, data: bytes) -> None:
        self.holder.obey(TerminalData(*PLACE, data), self.program.pid)

    def until(self, text: str) -> None:
        end = time.monotonic() + LIMIT_S
        while text not in self.output:
            assert time.monotonic() < end, self.output
            self.poll.poll(50)
            self.holder.pass_on()

    def until_it_reads(self) -> None:
        """A signal between its prompt and its read is noticed only after the read."""
        stat = Path(f"/proc/{self.program.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", self.output)


@contextmanager
def held(size: tuple[int, int] | None) -> Iterator[Held]:
    it = Held(size)
    try:
        yield it
    finally:
        it.program.kill()
        it.program.communicate()
        it.holder.obey(CLOSE, None)


def test_a_terminal_with_its_keys() -> None:
    with held((33, 111)) as it:
        it.until("size (111, 33)\n> ")
        it.type(b"one\r")
        it.until("read 'one'\n> ")
        it.until_it_reads()
        it.type(b"unfinished\x03")
        it.until("interrupted\n> ")
        it.type(b"x" * 3000 + b"\r")
        it.until(f"read '{'x' * 3000}'\n> ")
        it.type(b"\x04")
        it.until("end\n")


def test_pipes_that_end() -> None:
    with held(None) as it:
        it.until("size None\n> ")
        it.type(b"one\n" + b"x" * 100_000 + b"\n")
        it.until(f"read 'one'\n> read '{'x' * 100_000}'\n> ")
        it.type(b"")
        it.until("end\n")
        assert not it.holder.has_input


def test_a_terminal_is_closed_after_all_output() -> None:
    with held(None) as it:
        it.until("> ")
        it.type(b"last\n")
        it.type(b"")
        it.program.wait(LIMIT_S)
        it.holder.obey(TerminalData(PLACE[0], PLACE[1], 2, None), None)  # of another rank
        assert it.sent[-1] != CLOSE
        it.holder.obey(CLOSE, None)
        assert it.output.endswith("read 'last'\n> end\n")
        assert it.sent[-1] == CLOSE


def test_a_rank_that_died_before_gets_no_terminal() -> None:
    sent: list[Any] = []
    TerminalHolder(select.poll(), sent.append).obey(OpenTerminal(*PLACE, None), None)
    assert sent == []
