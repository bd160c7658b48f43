"""Channel lines: which ranks, over what. Formats from NCCL 2.4 on, and RCCL's."""

from __future__ import annotations

import re

from pytest_mnode.logs.nccl_log.facts import Channel, Direction, Transport
from pytest_mnode.logs.nccl_log.text import Line

_CHANNEL = re.compile(
    r"(?:Channel|Ring) (?P<number>\d{1,4})(?:/(?P<connection>\d{1,4}))? ?: "
    r"(?P<sender>\d{1,7})(?:\[(?P<sender_device>[0-9a-fA-F]{1,16})\])? ?-> ?"
    r"(?P<receiver>\d{1,7})(?:\[(?P<receiver_device>[0-9a-fA-F]{1,16})\])?"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>.+)",
    re.ASCII,
)
_COLLECTIVE = re.compile(
    r"Coll(?:Net)? (?P<number>\d{1,4})(?:/(?P<connection>\d{1,4}))? ?: "
    r"(?P<rank>\d{1,7})(?:\[(?P<device>[0-9a-fA-F]{1,16})\])?"
    r" \[(?P<direction>send|receive)\] via (?P<via>.+)",
    re.ASCII,
)
_NETWORK = re.compile(
    r"(?P<transport>NET|COLLNET)/(?P<network>[^/]{1,80})/(?P<device>\d{1,5})"
    r"(?:\((?P<proxy>\d{1,7})\))?(?P<flags>(?:/[A-Za-z][\w()]{0,40}){0,8})$",
    re.ASCII,
)
_WITHIN = re.compile(
    r"(?P<transport>P2P|SHM|NVLS)(?P<kind>(?:/(?:direct pointer|[\w\[\]()-]{1,40})){0,6})$",
    re.ASCII,
)
_OLD_SHM = "direct shared memory"
_OTHER = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{1,20})(?:/[\w\[\]()-]{1,40}){0,6}$", re.ASCII)
_WHOLE_KINDS = re.compile(
    r"P2P/(?:CUMEM|MNNVL|IPC|direct pointer)(?:/read|/CE)*$|SHM(?:/(?:direct|CE)){2}$"
)
_COMM = re.compile(r"\bcomm (0x[0-9a-fA-F]{1,16})\b")

_SPEAKS_OF_TRANSPORT = re.compile(r"\bvia (?:NET|COLLNET|P2P|SHM|NVLS|direct shared)\b")
_BEGINS_LIKE_A_CHANNEL = re.compile(r"(?:Channel|Coll(?:Net)?) \d{1,4}(?:/\d{1,4})? ?: .*(?:->|\[)")
_TOPOLOGY = re.compile(r"(?:Channel|Ring|Tree) \d{1,4} ?: -?\d+ -> -?\d+ -> [-\d/]+$", re.ASCII)


def read_channel(line: Line) -> Channel | None:
    """The channel that `line` tells of; None for other lines and for what cannot be read."""
    found = _CHANNEL.match(line.message)
    ends: tuple[int | None, int | None]
    if found is not None:
        ends = int(found["sender"]), int(found["receiver"])
        devices = found["sender_device"], found["receiver_device"]
    else:
        found = _COLLECTIVE.match(line.message)
        if found is None:
            return None
        own, device = int(found["rank"]), found["device"]
        sends = found["direction"] == "send"
        ends = (own, None) if sends else (None, own)
        devices = (device, None) if sends else (None, device)
    via, comm = _via_and_comm(found["via"])
    path = _path(via, whole=line.whole)
    if path is None:
        return None
    transport, network, index, proxy, gdr, flags = path
    connection = found["connection"]
    direction = found["direction"]
    return Channel(
        process=line.process,
        cuda_device=line.cuda_device,
        comm=comm,
        number=int(found["number"]),
        connection=None if connection is None else int(connection),
        sender=ends[0],
        receiver=ends[1],
        sender_device=devices[0],
        receiver_device=devices[1],
        direction=None if direction is None else Direction(direction),
        transport=transport,
        network=network,
        device=index,
        proxy_rank=proxy,
        gdr=gdr,
        gdr_through_pci="GDRDMA(PCI)" in flags,
        shared="Shared" in flags,
        detail=via,
    )


def cannot_be_read(message: str) -> bool:
    """Whether a message that is no channel to `read_channel` speaks of a channel's transport."""
    if _SPEAKS_OF_TRANSPORT.search(message):
        return True
    return bool(_BEGINS_LIKE_A_CHANNEL.match(message)) and not _TOPOLOGY.match(message)


def _via_and_comm(rest: str) -> tuple[str, str | None]:
    """What a channel runs on, apart from what RCCL says of its communicator behind it."""
    comm = _COMM.search(rest)
    via = rest[: comm.start()] if comm else rest
    return via.strip(), comm.group(1) if comm else None


_Path = tuple[Transport, str | None, int | None, int | None, bool | None, tuple[str, ...]]


def _path(via: str, *, whole: bool) -> _Path | None:
    found = _NETWORK.match(via)
    if found is not None:
        flags = tuple(found["flags"].split("/")[1:])
        gdr: bool | None = any(flag in ("GDRDMA", "GDRDMA(PCI)") for flag in flags)
        known = all(flag in ("GDRDMA", "GDRDMA(PCI)", "Shared") for flag in flags)
        if not gdr and not (known and (whole or flags)):
            gdr = None
        proxy = found["proxy"]
        device = int(found["device"]) if whole or flags or proxy else None
        return (
            Transport(found["transport"]),
            found["network"].strip(),
            device,
            None if proxy is None else int(proxy),
            gdr,
            flags,
        )
    within = _WITHIN.match(via)
    if within is not None and (
        (within["kind"] or within["transport"] == "NVLS") and (whole or _WHOLE_KINDS.match(via))
    ):
        return Transport(within["transport"]), None, None, None, None, ()
    if via == _OLD_SHM:
        # What NCCL printed before 2.12.
        return Transport.SHM, None, None, None, None, ()
    if whole and not via.startswith(("NET", "COLLNET", "P2P", "SHM")) and _OTHER.match(via):
        return Transport.OTHER, None, None, None, None, ()
    return None
