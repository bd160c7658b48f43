"""Dumps of torch's flight recorder: which rank did not enter the collective that others wait in.

A rank writes one when a collective times out (TORCH_NCCL_DUMP_ON_TIMEOUT), or on demand, as a
pickle or as JSON; those of gloo have the same form. Source: torch, FlightRecorder.hpp of c10d. A
pickle is read without any class, so that a file from elsewhere runs no code.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pytest_mnode.logs.causes.culprits import odd_ranks
from pytest_mnode.logs.causes.table import Cause, known_cause
from pytest_mnode.machine.cpus import format_cpulist

_RANK = re.compile(r"(\d+)(?:\.\w+)?$")
_PEER = re.compile(r"(?:send|recv)\w* \d+(?:->|<-)(\d+)")
_SAME_SHAPE = (
    *("all_reduce", "broadcast", "reduce", "all_reduce_barrier", "allreduce"),
    *("_all_gather_base", "_reduce_scatter_base", "all_gather_into_tensor_coalesced"),
)
"""Collectives to which every rank has to bring the same sizes and types."""
Group = tuple[str, str]
"""Name and description of a process group."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or a message between two ranks, that a rank has enqueued.

    number: among the collectives, or the messages, of its group. message: whether it is one, and
    peer: of it, the other rank's number in the group, if it says. done: whether it has ended.
    started: whether the device has begun it; None if the backend does not say. at: the innermost
    line outside torch, such as "train.py:87 train_step".
    """

    group: Group
    number: int
    op: str
    shape: str
    message: bool
    peer: int | None
    done: bool
    started: bool | None
    at: str

    @property
    def what(self) -> str:
        """Operation, with the shape where all ranks must have the same."""
        return f"{self.op}{self.shape}" if self.op in _SAME_SHAPE else self.op

    def __str__(self) -> str:
        where = f" ({self.at})" if self.at else ""
        name = self.group[1] or self.group[0] or "the default group"
        return f"{self.op}{self.shape}, call {self.number} of {name}{where}"


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank. members: ranks of each group, by its name, as far as it says."""

    rank: int
    calls: tuple[Call, ...]
    members: Mapping[str, tuple[int, ...]]

    def collectives(self, group: Group) -> dict[int, Call]:
        """Its collectives in a group, by their numbers."""
        return {one.number: one for one in self.calls if one.group == group and not one.message}


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits in, and for which ranks; for none if all have entered it."""

    call: Call
    awaited: frozenset[int]


def read_dump(name: str, content: bytes) -> Dump | None:
    """The dump in a file whose name ends with its rank; None for any other file."""
    data = _decoded(content)
    found = _RANK.search(PurePath(name).name)
    if data is None or found is None:
        return None
    groups = data.get("pg_config")
    try:
        calls = tuple(map(_call, data["entries"]))
        configured = groups.values() if isinstance(groups, dict) else ()
        members = {str(one["name"]): _numbers(one["ranks"]) for one in configured}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return Dump(int(found[1]), calls, members)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}: a dump has plain values only")


def _decoded(content: bytes) -> dict[str, Any] | None:
    """The mapping in a pickle or in JSON that has entries; None if there is none."""
    try:
        if content[:1] == b"\x80":
            data = _Plain(io.BytesIO(content)).load()
        elif content.lstrip()[:1] == b"{":
            data = json.loads(content)
        else:
            return None
    except Exception:  # a damaged pickle raises anything
        return None
    return data if isinstance(data, dict) and isinstance(data.get("entries"), list) else None


def _numbers(written: Any) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(written))))


def _call(entry: Mapping[str, Any]) -> Call:
    name, description = (*map(str, entry.get("process_group") or [entry["pg_id"]]), "")[:2]
    op = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    peer = _PEER.search(op)
    message = bool(entry.get("is_p2p") or peer)
    sizes = entry.get("input_sizes") or entry.get("output_sizes") or ()
    types = entry.get("input_dtypes") or entry.get("output_dtypes") or ()
    shape = " ".join([*("×".join(map(str, one)) for one in sizes), *dict.fromkeys(map(str, types))])
    state = entry.get("state")
    frames = [one for one in entry.get("frames") or () if "/torch/" not in str(one["filename"])]
    return Call(
        group=(name, description),
        number=int(entry["p2p_seq_id" if message else "collective_seq_id"]),
        op=op,
        shape=f" of {shape}" if shape else "",
        message=message,
        peer=int(peer[1]) if peer else None,
        done=bool(entry.get("retired")) or state == "completed",
        started=state != "scheduled" if str(entry["profiling_name"]).startswith("nccl") else None,
        at=_at(frames[0]) if frames else "",
    )


def _at(frame: Mapping[str, Any]) -> str:
    return f"{PurePath(str(frame['filename'])).name}:{frame['line']} {frame['name']}"


def dump_causes(dumps: Iterable[Dump]) -> list[Cause]:
    """Who keeps ranks waiting, by the dumps of a job; [] if no rank waits.

    A rank that others wait for, and that waits itself, is followed to the one that waits nowhere.
    Ranks that wait for one another in a circle called their collectives in different orders.
    """
    by_rank = {one.rank: one for one in dumps}
    waits: dict[int, list[Wait]] = {}
    for group, number, members in _open(by_rank):
        inside = {
            r: c for r in by_rank if (c := _entered(by_rank, r, group).get(number)) is not None
        }
        if differ := _different(inside):
            return [differ]
        absent = frozenset(r for r in members if not _reached(by_rank, r, group, number))
        for rank, call in inside.items():
            if not call.done:
                waits.setdefault(rank, []).append(Wait(call, absent))
    for rank, wait in _messages(by_rank):
        waits.setdefault(rank, []).append(wait)
    awaited = {other for found in waits.values() for one in found for other in one.awaited}
    held = {rank for rank, found in waits.items() if any(one.awaited for one in found)}
    if roots := awaited - held:
        return list(_missing(roots, waits, by_rank))
    idle = by_rank.keys() - waits.keys()
    if idle and not awaited and _unknown(waits, by_rank):
        return [_idle(tuple(sorted(idle)), waits)]
    if awaited:
        texts = dict.fromkeys(str(one.call) for rank in sorted(awaited) for one in waits[rank])
        detail = f"they wait for one another: {'; '.join(texts)}"
        ranks = tuple(sorted(awaited))
        return [
            Cause(known_cause("ranks' collectives differ"), next(iter(texts)), ranks, detail=detail)
        ]
    return list(_all_entered(waits))


def _open(by_rank: Mapping[int, Dump]) -> Iterator[tuple[Group, int, tuple[int, ...]]]:
    """Each group with a collective that has not ended: its number, the first, and the members."""
    groups = dict.fromkeys(one.group for dump in by_rank.values() for one in dump.calls)
    for group in groups:
        every = [one for dump in by_rank.values() for one in dump.collectives(group).values()]
        if unfinished := [one.number for one in every if not one.done]:
            yield group, min(unfinished), _members(group, by_rank)


def _members(group: Group, by_rank: Mapping[int, Dump]) -> tuple[int, ...]:
    """Ranks of a group: as a dump says; of the default group, all that have one; () if unknown."""
    for dump in by_rank.values():
        if found := dump.members.get(group[0]):
            return found
    return tuple(sorted(by_rank)) if group[1] == "default_pg" else ()


def _entered(by_rank: Mapping[int, Dump], rank: int, group: Group) -> Mapping[int, Call]:
    return by_rank[rank].collectives(group) if rank in by_rank else {}


def _reached(by_rank: Mapping[int, Dump], rank: int, group: Group, number: int) -> bool:
    """Whether a rank has entered this collective, or a later one: old calls are overwritten."""
    return max(_entered(by_rank, rank, group), default=-1) >= number


def _different(inside: Mapping[int, Call]) -> Cause | None:
    """Ranks that called something else; all of them, if as many did as did not."""
    said = {rank: one.what for rank, one in inside.items()}
    if len({*said.values()}) < 2:
        return None
    ranks = odd_ranks(said)
    texts = dict.fromkeys(map(str, inside.values()))
    kind = known_cause("ranks' collectives differ")
    return Cause(kind, str(inside[ranks[0]]), ranks, detail=" or ".join(texts))


def _messages(by_rank: Mapping[int, Dump]) -> Iterator[tuple[int, Wait]]:
    """Ranks in a message of which the other side has no counterpart."""
    for rank, dump in by_rank.items():
        for call in dump.calls:
            if call.done or call.peer is None:
                continue
            members = _members(call.group, by_rank)
            peer = members[call.peer] if call.peer < len(members) else call.peer
            others = by_rank[peer].calls if peer in by_rank else ()
            met = any(
                one.group == call.group and one.peer is not None and not one.done for one in others
            )
            yield rank, Wait(call, frozenset() if met else frozenset({peer}))
            break


def _missing(
    roots: Iterable[int], waits: Mapping[int, list[Wait]], by_rank: Mapping[int, Dump]
) -> Iterator[Cause]:
    """Ranks that others wait for, and that wait for nobody; apart those without a dump."""
    for name in ("rank did not join", "rank lost"):
        ranks = tuple(sorted(r for r in roots if (r in by_rank) is (name == "rank did not join")))
        if not ranks:
            continue
        waiting = {
            rank: one.call
            for rank, found in waits.items()
            for one in found
            if one.awaited.intersection(ranks)
        }
        call = next(iter(waiting.values()))
        detail = f"ranks {format_cpulist(tuple(sorted(waiting)))} wait in {call}"
        if name == "rank lost":
            detail += "; no dump of it"
        elif last := by_rank[ranks[0]].calls[-1:]:
            detail += f"; its last call was {last[0]}"
        yield Cause(known_cause(name), str(call), ranks, detail=detail)


def _unknown(waits: Mapping[int, list[Wait]], by_rank: Mapping[int, Dump]) -> bool:
    """Whether ranks wait in a group of which no dump has the members, as with gloo."""
    calls = (one.call for found in waits.values() for one in found)
    return any(not _members(one.group, by_rank) for one in calls)


def _idle(ranks: tuple[int, ...], waits: Mapping[int, list[Wait]]) -> Cause:
    """The only ranks that wait nowhere, of a job whose groups are not known."""
    texts = dict.fromkeys(str(one.call) for found in waits.values() for one in found)
    detail = f"only these wait nowhere; others wait in {'; '.join(texts)}"
    return Cause(known_cause("rank did not join"), next(iter(texts)), ranks, detail=detail)


def _all_entered(waits: Mapping[int, list[Wait]]) -> Iterator[Cause]:
    """Collectives that all ranks have entered; suspects are those whose device has not begun it."""
    stuck: dict[Group, dict[int, Call]] = {}
    for rank, found in waits.items():
        for one in found:
            stuck.setdefault(one.call.group, {})[rank] = one.call
    for inside in stuck.values():
        late = sorted(rank for rank, one in inside.items() if one.started is False)
        some = 0 < len(late) < len(inside)
        call = next(iter(inside.values()))
        detail = f"all ranks entered {call}"
        detail += "; the devices of these have not begun it" if some else ""
        ranks = tuple(late if some else sorted(inside))
        yield Cause(known_cause("collective timed out"), str(call), ranks, detail=detail)
