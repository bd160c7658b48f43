"""How a command's way to its node ended, in one line, from what ssh or srun said. Pure.

Imported by the near end, which runs without site-packages.
"""

from __future__ import annotations

from collections.abc import Sequence

_EXCHANGE = "_exchange_identification: "
_NOBODY = "UNKNOWN port 65535"
"""Who is at the other end, where that is a program and not a connection."""
_CLOSED = ("Connection closed by ", "Connection reset by ")


def how_it_ended(code: int | None, said: Sequence[str], greeted: bool) -> str:
    """Why ssh or srun ended before the command did, from its status and what it printed.

    greeted: our program ran there.
    """
    last = _last(said)
    if (step := _of_the_step(said)) is not None:
        return step
    if last.startswith("srun: "):  # whose status is not that of a command
        return last.replace("error: ", "", 1)
    if greeted:
        return f"the connection was lost{': ' * bool(last)}{last}"
    if code == 255:
        return last or "ssh ended and said nothing"
    how = f"status {code}" if code is not None else "no status"
    return f"no Python started there ({how}{': ' * bool(last)}{last})"


def why_not_there(said: Sequence[str]) -> str:
    """Why ssh has no connection, or none any more, from what it printed; "" where nothing is.

    An ssh that goes by way of a jump host hears of its own way's end only, and says so last.
    """
    lines = [line.strip() for line in said if line.strip()]
    own = [line for line in lines if not _follows(line)]
    return (own or lines or [""])[-1]


def was_dropped(said: Sequence[str]) -> bool:
    """Whether an sshd closed the connection before a word: it has too many at once."""
    lines = [line.strip() for line in said if line.strip()]
    unsaid = any(_EXCHANGE in line for line in lines)
    return unsaid and all(_follows(line) or line.startswith(_CLOSED) for line in lines)


def how_silent(limit_s: float, said: Sequence[str], greeted: bool) -> str:
    """Why one that says no more for so long is given up."""
    if greeted:
        return f"the connection was lost: nothing heard for {limit_s:g} s"
    last = _last(said)
    return f"no answer within {limit_s:g} s{': ' * bool(last)}{last}"


def _follows(line: str) -> bool:
    return _EXCHANGE in line or _NOBODY in line or line == "stdio forwarding failed"


def _of_the_step(said: Sequence[str]) -> str | None:
    """What slurmstepd, on the node, says of a step that ended; srun tells later, and less."""
    for line in said:
        program, _, text = line.strip().partition(": error: ")
        if not program.startswith("slurmstepd"):  # from 23.11 on with the node's name
            continue
        if text.startswith("execve(): "):
            return f"no Python started there ({text})"
        if text.startswith("*** "):
            return f"Slurm says {text.strip('* ')}"
    return None


def _last(said: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(said) if line.strip()), "")
