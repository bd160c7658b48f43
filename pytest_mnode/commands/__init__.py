"""`python -m pytest_mnode COMMAND`: one module per command, named in `COMMANDS`.

The module's docstring is its help. `add_arguments(parser)` declares its arguments; `run(options)`
prints the answer and returns the exit status: 0, or 1 if the answer is no. A `UsageError` is
printed as one line, and the status is 2. Slow modules are imported inside `run`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pytest_mnode.errors import MnodeError

COMMANDS = (
    *("expect", "rehearse", "certificate", "nodes", "page", "diff", "judge", "sign", "verify"),
    *("check", "coverage", "why"),
)
"""Names of the commands, in the order of --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. arguments: those of the process if None."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_mnode", description="Work with certificates, without a run."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: import_module(f"{__name__}.{name}") for name in COMMANDS}
    for name, module in modules.items():
        text = str(module.__doc__)
        summary = text.partition("\n")[0].rstrip(".")
        module.add_arguments(commands.add_parser(name, help=summary, description=text))
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # an encoding such as ASCII has no "≥"
        sys.stdout.reconfigure(errors="replace")
    try:
        status: int = modules[options.command].run(options)
        sys.stdout.flush()
    except MnodeError as error:
        print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader closed the pipe early, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
