"""Messages of a debugger's session, and what ranks print while it is shown live.

The agent's side holds the terminal of a debugged rank, not the rank: it is read and interrupted
also while the rank computes or is stuck.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AskDebugger:
    """A rank reached a breakpoint or failed under --pdb; it waits for a DebuggerAnswer."""

    rank: int
    ordinal: int


@dataclass(frozen=True)
class DebuggerAnswer:
    """reads, writes: paths of the rank's terminal; "" where another rank is debugged.

    term: the value of TERM. error: why no rank can be debugged in this run, "" where it can.
    """

    reads: str = ""
    writes: str = ""
    term: str = ""
    error: str = ""


@dataclass(frozen=True)
class DebuggerLeft:
    """The rank goes on; quit: its user ended the run."""

    rank: int
    ordinal: int
    quit: bool = False


@dataclass(frozen=True)
class ToTerminal:
    """For the process that holds the terminal of a rank."""

    node: str
    world: str
    rank: int


@dataclass(frozen=True)
class OpenTerminal(ToTerminal):
    """size: lines and columns of a pseudo-terminal; None: two pipes, because the user's own input
    is no terminal."""

    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class TerminalInput(ToTerminal):
    """b"" is the end of the input."""

    data: bytes = b""


@dataclass(frozen=True)
class CloseTerminal(ToTerminal):
    """Answered by TerminalClosed, after all that the rank wrote."""


@dataclass(frozen=True)
class FromTerminal:
    """For the client whose test the rank runs."""

    world: str
    rank: int


@dataclass(frozen=True)
class TerminalOpened(FromTerminal):
    """reads, writes: where the rank opens it; error: why there is none."""

    reads: str = ""
    writes: str = ""
    error: str = ""


@dataclass(frozen=True)
class TerminalOutput(FromTerminal):
    data: bytes = b""


@dataclass(frozen=True)
class TerminalClosed(FromTerminal):
    pass


@dataclass(frozen=True)
class LiveOutput:
    """Whole lines that ranks of a node printed since the last of these messages, by rank."""

    world: str
    lines: dict[int, list[str]] = field(default_factory=dict)
