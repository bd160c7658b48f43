"""Communicators and ranks, out of the lines that begin and complete them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_mnode.logs.nccl_log.facts import Channel, Comm, Process
from pytest_mnode.logs.nccl_log.log import RankLog
from pytest_mnode.logs.nccl_log.text import NOBODY, Line

_COMM = re.compile(
    r"(?:nccl\w{1,40} )?comm (?P<address>0x[0-9a-fA-F]{1,16}) rank (?P<rank>\d{1,7}) "
    r"n[rR]anks (?P<size>\d{1,7})(?P<rest>.{0,600})",
    re.ASCII,
)
_PAIR = re.compile(r"\b(\w{2,20}) (0x[0-9a-fA-F]{1,16}|-?\w{1,20})", re.ASCII)


@dataclass(slots=True)
class _Comm:
    process: Process
    address: str
    thread: int | None
    values: dict[str, str] = field(default_factory=dict)
    started: bool = False
    complete: bool = False
    aborted: bool = False

    def number(self, name: str) -> int | None:
        text = self.values.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None

    def frozen(self) -> Comm:
        return Comm(
            process=self.process,
            address=self.address,
            id=self.values.get("commId"),
            rank=self.number("rank"),
            size=self.number("size"),
            nodes=self.number("nNodes"),
            local_rank=self.number("localRank"),
            local_size=self.number("localRanks"),
            cuda_device=self.number("cudaDev"),
            bus_id=self.values.get("busId"),
            parent=self.values.get("parent"),
            started=self.started,
            complete=self.complete,
            aborted=self.aborted,
        )


class Comms:
    """Communicators met so far, and which one a thread is about to make."""

    def __init__(self) -> None:
        self._all: dict[tuple[Process, str, str | None], _Comm] = {}
        self._current: dict[tuple[Process, str], _Comm] = {}
        self._making: dict[tuple[Process, int | None], _Comm] = {}

    def read(self, line: Line) -> str | None:
        """Take in a line about a communicator; returns what it came to, `COMPLETE` or `START`.

        Any other line returns None, and a line that only describes one the empty string.
        """
        found = _COMM.match(line.message)
        if found is None:
            return None
        if not line.whole and not line.message.endswith((" START", " COMPLETE")):
            return ""
        values = {"rank": found["rank"], "size": found["size"]}
        values |= {name: value for name, value in _PAIR.findall(found["rest"]) if name != "Init"}
        comm = self._of(line, found["address"], values.get("commId"))
        comm.values |= values
        place = (line.process, line.thread)
        rest = found["rest"].rstrip()
        if rest.endswith("Init START"):
            comm.started = True
            self._making[place] = comm
            return "START"
        if rest.endswith("Init COMPLETE"):
            comm.complete = True
            self._making.pop(place, None)
            return "COMPLETE"
        if rest.endswith("Abort COMPLETE"):
            comm.aborted = True
        if rest.endswith("Destroy COMPLETE"):
            comm.complete = True
            return "DESTROYED"
        return ""

    def _of(self, line: Line, address: str, comm_id: str | None) -> _Comm:
        """The communicator at `address`; another one, where an address is used again."""
        current = self._current.get((line.process, address))
        known = current.values.get("commId") if current else None
        if current is None or (comm_id and known and comm_id != known):
            key = (line.process, address, comm_id)
            current = self._all.get(key)
            if current is None:
                current = _Comm(process=line.process, address=address, thread=line.thread)
                self._all[key] = current
            self._current[(line.process, address)] = current
        return current

    def being_made(self, line: Line) -> str | None:
        """Address of the communicator that the thread of `line` is making."""
        comm = self._making.get((line.process, line.thread))
        return comm.address if comm else None

    def all(self) -> tuple[Comm, ...]:
        return tuple(comm.frozen() for comm in self._all.values())


def fitting(channel: Channel, comms: Sequence[Comm]) -> str | None:
    """The only communicator of `comms`, all of the channel's process, it can belong to."""
    peer = channel.sender if channel.rank == channel.receiver else channel.receiver
    fit = {
        comm.address
        for comm in comms
        if comm.rank in (None, channel.rank)
        and (comm.size is None or peer is None or peer < comm.size)
        and (comm.cuda_device is None or channel.cuda_device in (None, comm.cuda_device))
    }
    return fit.pop() if len(fit) == 1 else None


def ranks_of(
    comms: Sequence[Comm], channels: Sequence[Channel], processes: Sequence[Process]
) -> tuple[RankLog, ...]:
    """Ranks that `processes` are, with their communicators and channels.

    A process is one rank, or several where its communicators are on several devices.
    """
    comms_of: dict[Process, list[Comm]] = {process: [] for process in processes}
    channels_of: dict[Process, list[Channel]] = {process: [] for process in processes}
    for comm in comms:
        comms_of.setdefault(comm.process, []).append(comm)
    for channel in channels:
        channels_of.setdefault(channel.process, []).append(channel)
    ranks: list[RankLog] = []
    for process, mine in comms_of.items():
        printed = channels_of.get(process, [])
        ranks += _known(process, mine, printed) if mine else _unknown(process, printed)
    return tuple(ranks)


def _known(process: Process, comms: Sequence[Comm], channels: Sequence[Channel]) -> list[RankLog]:
    """Ranks of a process that made communicators."""
    by_rank = process.pid is None or _share_a_name(comms)
    by_place: dict[int | None, list[Comm]] = {}
    for comm in comms:
        by_place.setdefault(comm.rank if by_rank else comm.cuda_device, []).append(comm)
    if None in by_place and len(by_place) == 2:
        # Lines that name a communicator's device are missing; the process has but one.
        unplaced = by_place.pop(None)
        next(iter(by_place.values())).extend(unplaced)
    if len(by_place) == 1:
        return [_rank(process, None, comms, channels)]
    places = {comm.address: place for place, mine in by_place.items() for comm in mine}
    theirs: dict[int | None, list[Channel]] = {}
    for channel in channels:
        otherwise = channel.rank if by_rank else channel.cuda_device
        theirs.setdefault(places.get(channel.comm or "", otherwise), []).append(channel)
    return [
        _rank(process, None if by_rank else place, mine, theirs.get(place, []))
        for place, mine in by_place.items()
    ]


def _share_a_name(comms: Sequence[Comm]) -> bool:
    """Whether one device is two ranks of a communicator: then two processes have one host and pid.

    So it is with containers that all have the same name.
    """
    ranks: dict[tuple[str, int | None], int] = {}
    return any(
        ranks.setdefault((comm.id, comm.cuda_device), comm.rank) != comm.rank
        for comm in comms
        if comm.id is not None and comm.rank is not None
    )


def _unknown(process: Process, channels: Sequence[Channel]) -> list[RankLog]:
    """Ranks of a process whose communicators were not logged, by what its channels say."""
    by_number: dict[int | None, list[Channel]] = {}
    for channel in channels:
        by_number.setdefault(channel.rank, []).append(channel)
    if process.pid is None and by_number:
        return [_rank(process, None, (), mine, n) for n, mine in by_number.items()]
    if process == NOBODY:
        return []
    by_device: dict[int | None, list[Channel]] = {}
    for channel in channels:
        by_device.setdefault(channel.cuda_device, []).append(channel)
    several = len(by_device) > 1
    found = []
    for device, mine in (by_device or {None: []}).items():
        # With several numbers on one device the process has several communicators.
        numbers = {channel.rank for channel in mine}
        number = numbers.pop() if len(numbers) == 1 else None
        found.append(_rank(process, device if several else None, (), mine, number))
    return found


def _rank(
    process: Process,
    device: int | None,
    comms: Sequence[Comm],
    channels: Sequence[Channel],
    number: int | None = None,
) -> RankLog:
    world = max(comms, key=lambda comm: comm.size or 0) if comms else None
    return RankLog(
        process=process,
        cuda_device=device,
        rank=world.rank if world else number,
        size=world.size if world else None,
        comms=tuple(comms),
        channels=tuple(channels),
        complete=all(comm.complete for comm in comms) if comms else None,
    )
