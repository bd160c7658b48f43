"""The record that each rank keeps of its calls: written by the rank, read by the agent.

Sends and receives are numbered by channel, which is all messages of one rank to another in a group
with one tag: its messages are received in the order in which they are sent.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path

SLOTS = 128
"""Number of calls kept for each rank."""
SLOT_BYTES = 512
COUNT_SLOTS = 8
"""Slots after those of the calls, one per process group: how many operations it has begun."""
SEPARATOR = "\x1f"
INSIDE, LIMITED, PENDING, RETURNED, RAISED = "i", "l", "p", "r", "x"
"""INSIDE: the rank is in the call, or waits for its handle. PENDING: the call returned, but the
collective may go on, as on a device or with async_op. LIMITED: INSIDE or PENDING, but with a
timeout of its own."""
HANDLES = ("isend", "irecv")
"""Calls that always return a handle."""
ANY_SOURCE = "*"
NOT_COMPARED = -1
"""Digest of the calls of a group in which a call raised an error: later calls do not match."""
_SHAPE = re.compile(r"\[([\d,]*)\]")
_NOT_COMPARED = re.compile(r" \(here .*")  # its end may be cut off


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `number` counts the rank's calls in this test, `seq` those of the group or channel.

    group: its name and ranks ("1 0-1"), "" for the default group, or a `channel`; arguments: as
    text.
    """

    number: int
    seq: int
    group: str
    op: str
    arguments: str
    place: str
    state: str = RETURNED
    mode: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Key that is equal for matching calls: of a shape, only the number of elements counts."""
        return ("message", "") if is_channel(self.group) else (self.op, compared(self.arguments))

    @property
    def text(self) -> str:
        mode = f" ({self.mode})" if self.mode else ""
        return " ".join(word for word in (self.op + mode, self.arguments) if word)

    @property
    def is_open(self) -> bool:
        """Whether it may wait for other ranks; a handle of a message does not, until its end is
        awaited."""
        return self.state in (INSIDE, LIMITED) or (self.state == PENDING and self.op not in HANDLES)

    @property
    def has_no_end(self) -> bool:
        """Whether it waits for other ranks without limit; a handle may be given a timeout."""
        return self.state == INSIDE or (self.state == PENDING and self.is_open and not self.mode)

    @property
    def as_which(self) -> str:
        what = "message" if is_channel(self.group) else "call"
        return f"as {what} {self.seq} of {group_text(self.group)}"


def channel(group: str, tag: int, source: int | None, target: int) -> str:
    """The messages from rank `source` (None: from any) to rank `target` with this tag, as text
    that takes the place of a group. group: the group's name, "" for the default group."""
    return f">{group}:{tag} {ANY_SOURCE if source is None else source}>{target}"


def is_channel(group: str) -> bool:
    return group.startswith(">")


def ends(group: str) -> tuple[str, str]:
    """Source and target of a channel."""
    source, _, target = group.rpartition(" ")[2].partition(">")
    return source, target


@functools.lru_cache(1024)
def compared(arguments: str) -> str:
    """The part of the arguments that must be equal in all ranks."""
    return _SHAPE.sub(_elements, _NOT_COMPARED.sub("", arguments))


def _elements(match: re.Match[str]) -> str:
    return str(math.prod(int(n) for n in match[1].split(",") if n))


def group_text(group: str) -> str:
    if is_channel(group):
        source, target = ends(group)
        return f"{'any rank' if source == ANY_SOURCE else f'rank {source}'} to rank {target}"
    name, _, ranks = group.partition(" ")
    return f"group {name} (ranks {ranks})" if group else "the default group"


def read(path: Path) -> str | None:
    """The record of a rank without its empty space; None if there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    slots = (data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES))
    return "\n".join(s.partition(b"\0")[0].decode(errors="replace") for s in slots if s[0])


def parse(text: str) -> list[Call]:
    """Calls of a record, oldest first; calls that are only half written are left out."""
    found = []
    for line in text.split("\n"):
        words = line.split(SEPARATOR)
        if len(words) == 8 and words[1].isdigit() and words[2].isdigit():
            state, number, seq, group, op, mode, arguments, place = words
            found.append(Call(int(number), int(seq), group, op, arguments, place, state, mode))
    return sorted(found, key=lambda call: call.number)


def parse_counts(text: str) -> dict[str, int]:
    """By group, how many operations it has begun in this rank, if the record says so."""
    lines = (line.split(SEPARATOR) for line in text.split("\n"))
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
