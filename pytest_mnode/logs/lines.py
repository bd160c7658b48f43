"""Lines as a program printed them, and the numbers in them. Pure."""

from __future__ import annotations

import re

from pytest_mnode.logs.nccl_log.text import plain_text

_BEGAN_IN_TMP = re.compile(
    r"slurmstepd(?:-[\w.-]+)?: error: (?:couldn't chdir to .*: going to /tmp instead"
    r"|Unable to create TMPDIR \[.*|TMPDIR \[.*\] is not writeable|Setting TMPDIR to /tmp)"
)


def plain_lines(output: str | bytes) -> list[str]:
    """Lines without colours and line ends, from text or bytes in any encoding; never raises.

    Non-breaking blanks, as in a copy from a browser, become blanks.
    """
    return [line.replace("\u00a0", " ") for line in plain_text(output).lines]


def began_in_tmp(line: str) -> bool:
    """Whether Slurm reports that a task runs in /tmp because its folder is missing: no failure.

    Source: Slurm, src/slurmd/slurmstepd/task.c, _make_tmpdir.
    """
    return _BEGAN_IN_TMP.search(line) is not None


def number(text: str) -> float | None:
    """A finite number as tables print it; None for N/A, nan, and anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0 else None


def whole(text: str) -> int | None:
    """A whole number, also as 0e+00; None for anything else."""
    value = number(text)
    return int(value) if value is not None and value == int(value) else None
