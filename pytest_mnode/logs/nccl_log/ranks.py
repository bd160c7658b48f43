"""Communicators and ranks, from the lines that begin and complete communicators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode.logs.nccl_log.model import NOBODY, Channel, Comm, NcclProcess, RankLog
from pytest_mnode.logs.nccl_log.text import Message

_COMM = re.compile(
    r"(?:\[Rank \d{1,7}\] )?(?:nccl\w{1,40} )?comm (?P<address>0x[0-9a-fA-F]{1,16}) "
    r"rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7})(?P<rest>.{0,600})",
    re.ASCII,
)
_DEVICE = re.compile(r"\bcudaDev (\d{1,7})\b", re.ASCII)
_ID = re.compile(r"\bcommId (0x[0-9a-fA-F]{1,16}|-?\w{1,20})", re.ASCII)


class Comms:
    """Communicators read so far, and the one that each thread is creating."""

    def __init__(self) -> None:
        self._all: dict[tuple[NcclProcess, str], Comm] = {}
        self._at: dict[tuple[NcclProcess, str], list[tuple[NcclProcess, str]]] = {}
        self._begun: dict[tuple[NcclProcess, str], tuple[NcclProcess, str]] = {}
        self._creating: dict[tuple[NcclProcess, int | None], str] = {}

    def read(self, line: Message) -> str | None:
        """Read a line about a communicator; returns the state it reports, such as `COMPLETE`.

        None for any other line; the empty string for a line that only describes a communicator.
        """
        found = _COMM.match(line.message)
        if found is None:
            return None
        if not line.whole and not line.message.endswith((" START", " COMPLETE")):
            return ""
        device, comm_id = _DEVICE.search(found["rest"]), _ID.search(found["rest"])
        # Without the communicator's device, the device of the thread that writes is its own.
        printed = int(device[1]) if device else line.cuda_device
        rest = found["rest"].rstrip()
        starts = rest.endswith("Init START")
        key = self._key(line, found["address"], comm_id and comm_id[1], starts)
        known = self._all.get(key) or Comm(*key)
        comm = replace(
            known,
            id=comm_id[1] if comm_id else known.id,
            rank=int(found["rank"]),
            size=int(found["size"]),
            cuda_device=printed if device or known.cuda_device is None else known.cuda_device,
        )
        self._all[key] = comm
        thread = (line.process, line.thread)
        if starts:
            self._creating[thread] = comm.address
            return "START"
        if rest.endswith("Init COMPLETE"):
            self._creating.pop(thread, None)
            self._all[key] = replace(comm, complete=True)
            return "COMPLETE"
        if rest.endswith("Destroy COMPLETE"):
            self._all[key] = replace(comm, complete=True)
            return "DESTROYED"
        return ""

    def _key(
        self, line: Message, address: str, comm_id: str | None, starts: bool
    ) -> tuple[NcclProcess, str]:
        """The communicator at `address`; a new one if the address is reused."""
        used = self._at.setdefault((line.process, address), [])
        known = self._all[used[-1]] if used else None
        begun = self._begun.get((line.process, line.message)) if starts else None
        if begun is not None:  # a line printed twice
            used.remove(begun)
            used.append(begun)
        elif (
            known is None
            or (comm_id and known.id and comm_id != known.id)
            # One that is split off another one has no id.
            or (starts and known.complete and not (comm_id and known.id))
        ):
            used.append((line.process, f"{address}#{len(used) + 1}" if used else address))
        if starts:
            self._begun[line.process, line.message] = used[-1]
        return used[-1]

    def named(self, process: NcclProcess, address: str) -> str:
        """The address of the communicator that is at `address` now."""
        used = self._at.get((process, address))
        return used[-1][1] if used else address

    def created_by(self, line: Message) -> str | None:
        """Address of the communicator that the thread of `line` is creating."""
        return self._creating.get((line.process, line.thread))

    def all(self) -> tuple[Comm, ...]:
        return tuple(self._all.values())


def fitting(channel: Channel, comms: Sequence[Comm]) -> str | None:
    """The only communicator of the channel's process (`comms`) that the channel can belong to.

    Of those at one address, the last.
    """
    peer = channel.sender if channel.rank == channel.receiver else channel.receiver
    fit = {
        comm.address.partition("#")[0]: comm.address
        for comm in comms
        if comm.rank in (None, channel.rank)
        and (comm.size is None or peer is None or peer < comm.size)
        and (comm.cuda_device is None or channel.cuda_device in (None, comm.cuda_device))
    }
    return fit.popitem()[1] if len(fit) == 1 else None


def ranks_of(
    comms: Sequence[Comm], channels: Sequence[Channel], processes: Sequence[NcclProcess]
) -> tuple[RankLog, ...]:
    """The ranks of `processes`, with their communicators and channels.

    A process is one rank, or several if its communicators are on several devices.
    """
    comms_of: dict[NcclProcess, list[Comm]] = {process: [] for process in processes}
    channels_of: dict[NcclProcess, list[Channel]] = {process: [] for process in processes}
    for comm in comms:
        comms_of.setdefault(comm.process, []).append(comm)
    for channel in channels:
        channels_of.setdefault(channel.process, []).append(channel)
    ranks: list[RankLog] = []
    for process, own in comms_of.items():
        printed = channels_of.get(process, [])
        ranks += _by_comms(process, own, printed) if own else _by_channels(process, printed)
    return tuple(ranks)


def _by_comms(
    process: NcclProcess, comms: Sequence[Comm], channels: Sequence[Channel]
) -> list[RankLog]:
    """Ranks of a process that created communicators."""
    by_rank = process.pid is None or _same_name_twice(comms)
    by_key: dict[int | None, list[Comm]] = {}
    for comm in comms:
        by_key.setdefault(comm.rank if by_rank else comm.cuda_device, []).append(comm)
    if None in by_key and len(by_key) == 2:
        # Lines with a communicator's device are missing; the process has only one device.
        unplaced = by_key.pop(None)
        next(iter(by_key.values())).extend(unplaced)
    if len(by_key) == 1:
        return [_rank(process, None, comms, channels)]
    keys = {comm.address: key for key, own in by_key.items() for comm in own}
    channels_by_key: dict[int | None, list[Channel]] = {}
    for channel in channels:
        otherwise = channel.rank if by_rank else channel.cuda_device
        channels_by_key.setdefault(keys.get(channel.comm or "", otherwise), []).append(channel)
    return [
        _rank(process, None if by_rank else key, own, channels_by_key.get(key, []))
        for key, own in by_key.items()
    ]


def _same_name_twice(comms: Sequence[Comm]) -> bool:
    """Whether one device is two ranks of a communicator.

    Containers with one host name share host and pid. Where no line has an id, communicators of one
    size are one.
    """
    ranks: dict[tuple[str | int | None, int | None], int] = {}
    any_id = any(comm.id is not None for comm in comms)
    return any(
        ranks.setdefault((comm.id or comm.size, comm.cuda_device), comm.rank) != comm.rank
        for comm in comms
        if comm.rank is not None and (comm.id is not None or not any_id)
    )


def _by_channels(process: NcclProcess, channels: Sequence[Channel]) -> list[RankLog]:
    """Ranks of a process whose communicators were not logged, by the ranks in its channels."""
    by_number: dict[int | None, list[Channel]] = {}
    for channel in channels:
        by_number.setdefault(channel.rank, []).append(channel)
    if process.pid is None and by_number:
        return [_rank(process, None, (), own, number) for number, own in by_number.items()]
    if process == NOBODY:
        return []
    by_device: dict[int | None, list[Channel]] = {}
    for channel in channels:
        by_device.setdefault(channel.cuda_device, []).append(channel)
    several = len(by_device) > 1
    found = []
    for device, own in (by_device or {None: []}).items():
        # Several numbers on one device: the process has several communicators.
        numbers = {channel.rank for channel in own}
        number = numbers.pop() if len(numbers) == 1 else None
        found.append(_rank(process, device if several else None, (), own, number))
    return found


def _rank(
    process: NcclProcess,
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
