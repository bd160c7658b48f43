"""Texts for ranks and for how they ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.protocol.messages import Death

_Value = TypeVar("_Value", bound=Hashable)
MOST_SHOWN = 16
"""Maximum number of different failures, outputs or stacks in one report, to bound its size."""


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 2" or "ranks 0-1,5-7"."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    return f"ranks {format_cpulist(ordered)}"


def ranks_by(values: Mapping[int, _Value]) -> dict[_Value, list[int]]:
    """The ranks of each value, by rank, in the order in which it is met. values: by rank."""
    found: dict[_Value, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found


def waiting_text(ranks: Collection[int]) -> str:
    """ "rank 2 waits" or "ranks 0-1 wait"."""
    return f"{ranks_text(ranks)} {'wait' if len(ranks) > 1 else 'waits'}"


def places(ranks: Iterable[int], nodes: Mapping[int, str], size: int) -> str:
    """ "ranks 1,5-7 of 8 on node1,node3"; a rank's node is given by `nodes`."""
    return on_nodes(ranks, nodes, f" of {size}")


def on_nodes(ranks: Iterable[int], nodes: Mapping[int, str], of: str = "") -> str:
    """ "ranks 1,5-7 on node1,node3"."""
    ordered = sorted(set(ranks))
    names = list(dict.fromkeys(nodes[rank] for rank in ordered))
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f"{ranks_text(ordered)}{of} on {','.join(shown)}"


def ended_text(code: int | None, number: int | None) -> str:
    """How a process ended: "exited with code 3", "killed by SIGKILL"."""
    if number is None:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(number).name}"
    return f"killed by signal {number}"


def returncode_text(code: int) -> str:
    """How a process ended, as a verb phrase, from Python's return code: negative for a signal."""
    return ended_text(code, None) if code >= 0 else f"was {ended_text(None, -code)}"


def death_line(death: Death) -> str:
    """One line: rank, node, how the rank ended, and the cause if known."""
    return f"rank {death.rank} on {death.node} {died_of(death)}"


def late_death_line(death: Death, test: str) -> str:
    """Like `death_line`, of a rank that died after its last report of a test. test: its node id;
    "" if it was none of this process."""
    ended = test or "a function, or a test of another pytest process,"
    return f"{death_line(death)} after {ended} had ended in it"


def died_of(death: Death) -> str:
    """How a rank ended, and the cause if known."""
    text = ended_text(death.code, death.signal)
    if death.signal != signal.SIGKILL:
        return text
    peak = death.peak_rss_bytes
    memory = f", peak memory {peak / 2**20:.0f} MiB" if peak else ""
    kills = death.oom_kills
    if kills.in_group:
        counted = f"OOM kills in {kills.group}: {kills.in_group}"
        return f"{text} by the kernel: out of memory ({counted}){memory}"
    if kills.in_group is None and kills.on_machine:
        counted = f"OOM kills on the whole machine: {kills.on_machine}"
        return f"{text}, probably by the kernel: out of memory ({counted}){memory}"
    return f"{text} (not by pytest-mnode){memory}"
