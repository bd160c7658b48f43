"""Messages of a debugger session, and the live output of ranks.

The agent's side, not the rank, holds the terminal of a debugged rank, so that the terminal can be
read and interrupted while the rank computes or is stuck.
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
    """The answer to AskDebugger.

    reads, writes: paths of the rank's terminal; "" if another rank is debugged. term: the value of
    TERM. error: why no rank can be debugged in this run; "" if one can.
    """

    reads: str = ""
    writes: str = ""
    term: str = ""
    error: str = ""


@dataclass(frozen=True)
class DebuggerLeft:
    """The debugger was left and the rank continues; quit: the user ended the run."""

    rank: int
    ordinal: int
    quit: bool = False


@dataclass(frozen=True)
class ToTerminal:
    """A message to the process that holds the terminal of a rank."""

    node: str
    world: str
    rank: int


@dataclass(frozen=True)
class OpenTerminal(ToTerminal):
    """Open a terminal for a rank. size: lines and columns; None: two pipes instead, because the
    user's own input is no terminal."""

    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class TerminalInput(ToTerminal):
    """The user's input for the rank; b"" is its end."""

    data: bytes = b""


@dataclass(frozen=True)
class CloseTerminal(ToTerminal):
    """Close the terminal. TerminalClosed answers, after all output of the rank."""


@dataclass(frozen=True)
class FromTerminal:
    """A message to the client whose test the rank runs."""

    world: str
    rank: int


@dataclass(frozen=True)
class TerminalOpened(FromTerminal):
    """The terminal is open. reads, writes: paths for the rank; error: why there is no terminal."""

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
    """Whole lines that a node's ranks printed since the previous message, by rank."""

    world: str
    lines: dict[int, list[str]] = field(default_factory=dict)
