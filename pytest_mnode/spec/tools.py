"""What programs beside ours are to measure: perftest's ib_write_bw, and nccl-tests."""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import Field, field_validator

from pytest_mnode.spec.fields import Bytes, Fraction, Page, Seconds, Text

COMMAND_FIELDS = ("program", "ranks", "nodes", "per_node", "hosts", "names", "from", "to")
"""What can be filled in to the command that starts nccl-tests."""


class WriteBandwidthPromise(Page):
    """ib_write_bw from each node to the next, over each rail, as a part of one port's line rate."""

    at_least_fraction: Fraction = 0.96
    """Of fabric.line_rate."""
    size_bytes: Bytes = Field(1 << 20, alias="size")
    """Of a message, such as 1 MiB."""
    duration_s: Annotated[Seconds, Field(ge=1, le=600)] = Field(2.0, alias="duration")
    """How long each pair writes, in whole seconds, such as 2 s."""
    program: Text = "ib_write_bw"
    """Its path, or its name on the nodes' PATH."""
    arguments: tuple[Text, ...] = ()
    """More of them, such as ["-x", "3"] for a GID index or ["-q", "4"] for queue pairs."""


class NcclTestsPromise(Page):
    """nccl-tests over all nodes, judged by the promises of the collectives they measure."""

    command: Text = "mpirun -np {ranks} --host {hosts} {program} -b {from} -e {to} -f 2 -g 1"
    """How one is started on the first node. Filled in are {program}, {ranks}, {nodes}, {per_node},
    {hosts} (NODE:RANKS,…), {names} (NODE,…), {from} and {to} in bytes."""
    directory: Text | None = None
    """Where all_reduce_perf and the others are; else on the PATH of the first node."""
    limit_s: Seconds = Field(600.0, alias="limit")
    """How long one program may take, such as 10 min."""

    @field_validator("command")
    @classmethod
    def _can_be_filled_in(cls, command: str) -> str:
        try:
            words = shlex.split(command.format_map(dict.fromkeys(COMMAND_FIELDS, "1")))
        except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
            names = ", ".join(f"{{{name}}}" for name in COMMAND_FIELDS)
            why = f"{{{error.args[0]}}}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{command!r} cannot be filled in: {why}; accepted: {names}") from None
        if "{program}" not in command or not words:
            raise ValueError(f"{command!r} does not start {{program}}")
        return command
