"""pytest's own debugger in a rank, on the controller's terminal.

Every entry (`breakpoint()`, `pdb.set_trace()`, `pytest.set_trace()`, --trace, --pdb) calls
`pytestPDB._init_pdb`. It is replaced here by a function that first requests the debugger from the
controller, which chooses one rank. The other ranks continue, and wait in their next collective.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.debugging import pytestPDB

from pytest_mnode.options import setting
from pytest_mnode.protocol.messages import DebuggerAnswer, PhaseReport
from pytest_mnode.rank.rank import Rank


def is_asked_for(config: pytest.Config) -> bool:
    """Whether an option of the user starts the debugger, and not only a test."""
    options = [config.getoption(name, False) for name in ("usepdb", "trace")]
    return any(options) or setting(config, "debug_rank") is not None


class _NotDebugged:
    """Replaces the debugger in ranks that are not debugged."""

    def set_trace(self, frame: object) -> None:
        """Continue."""

    def runcall(self, function: Callable[[], object]) -> object:
        return function()


def install(current: Callable[[], Debugger | None]) -> None:
    """Replace pytest's entry to the debugger in this process and in processes forked from it.

    current: returns the debugger of this process; None in a fork server, which is not a rank.
    """
    enter: Any = pytestPDB._init_pdb

    def init_pdb(method: str, *args: Any, **kwargs: Any) -> Any:
        debugger = current()
        if debugger is None or not debugger.attach():
            return _NotDebugged()
        pdb = enter(method, *args, **kwargs)
        debugger.adopt(pdb)
        return pdb

    pytestPDB._init_pdb = staticmethod(init_pdb)  # type: ignore[method-assign]


class Debugger:
    """The debugger of one rank; attached while the user's terminal belongs to the rank."""

    def __init__(self, config: pytest.Config, rank: Rank) -> None:
        self._config, self._rank = config, rank
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        self._refused_in = -1
        self._pdb: Any = None
        self._saved: tuple[list[int], tuple[Any, ...]] | None = None

    def attach(self) -> bool:
        """Connect to the user's terminal if this rank is the debugged one; returns whether it is.

        Raises pytest's Failed if there is no terminal.
        """
        rank = self._rank
        if self._saved is not None:
            return True
        if rank.is_child or self._refused_in == rank.ordinal:
            return False
        rank.groups.wait_longer()
        rank.tell("debug")
        answer: DebuggerAnswer = rank.receive("debug").args[0]
        if answer.error:
            pytest.fail(answer.error, pytrace=False)
        if not answer.reads:
            self._refused_in = rank.ordinal
            return False
        self._take(answer)
        return True

    def _take(self, answer: DebuggerAnswer) -> None:
        if self._capture:
            self._capture.suspend(in_=True)
        streams = sys.stdin, sys.stdout, sys.stderr
        for stream in streams[1:]:
            stream.flush()
        self._saved = [os.dup(fd) for fd in (0, 1, 2)], streams
        reads = os.open(answer.reads, os.O_RDWR | os.O_NOCTTY if answer.term else os.O_RDONLY)
        writes = os.open(answer.writes, os.O_WRONLY | os.O_NOCTTY)
        for fd, ours in ((reads, 0), (writes, 1), (writes, 2)):
            os.dup2(fd, ours)
        os.close(reads)
        os.close(writes)
        os.environ["TERM"] = answer.term or "dumb"
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", 1, closefd=False) for fd in (1, 2))

    def adopt(self, pdb: Any) -> None:
        """Name the rank in the prompt, and attach again at each breakpoint of `pdb`."""
        self._pdb = pdb
        world, setup = self._rank.world, pdb.setup
        place = f"rank {world.rank} of {world.size} on {world.node}"
        with contextlib.suppress(AttributeError):  # some debuggers draw their own prompt
            name = pdb.prompt.strip().strip("()")
            pdb.prompt = f"({name} {place}) "

        def attached(*args: Any, **kwargs: Any) -> Any:
            self.attach()
            return setup(*args, **kwargs)

        pdb.setup = attached

    def post_mortem(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        report: Any,
        held: Iterable[PhaseReport],
    ) -> None:
        """Under --pdb: send the held reports, show the failure and start the debugger there."""
        for message in held:
            self._rank.tell("report", message)
        if not self.attach():
            return
        terminal = create_terminal_writer(self._config, sys.stdout)
        terminal.line()
        terminal.sep(">", "traceback")
        for name, text in report.sections:
            terminal.sep(">", name)
            terminal.line(text.rstrip())
        report.toterminal(terminal)
        terminal.sep(">", "entering PDB")
        enter: Any = pytestPDB._init_pdb
        pdb = enter("post_mortem")
        pdb.reset()
        pdb.interaction(None, excinfo.value if sys.version_info >= (3, 13) else excinfo.tb)
        if pdb.quitting:
            pytest.exit("Quitting debugger")
        self.leave()

    def leave(self, error: BaseException | None = None) -> bool:
        """Give the terminal back, if attached; whether `error` then ends the run, as the user's
        quit does."""
        if self._saved is None:
            return False
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if self._capture:
            self._capture.suspend(in_=True)
        (fds, streams), self._saved = self._saved, None
        sys.stdin, sys.stdout, sys.stderr = streams
        for ours, fd in enumerate(fds):
            os.dup2(fd, ours)
            os.close(fd)
        if self._capture:
            self._capture.resume()
        quits = isinstance(error, pytest.exit.Exception)
        self._rank.tell("debugger_left", quits)
        return quits

    def end(self) -> None:
        """End the debugger with the test or phase, whose code can no longer be stepped through."""
        if self._pdb is not None:
            self._pdb.clear_all_breaks()
            self._pdb.set_continue()
            self._pdb = None
        self.leave()
