"""Channel lines: ranks and transport of a channel. Formats of NCCL since 2.4, and of RCCL."""

from __future__ import annotations

import re

from pytest_mnode.logs.nccl_log.model import Channel, Direction, Transport
from pytest_mnode.logs.nccl_log.text import Message

_CHANNEL = re.compile(
    r"(?:Channel|Ring) (?P<number>\d{1,4})(?:/(?P<connection>\d{1,4}))? ?: "
    r"(?P<sender>\d{1,7})(?:\[[0-9a-fA-F]{1,16}\])? ?-> ?"
    r"(?P<receiver>\d{1,7})(?:\[[0-9a-fA-F]{1,16}\])?"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>.+)",
    re.ASCII,
)
_COLLECTIVE = re.compile(
    r"Coll(?:Net)? (?P<number>\d{1,4})(?:/(?P<connection>\d{1,4}))? ?: "
    r"(?P<rank>\d{1,7})(?:\[[0-9a-fA-F]{1,16}\])?"
    r" \[(?P<direction>send|receive)\] via (?P<via>.+)",
    re.ASCII,
)
_NETWORK = re.compile(
    r"(?P<transport>NET|COLLNET)/(?P<network>[^/]{1,80})/(?P<device>\d{1,5})"
    r"(?:\((?P<proxy>\d{1,7})\))?(?P<flags>(?:/[A-Za-z][\w()=]{0,40}){0,8})"
    r"(?P<end>$|\s)",
    re.ASCII,
)
_WITHIN_NODE = re.compile(
    r"(?P<transport>P2P|SHM|NVLS)(?P<kind>(?:/(?:direct pointer|[\w\[\]()-]{1,40})){0,6})"
    r"(?P<end>$|\s)",
    re.ASCII,
)
_SHM_BEFORE_2_12 = "direct shared memory"
_OTHER = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{1,20})(?:/[\w\[\]()-]{1,40}){0,6}$", re.ASCII)
"""A path that nobody knows may have no text behind it: that could be a part of it."""
_WHOLE_KINDS = re.compile(
    r"P2P/(?:CUMEM|MNNVL|IPC|direct pointer)(?:/read|/CE)*$|SHM(?:/(?:direct|CE)){2}$"
)
_GDR_FLAGS = ("GDRDMA", "GDRDMA(PCI)")
_KNOWN_FLAGS = r"GDRDMA(?:\(PCI\))?|Shared|flush=\w+"
"""NCCL 2.31 prints how a receiver flushes: flush=None, flush=Always, ..."""
_COMM = re.compile(r"\bcomm (0x[0-9a-fA-F]{1,16})\b")

_SPEAKS_OF_TRANSPORT = re.compile(r"\bvia (?:NET|COLLNET|P2P|SHM|NVLS|direct shared)\b")
_BEGINS_LIKE_A_CHANNEL = re.compile(r"(?:Channel|Coll(?:Net)?) \d{1,4}(?:/\d{1,4})? ?: .*(?:->|\[)")
_TOPOLOGY = re.compile(r"(?:Channel|Ring|Tree) \d{1,4} ?: -?\d+ -> -?\d+ -> [-\d/]+$", re.ASCII)


def read_channel(line: Message) -> Channel | None:
    """The channel of `line`; None for other lines and for a channel that cannot be read."""
    found = _CHANNEL.match(line.message) or _COLLECTIVE.match(line.message)
    if found is None:
        return None
    direction = found["direction"]
    sender: int | None
    receiver: int | None
    if found.re is _CHANNEL:
        sender, receiver = int(found["sender"]), int(found["receiver"])
    else:
        own = int(found["rank"])
        sender, receiver = (own, None) if direction == "send" else (None, own)
    # RCCL prints the communicator after the path.
    comm = _COMM.search(found["via"])
    via = found["via"][: comm.start() if comm else None].strip()
    path = _path(via, whole=line.whole)
    if path is None:
        return None
    transport, network, device, gdr, detail = path
    return Channel(
        process=line.process,
        cuda_device=line.cuda_device,
        comm=comm.group(1) if comm else None,
        number=int(found["number"]),
        connection=None if found["connection"] is None else int(found["connection"]),
        sender=sender,
        receiver=receiver,
        direction=None if direction is None else Direction(direction),
        transport=transport,
        network=network,
        device=device,
        gdr=gdr,
        detail=detail,
    )


def is_unreadable_channel(message: str) -> bool:
    """Whether a message that `read_channel` does not read is about a channel's transport."""
    if _SPEAKS_OF_TRANSPORT.search(message):
        return True
    return bool(_BEGINS_LIKE_A_CHANNEL.match(message)) and not _TOPOLOGY.match(message)


_Path = tuple[Transport, str | None, int | None, bool | None, str]
"""Transport, network, device, GPUDirect, and the text that shows them."""


def _path(via: str, *, whole: bool) -> _Path | None:
    """The path at the beginning of `via`; another program's text may stand behind it."""
    found = _NETWORK.match(via)
    if found is not None:
        whole |= found["end"] != ""
        detail = found[0].rstrip()
        flags = found["flags"].split("/")[1:]
        gdr: bool | None = any(flag in _GDR_FLAGS for flag in flags)
        known = all(re.fullmatch(_KNOWN_FLAGS, flag) for flag in flags)
        if not gdr and not (known and (whole or flags)):
            gdr = None
        device = int(found["device"]) if whole or flags or found["proxy"] else None
        return Transport(found["transport"]), found["network"].strip(), device, gdr, detail
    within = _WITHIN_NODE.match(via)
    if within is not None and (
        (within["kind"] or within["transport"] == "NVLS")
        and (whole or within["end"] or _WHOLE_KINDS.match(via))
    ):
        return Transport(within["transport"]), None, None, None, within[0].rstrip()
    if re.match(rf"{_SHM_BEFORE_2_12}(?:$|\s)", via):
        return Transport.SHM, None, None, None, _SHM_BEFORE_2_12
    if whole and not via.startswith(("NET", "COLLNET", "P2P", "SHM")) and _OTHER.match(via):
        return Transport.OTHER, None, None, None, via
    return None
