"""The debugged rank, and its terminal, with scripted ranks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mnode.controller import debugging
from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.controller.debugging import DebuggerSession
from pytest_mnode.protocol.messages import (
    Call,
    Death,
    DebuggerAnswer,
    OpenTerminal,
    Shape,
    TerminalData,
    WorldInfo,
)

WORLD = WorldInfo("w1", Shape(2, 2), ("node0", "node1"))
ASK = Call(7, "debug", (2,))
PLACE = "node1", "w1", 2
OPENED = DebuggerAnswer("w1", 2, "in", "out")
CLOSED = TerminalData(*PLACE, None)
ENDED: list[Any] = [Call(7, "debugger_left", (2, False)), CLOSED]


class Stage:
    """A client, a console, and the messages to them."""

    is_worker = False
    debug_rank: int | None = None

    def __init__(self, *inbox: Any) -> None:
        self.inbox = deque(inbox)
        self.sent: list[Any] = []
        self.answers: list[tuple[int, DebuggerAnswer]] = []
        self.shown: list[str] = []
        self.heard: list[Any] = []

    def tell(self, method: str, message: Any) -> None:
        assert method == "order"
        self.sent.append(message)

    def tell_rank(self, world: WorldInfo, rank: int, call: Call) -> None:
        self.answers.append((rank, *call.args))

    def next_message(self, timeout_s: float) -> Any:
        return self.inbox.popleft() if self.inbox else None

    def show(self, lines: list[str]) -> None:
        self.shown += lines

    def show_debugger(self, text: str) -> None:
        sys.stdout.write(text)

    def leave_debugger(self) -> None:
        self.shown.append("left")

    @contextlib.contextmanager
    def uncaptured(self, with_input: bool) -> Iterator[None]:
        assert with_input
        yield

    def hear(self, message: Any) -> bool:
        self.heard.append(message)
        return isinstance(message, Death)

    @property
    def session(self) -> DebuggerSession:
        return DebuggerSession(cast(Client, self), WORLD, cast(Console, self))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The writing end of the user's input, which is no terminal."""
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield write
    with contextlib.suppress(OSError):
        os.close(write)


def test_a_debugging_session(keys: int, capsys: pytest.CaptureFixture[str]) -> None:
    os.write(keys, b"p 1\n")
    output = [TerminalData(*PLACE, data) for data in ("é".encode()[:1], "é\n".encode()[1:])]
    stage = Stage(OPENED, *output, Call(7, "body_done", (0, ())), *ENDED)
    assert not stage.session.attach(2, stage.hear)
    assert stage.answers == [(2, OPENED)]
    assert stage.sent == [OpenTerminal(*PLACE), TerminalData(*PLACE, b"p 1\n"), CLOSED]
    assert capsys.readouterr().out == "é\n"
    assert stage.heard == [Call(7, "body_done", (0, ()))]


def test_the_end_of_input_is_passed_on_once_in_a_session(keys: int) -> None:
    os.close(keys)
    stage = Stage(OPENED, None, None, *ENDED, OPENED, *ENDED)
    session = stage.session
    session.attach(2, stage.hear)
    session.attach(2, stage.hear)
    assert [m.data for m in stage.sent if isinstance(m, TerminalData)] == [b"", None, b"", None]


def test_quitting_ends_the_session() -> None:
    stage = Stage(OPENED, Call(7, "debugger_left", (2, True)), CLOSED)
    assert stage.session.attach(2, stage.hear)


def test_the_next_breakpoint_comes_before_the_terminal_is_closed() -> None:
    stage = Stage(OPENED, ENDED[0], ASK, ENDED[1], OPENED, *ENDED)
    stage.session.attach(2, stage.hear)
    assert stage.answers == [(2, OPENED)] * 2
    assert stage.sent == [OpenTerminal(*PLACE), CLOSED] * 2
    assert not stage.heard
    assert not stage.inbox


def test_the_first_rank_at_a_breakpoint_is_debugged() -> None:
    stage = Stage(OPENED, *ENDED)
    session = stage.session
    session.attach(2, stage.hear)
    assert not session.attach(0, stage.hear)
    assert stage.answers[-1] == (0, DebuggerAnswer("w1", 0))


def test_the_chosen_rank_is_debugged() -> None:
    stage = Stage(OPENED, *ENDED)
    stage.debug_rank = 2
    session = stage.session
    session.attach(0, stage.hear)
    session.attach(2, stage.hear)
    assert stage.answers == [(0, DebuggerAnswer("w1", 0)), (2, OPENED)]


def test_a_chosen_rank_that_does_not_exist() -> None:
    stage = Stage()
    stage.debug_rank = 4
    session = stage.session
    for rank in range(4):
        assert not session.attach(rank, stage.hear)
    assert stage.shown == [
        "mnode: --mnode-debug-rank=4: this test has the ranks 0 to 3, and none is debugged"
    ]
    assert not any(answer.reads or answer.error for _, answer in stage.answers)


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.is_worker = True
    stage.session.attach(2, stage.hear)
    assert "cannot be debugged with pytest-xdist" in stage.answers[0][1].error
    with monkeypatch.context() as patch:
        patch.setattr(sys, "__stdin__", None)
        stage = Stage()
        stage.session.attach(2, stage.hear)
        assert stage.answers[0][1].error.startswith("a rank cannot be debugged: pytest has no st")
    stage = Stage(DebuggerAnswer("w1", 2, error="no pseudo-terminal on node1: No such file"))
    stage.session.attach(2, stage.hear)
    assert stage.answers == [
        (2, DebuggerAnswer("w1", 2, error="no pseudo-terminal on node1: No such file"))
    ]
    monkeypatch.setattr(debugging, "_ANSWER_LIMIT_S", 0.05)
    stage = Stage()
    stage.session.attach(2, stage.hear)
    assert stage.answers == [
        (2, DebuggerAnswer("w1", 2, error="node1 opened no terminal within 0.05 s"))
    ]


def test_a_terminal_that_is_never_closed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugging, "_ANSWER_LIMIT_S", 0.05)
    stage = Stage(OPENED, Call(7, "debugger_left", (2, True)))
    assert stage.session.attach(2, stage.hear)
    assert not any(answer.error for _, answer in stage.answers)


def test_a_rank_that_ends_closes_its_session() -> None:
    death = Death("node1", "w1", 2, 99, None, 9)
    stage = Stage(OPENED, TerminalData("node0", "w1", 1, None), death)
    assert not stage.session.attach(2, stage.hear)
    assert stage.heard == [death]


def test_lines_of_other_ranks_come_before_the_unfinished_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as the prompt, or a line that pdb writes without its end at first."""
    plugins = {"terminalreporter": SimpleNamespace(write_line=print, flush=lambda: None)}
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(getplugin=plugins.get), workerinput={}
    )
    console = Console(config, None)
    try:
        console.show_debugger("> test_it.py(5)\n-> for step in range(3):")
        console.show(["[rank 0 local0] step 0"])
        console.show_debugger("\n(Pdb rank 1) p ")
        console.show(["[rank 0 local0] step 1", "[rank 0 local0] step 2"])
        console.show_debugger("1\n1\n")
        console.show(["[rank 0 local0] step 3"])
        console.show_debugger("(Pdb rank 1) ")
        console.leave_debugger()
        console.show(["[rank 0 local0] step 4"])
    finally:
        console.close()
    loop, prompt = "-> for step in range(3):", "(Pdb rank 1) p "
    assert capsys.readouterr().out.splitlines() == [
        *("> test_it.py(5)", loop, "[rank 0 local0] step 0", loop),
        *(prompt, "[rank 0 local0] step 1", "[rank 0 local0] step 2", f"{prompt}1", "1"),
        *("[rank 0 local0] step 3", "(Pdb rank 1) [rank 0 local0] step 4"),
    ]
