"""Lines as a program printed them, and the numbers in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_mnode.logs.nccl_log.text import plain_text, unwrapped

_DIGITS = re.compile(r"\d+", re.ASCII)
_BEGAN_IN_TMP = re.compile(
    r"slurmstepd(?:-[\w.-]+)?: error: (?:couldn't chdir to .*: going to /tmp instead"
    r"|Unable to create TMPDIR \[.*|TMPDIR \[.*\] is not writeable|Setting TMPDIR to /tmp)"
)


def plain_lines(output: str | bytes) -> list[str]:
    """Lines without colours and line ends, from text or bytes in any encoding; never raises.

    Non-breaking blanks, as in a copy from a browser, become blanks. Records of log collectors, and
    a whole output in one string of JSON, as Ansible shows it, become their lines.
    """
    lines = [line.replace("\u00a0", " ") for line in plain_text(output).lines]
    return [part for line in lines for part in unwrapped(line).rstrip("\n").split("\n")]


def without_prefix(lines: Sequence[str], prefix: str) -> list[str]:
    """Lines without what a launcher or a collector of logs put before each, if it is there.

    prefix: as it stands before one of them. Its numbers may differ, as ranks and times do.
    """
    words = (_DIGITS.sub(r"\\d+", re.escape(word)) for word in prefix.split())
    pattern = re.compile(r"\s*" + r"\s+".join(words) + (r"\s?" if prefix.strip() else ""))
    return [pattern.sub("", line, count=1) if pattern.match(line) else line for line in lines]


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
