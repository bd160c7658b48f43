"""What each rank called, compared: which collective differs, and who will wait for ever.

Ranks of a group must make the same calls in the same order. A call of one group is compared with
the call of the same number in the other ranks: operation, number of elements, dtype, reduce
operation and root must be equal.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.outcome.describe import ranks_text

SLOTS = 128
"""How many calls of a rank are kept."""
SLOT_BYTES = 512
SEPARATOR = "\x1f"
INSIDE, LIMITED, PENDING, RETURNED, RAISED = "i", "l", "p", "r", "x"
"""PENDING: the call returned, but the collective may go on, as on a device or with async_op.
LIMITED: INSIDE or PENDING, but with a timeout of its own."""
_SHAPE = re.compile(r"\[([\d,]*)\]")
_NOT_COMPARED = re.compile(r" \(here .*\)")
_KINDS = 4
"""How many kinds of calls of one number are shown."""
_SHOWN = 3
"""How many calls up to the one that differs are shown."""

Calls = Mapping[int, Sequence["Call"]]
"""By rank, oldest first."""
_Numbers = Mapping[str, int]
"""By group: the number of the first call whose error the test caught. Later ones do not match."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. `number` counts the rank's calls in this test, `seq` those of the group.

    group: its name and ranks ("1 0-1"), "" for the default group; arguments: in words.
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
        """Equal where calls match: of a shape, only the number of elements counts."""
        return self.op, _compared(self.arguments)

    @property
    def text(self) -> str:
        mode = f" ({self.mode})" if self.mode else ""
        return " ".join(word for word in (self.op + mode, self.arguments) if word)

    @property
    def is_open(self) -> bool:
        return self.state in (INSIDE, LIMITED, PENDING)

    @property
    def has_no_end(self) -> bool:
        """Whether it waits until all ranks come; a handle may be waited for with a timeout."""
        return self.state in (INSIDE, PENDING) and not self.mode

    @property
    def as_which(self) -> str:
        return f"as call {self.seq} of {group_text(self.group)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks whose calls differ from the others'; all of them where there is no majority."""

    ranks: list[int]
    line: str
    text: str


@functools.lru_cache(1024)
def _compared(arguments: str) -> str:
    return _SHAPE.sub(_elements, _NOT_COMPARED.sub("", arguments))


def _elements(match: re.Match[str]) -> str:
    return str(math.prod(int(n) for n in match[1].split(",") if n))


def group_text(group: str) -> str:
    name, _, ranks = group.partition(" ")
    return f"group {name} (ranks {ranks})" if group else "the default group"


def _members(group: str) -> set[int] | None:
    """Ranks of a group; None for all."""
    if not group:
        return None
    found: set[int] = set()
    for part in group.partition(" ")[2].split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def read(path: Path) -> str | None:
    """The record of a rank without its empty space; None where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    slots = (data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES))
    return "\n".join(s.partition(b"\0")[0].decode(errors="replace") for s in slots if s[0])


def parse(text: str) -> list[Call]:
    """Calls of a record, oldest first; what is half written is left out."""
    found = []
    for line in text.split("\n"):
        words = line.split(SEPARATOR)
        if len(words) == 8 and words[1].isdigit() and words[2].isdigit():
            state, number, seq, group, op, mode, arguments, place = words
            found.append(Call(int(number), int(seq), group, op, arguments, place, state, mode))
    return sorted(found, key=lambda call: call.number)


def difference(calls: Calls, ended: Collection[int], *, still: bool) -> Difference | None:
    """What differs first, None where nothing does.

    ended: ranks that ended the test and did not fail; still: no rank has made a call for a while,
    so that a rank inside a call can be waited for in vain.
    """
    caught = _caught(calls, ended)
    return (
        _unequal(calls, caught)
        or _left(calls, ended, caught, lambda call: call.is_open)
        or (_crossed(calls, caught) if still else None)
    )


def is_hopeless(calls: Calls, ended: Collection[int]) -> bool:
    """Whether ranks that stand still will never go on."""
    caught = _caught(calls, ended)
    return bool(
        any(c.state in (INSIDE, PENDING) for at in _pairs(calls, caught) for c in at.values())
        or _left(calls, ended, caught, lambda call: call.has_no_end)
        or _crossed(calls, caught)
    )


def _caught(calls: Calls, ended: Collection[int]) -> _Numbers:
    found: dict[str, int] = {}
    for rank, made in calls.items():
        for call in made:
            if call.state == RAISED and (rank in ended or call is not made[-1]):
                found[call.group] = min(call.seq, found.get(call.group, call.seq))
    return found


def _matches(call: Call, caught: _Numbers) -> bool:
    return call.seq < caught.get(call.group, math.inf)


def _pairs(calls: Calls, caught: _Numbers) -> list[dict[int, Call]]:
    """Calls of the same number of the same group that are not equal, the first made first."""
    by_number: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, made in calls.items():
        for call in made:
            if _matches(call, caught):
                by_number.setdefault((call.group, call.seq), {})[rank] = call
    found = [at for at in by_number.values() if len({call.key for call in at.values()}) > 1]
    return sorted(found, key=lambda at: min(call.number for call in at.values()))


def _unequal(calls: Calls, caught: _Numbers) -> Difference | None:
    for at in _pairs(calls, caught)[:1]:
        kinds = _kinds({rank: call.key for rank, call in at.items()})
        odd = _odd(kinds)
        first = at[odd[0]]
        others = []
        for ranks in kinds[:_KINDS]:
            call = at[ranks[0]]
            if odd[0] not in ranks:
                what = call.text if call.op != first.op else f"it {call.arguments}"
                place = f" ({call.place})" if call.place != first.place else ""
                others.append(f"{ranks_text(ranks)} called {what}{place}")
        same = [rank for rank in at if at[rank].key == first.key]
        who = "" if same == odd else f"{ranks_text(same)} "
        line = (
            f"{who}called {first.text} {first.as_which} ({first.place}), "
            f"where {' and '.join(others)}"
        )
        return Difference(odd, line, f"{line}\n\n{_history(calls, first.group, first.seq)}")
    return None


def _left(
    calls: Calls, ended: Collection[int], caught: _Numbers, waits: Callable[[Call], bool]
) -> Difference | None:
    """Ranks that ended the test without a call in which others are."""
    going_on = {rank: made for rank, made in calls.items() if rank not in ended}
    for group, seq, inside in _waits(going_on, caught, waits):
        left = sorted(_missing(calls, group, seq) & set(ended))
        if not left:
            continue
        call = next(c for c in calls[inside[0]] if (c.group, c.seq) == (group, seq))
        if len(inside) < len(left):
            line = f"called {call.text} {call.as_which} ({call.place}), " + (
                f"without which {ranks_text(left)} ended the test"
            )
            return Difference(inside, line, f"{line}\n\n{_history(calls, group, seq)}")
        line = (
            f"left the test without entering the {call.op} ({call.place}) that "
            f"{ranks_text(inside)} {'wait' if len(inside) > 1 else 'waits'} in, "
            f"call {seq} of {group_text(group)}"
        )
        return Difference(left, line, f"{line}\n\n{_history(calls, group, seq)}")
    return None


def _crossed(calls: Calls, caught: _Numbers) -> Difference | None:
    """Ranks that wait for each other in calls of different groups."""
    waits: dict[int, tuple[tuple[str, int], set[int]]] = {}
    for group, seq, inside in _waits(calls, caught, lambda call: call.state == INSIDE):
        missing = _missing(calls, group, seq)
        waits |= dict.fromkeys(inside, ((group, seq), missing))
    free: Collection[int] = [0]
    while free:
        waiting = set(waits)
        free = [rank for rank in waits if waiting.isdisjoint(waits[rank][1])]
        for rank in free:
            del waits[rank]
    if not waits:
        return None
    inside_of = {rank: at for rank, (at, _) in waits.items()}
    kinds = _kinds(inside_of)
    odd = _odd(kinds)
    texts = []
    for ranks in sorted(kinds, key=lambda ranks: odd[0] not in ranks):
        call = next(c for c in calls[ranks[0]] if (c.group, c.seq) == inside_of[ranks[0]])
        texts.append((ranks, f"{call.text} {call.as_which} ({call.place})"))
    who = "" if texts[0][0] == odd else f"{ranks_text(texts[0][0])} "
    others = " and ".join(f"{ranks_text(ranks)} wait in {text}" for ranks, text in texts[1:])
    line = f"{who}waits in {texts[0][1]}, while {others}"
    return Difference(odd, line, line)


def _waits(
    calls: Calls, caught: _Numbers, waits: Callable[[Call], bool]
) -> list[tuple[str, int, list[int]]]:
    """Group, number and ranks of the calls in which ranks wait."""
    found: dict[tuple[str, int], list[int]] = {}
    for rank, made in calls.items():
        for call in made:
            if waits(call) and _matches(call, caught):
                found.setdefault((call.group, call.seq), []).append(rank)
    return [(group, seq, sorted(ranks)) for (group, seq), ranks in sorted(found.items())]


def _missing(calls: Calls, group: str, seq: int) -> set[int]:
    """Ranks of a group whose record shows that they did not make this call."""
    missing = set()
    members = _members(group)
    for rank in set(calls) if members is None else members & set(calls):
        made = [call.seq for call in calls[rank] if call.group == group]
        complete = len(calls[rank]) < SLOTS
        if (made or complete) and max(made, default=0) < seq:
            missing.add(rank)
    return missing


def _kinds(by_rank: Mapping[int, object]) -> list[list[int]]:
    """Ranks with equal values together, most ranks first."""
    kinds: dict[object, list[int]] = {}
    for rank in sorted(by_rank):
        kinds.setdefault(by_rank[rank], []).append(rank)
    return sorted(kinds.values(), key=len, reverse=True)


def _odd(kinds: Sequence[list[int]]) -> list[int]:
    """Ranks apart from the majority; all of them where there is none."""
    if len(kinds) > 1 and len(kinds[0]) == len(kinds[1]):
        return sorted(rank for ranks in kinds for rank in ranks)
    return sorted(rank for ranks in kinds[1:] for rank in ranks)


def _history(calls: Calls, group: str, seq: int) -> str:
    """The calls up to the one that differs, equal ones together."""
    lines = [f"calls of {group_text(group)}:"]
    for number in range(max(1, seq - _SHOWN + 1), seq + 2):
        at = {
            rank: call
            for rank, made in calls.items()
            for call in made
            if (call.group, call.seq) == (group, number)
        }
        kinds = _kinds({rank: (call.text, call.place) for rank, call in at.items()})
        for ranks in kinds[:_KINDS]:
            call = at[ranks[0]]
            lines.append(f"  {number}. {ranks_text(ranks)}: {call.text} ({call.place})")
    return "\n".join(lines)
