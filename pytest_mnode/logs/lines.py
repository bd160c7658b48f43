"""Lines as a program printed them, without the prefixes of launchers and schedulers. Pure."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX = re.compile(
    r"""
      \s*\d{1,6}:[ ]                                              # srun --label
    | \[\d+,\d+\](?:<std(?:out|err)>)?:?[ ]?                      # mpirun --tag-output
    | \[[^\]\s]{1,60}\](?:<std(?:out|err)>)?:[ ]?                 # torchrun [rank0]:, [default0]:
    | <std(?:out|err)>:[ ]?
    | \[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?[ ]  # ISO 8601
    | (?:std(?:out|err)[ ][FP][ ])                                # a container's log file
    | [A-Za-z][\w.-]{0,80}:[ ](?=\s*(?:\#|\d+\s))                 # HOST: before a table's line
    | \[[\w./-]{1,120}\][ ](?=\s*(?:\#|\d+\s))                    # [pod] before a table's line
    """,
    re.VERBOSE,
)
_MOST_PREFIXES = 6
_BEGAN_IN_TMP = re.compile(
    r"slurmstepd(?:-[\w.-]+)?: error: (?:couldn't chdir to .*: going to /tmp instead"
    r"|Unable to create TMPDIR \[.*|TMPDIR \[.*\] is not writeable|Setting TMPDIR to /tmp)"
)


def text_of(output: str | bytes) -> str:
    """`output` as text, in any encoding; never raises."""
    return output if isinstance(output, str) else output.decode("utf-8", "replace")


def lines_of(output: str | bytes) -> list[str]:
    """Lines without colours, line ends and prefixes; blank lines are kept."""
    return [unprefixed(line) for line in plain_lines(output)]


def plain_lines(output: str | bytes) -> list[str]:
    """Lines without colours and line ends, with their prefixes.

    Non-breaking blanks, as in a copy from a browser, become blanks.
    """
    plain = _COLOUR.sub("", text_of(output)).replace("\u00a0", " ")
    return plain.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def unprefixed(line: str) -> str:
    """A line without time stamps and names of tasks, ranks, hosts or streams before it."""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(line)
        if match is None:
            return line
        line = line[match.end() :]
    return line


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
