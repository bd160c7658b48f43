"""Comparison of the ranks' calls: the collective that differs, and ranks that wait for ever.

Ranks of a group must make the same calls in the same order. A call of one group is compared with
the call of the same number in the other ranks: operation, number of elements, dtype, reduce
operation and root must be equal. A message of a channel must be sent and received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.outcome.call_record import (
    ANY_SOURCE,
    INSIDE,
    NOT_COMPARED,
    PENDING,
    RAISED,
    SLOTS,
    Call,
    ends,
    group_text,
    is_channel,
)
from pytest_mnode.outcome.describe import ranks_by, ranks_text, waiting_text
from pytest_mnode.protocol.messages import Made

_KINDS = 4
"""Maximum number of different calls shown for one call number."""
_SHOWN = 3
"""Number of calls shown, up to the one that differs."""

Calls = Mapping[int, Sequence["Call"]]
"""Calls by rank, oldest first."""
Counts = Mapping[int, Mapping[str, int]]
"""By rank and group, how many operations the rank has begun in it."""
_Numbers = Mapping[str, int]
"""By group: number of the first call whose error the test caught. Later calls do not match."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks whose calls differ from the others'; all of them if there is no majority."""

    ranks: list[int]
    line: str
    text: str


def _members(group: str) -> frozenset[int] | None:
    """Ranks of a group or channel, empty if unknown; None for all ranks."""
    if is_channel(group):
        return frozenset(int(rank) for rank in ends(group) if rank != ANY_SOURCE)
    return (parse_cpulist(group.partition(" ")[2]) or frozenset()) if group else None


def difference(calls: Calls, ended: Collection[int], *, still: bool) -> Difference | None:
    """The first difference; None if there is none.

    ended: ranks that ended the test and did not fail; still: whether no rank has made a call for a
    while, so that ranks inside calls may wait for each other for ever.
    """
    caught = _caught(calls, ended)
    return (
        _unequal(calls, caught)
        or _left(calls, ended, caught, lambda call: call.is_open)
        or (_crossed(calls, caught) if still else None)
    )


def is_deadlock(calls: Calls, ended: Collection[int]) -> bool:
    """Whether ranks that make no more calls can never continue."""
    caught = _caught(calls, ended)
    return bool(
        any(c.state in (INSIDE, PENDING) for at in _pairs(calls, caught) for c in at.values())
        or _left(calls, ended, caught, lambda call: call.has_no_end)
        or _crossed(calls, caught)
    )


def absent(calls: Calls) -> set[int]:
    """Ranks that have not made a call in which others wait for them."""
    waits = _waits(calls, {}, lambda call: call.state == INSIDE)
    return {rank for group, seq, _ in waits for rank in _missing(calls, group, seq)}


def unjoined(calls: Calls) -> dict[int, Call]:
    """By rank, its first collective that other ranks of the group have not called; the call may
    have returned while the device still waits."""
    waits = _waits(calls, _unordered(calls), lambda call: call.is_open and not call.mode)
    found: dict[int, Call] = {}
    for group, seq, ranks in waits:
        if _missing(calls, group, seq):
            for rank in ranks:
                call = next(c for c in calls[rank] if (c.group, c.seq) == (group, seq))
                if rank not in found or call.number < found[rank].number:
                    found[rank] = call
    return found


def ahead(counts: Counts) -> dict[int, tuple[str, set[int]]]:
    """By rank ahead of others, which has begun more operations of a group: the group, and those."""
    found: dict[int, tuple[str, set[int]]] = {}
    for group in sorted({group for of in counts.values() for group in of}):
        begun = {rank: of[group] for rank, of in counts.items() if group in of}
        least = min(begun.values())
        behind = {rank for rank, number in begun.items() if number == least}
        found |= dict.fromkeys(begun.keys() - behind - found.keys(), (group, behind))
    return found


def agree(made: Mapping[int, Made]) -> bool:
    """Whether the calls of all ranks, in a test that passed, match."""
    return next(_disagreeing(made), None) is None


def _disagreeing(made: Mapping[int, Made]) -> Iterator[tuple[str, dict[int, int]]]:
    """Groups and channels in which calls do not match; the number of calls, by rank."""
    by_group: dict[str, dict[int, tuple[int, int]]] = {}
    for rank, of in made.items():
        for group, number, digest in of:
            by_group.setdefault(group, {})[rank] = number, digest
    from_any = {ends(group)[1] for group in by_group if _is_from_any(group)}
    for group, of_group in by_group.items():
        if is_channel(group) and ends(group)[1] in from_any:
            continue
        members = _members(group)
        compared = set(made) if members is None else (members or set(of_group)) & set(made)
        all_of = {rank: of_group.get(rank, (0, 0)) for rank in sorted(compared)}
        different = len(set(all_of.values())) > 1
        if different and all(digest != NOT_COMPARED for _, digest in all_of.values()):
            yield group, {rank: number for rank, (number, _) in all_of.items()}


def passed_difference(calls: Calls, made: Mapping[int, Made]) -> Difference | None:
    """The first difference between the calls of ranks that all passed the test; None if there is
    none. made: of all calls, while `calls` are the last ones."""
    found = dict(_disagreeing(made))
    if not found:
        return None
    if unequal := _unequal({r: [c for c in m if c.group in found] for r, m in calls.items()}, {}):
        return unequal
    for group, numbers in found.items():
        least = min(numbers.values())
        more = sorted(rank for rank, number in numbers.items() if number > least)
        first = group, least + 1
        extra = [c for rank in more for c in calls.get(rank, ()) if (c.group, c.seq) == first]
        fewer = sorted(numbers.keys() - set(more))
        if extra:
            return _extra(extra[0], more, fewer, calls)
    group, numbers = next(iter(found.items()))
    counts = [f"{ranks_text(r)} made {numbers[r[0]]}" for r in _kinds(numbers)]
    line = (
        f"calls of {group_text(group)} differ, before the last {SLOTS} of a rank: "
        f"{' and '.join(counts)}"
    )
    return Difference(sorted(numbers), line, line)


def _extra(call: Call, more: list[int], fewer: list[int], calls: Calls) -> Difference:
    """A call that ranks `fewer` have not made, and that returned in the others all the same."""
    if is_channel(call.group):
        lacks = "receive" if str(more[0]) == ends(call.group)[0] else "send"
        without = f"which {ranks_text(fewer)} did not {lacks}"
    else:
        without = f"but {ranks_text(fewer)} ended the test without it"
    line = f"called {call.text} {call.as_which} ({call.place}), {without}"
    who = more
    if len(fewer) < len(more):
        line, who = f"{ranks_text(more)} {line}", fewer
    return Difference(who, line, f"{line}\n\n{_history(calls, call.group, call.seq)}")


def _is_from_any(group: str) -> bool:
    return is_channel(group) and ends(group)[0] == ANY_SOURCE


def _unordered(calls: Calls) -> dict[str, int]:
    """Channels to ranks that received from any source, whose messages cannot be matched: none of
    their numbers does."""
    channels = {call.group for made in calls.values() for call in made if is_channel(call.group)}
    from_any = {ends(group)[1] for group in channels if _is_from_any(group)}
    return {group: 0 for group in channels if ends(group)[1] in from_any}


def _caught(calls: Calls, ended: Collection[int]) -> _Numbers:
    found = _unordered(calls)
    for rank, made in calls.items():
        for call in made:
            if call.state == RAISED and (rank in ended or call is not made[-1]):
                found[call.group] = min(call.seq, found.get(call.group, call.seq))
    return found


def _matches(call: Call, caught: _Numbers) -> bool:
    return call.seq < caught.get(call.group, math.inf)


def _pairs(calls: Calls, caught: _Numbers) -> list[dict[int, Call]]:
    """Unequal calls of the same number in the same group, the earliest first."""
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
    """Ranks that ended the test without making a call in which others wait."""
    going_on = {rank: made for rank, made in calls.items() if rank not in ended}
    for group, seq, inside in _waits(going_on, caught, waits):
        left = sorted(_missing(calls, group, seq) & set(ended))
        if not left:
            continue
        call = next(c for c in calls[inside[0]] if (c.group, c.seq) == (group, seq))
        if len(inside) < len(left):
            line = f"called {call.text} {call.as_which} ({call.place}), " + (
                f"but {ranks_text(left)} ended the test without it"
            )
            return Difference(inside, line, f"{line}\n\n{_history(calls, group, seq)}")
        line = (
            f"left the test without {_counterpart(call)} ({call.place}) that "
            f"{waiting_text(inside)} in, {call.as_which.removeprefix('as ')}"
        )
        return Difference(left, line, f"{line}\n\n{_history(calls, group, seq)}")
    return None


def _counterpart(call: Call) -> str:
    """What a rank must do so that `call` ends in another."""
    if not is_channel(call.group):
        return f"entering the {call.op}"
    return f"a {'receive' if 'send' in call.op else 'send'} for the {call.op}"


def _crossed(calls: Calls, caught: _Numbers) -> Difference | None:
    """Ranks that wait for each other in calls of different groups."""
    waits: dict[int, tuple[tuple[str, int], set[int]]] = {}
    for group, seq, inside in _waits(calls, caught, lambda call: call.state == INSIDE):
        missing = _missing(calls, group, seq)
        waits |= dict.fromkeys(inside, ((group, seq), missing))
    of_any = _waits_for_any(calls)
    waits |= {rank: (at, set(calls) - {rank}) for rank, at in of_any.items()}
    free: Collection[int] = [0]
    while free:
        waiting = set(waits)
        free = [
            rank
            for rank, (_, missing) in waits.items()
            if waiting.isdisjoint(missing) or (rank in of_any and not missing <= waiting)
        ]
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
    alone = "wait" if len(odd) > 1 else "waits"  # the report is headed by these ranks
    who = alone if texts[0][0] == odd else waiting_text(texts[0][0])
    others = " and ".join(f"{waiting_text(ranks)} in {text}" for ranks, text in texts[1:])
    line = f"{who} in {texts[0][1]}, while {others}"
    return Difference(odd, line, line)


def _waits_for_any(calls: Calls) -> dict[int, tuple[str, int]]:
    """Ranks that wait for a message of any rank, while all that were sent to them are received."""
    if any(len(made) >= SLOTS for made in calls.values()):
        return {}
    found = {}
    for rank, made in calls.items():
        inside = [c for c in made if c.state == INSIDE and _is_from_any(c.group)]
        if not inside:
            continue
        messages = [c for of in calls.values() for c in of if is_channel(c.group)]
        arriving = [c for c in messages if ends(c.group)[1] == str(rank)]
        if sum("recv" in c.op for c in arriving) > sum("send" in c.op for c in arriving):
            found[rank] = inside[0].group, inside[0].seq
    return found


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
    kinds = ranks_by({rank: by_rank[rank] for rank in sorted(by_rank)})
    return sorted(kinds.values(), key=len, reverse=True)


def _odd(kinds: Sequence[list[int]]) -> list[int]:
    """Ranks outside the majority; all of them if there is none."""
    if len(kinds) > 1 and len(kinds[0]) == len(kinds[1]):
        return sorted(rank for ranks in kinds for rank in ranks)
    return sorted(rank for ranks in kinds[1:] for rank in ranks)


def _history(calls: Calls, group: str, seq: int) -> str:
    """Text of the calls up to the one that differs, equal ones merged."""
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
