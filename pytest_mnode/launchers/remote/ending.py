"""How a command's way to its node ended, in one line, from what ssh or srun said. Pure.

Imported by the near end, which runs without site-packages.
"""

from __future__ import annotations

from collections.abc import Sequence


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


def how_silent(limit_s: float, said: Sequence[str], greeted: bool) -> str:
    """Why one that says no more for so long is given up."""
    if greeted:
        return f"the connection was lost: nothing heard for {limit_s:g} s"
    last = _last(said)
    return f"no answer within {limit_s:g} s{': ' * bool(last)}{last}"


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
