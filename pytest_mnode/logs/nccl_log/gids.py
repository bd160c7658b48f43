"""Lines with the addresses of RDMA connections, and with the errors of failed ones."""

from __future__ import annotations

import ipaddress
import re

from pytest_mnode.logs.nccl_log.model import NcclGid, NcclProcess

_MODIFY_QP = re.compile(r"ibv_modify_qp failed with (?:error )?(?P<error>[^,]{1,120})", re.ASCII)
_COMPLETION = re.compile(
    r"Got completion (?:from peer|with) .{0,120}?"
    r"(?P<error>(?:status|error)[ =](?:\w{1,40}\()?\d{1,5}.{0,80}?vendor[ _]err[ =]\w{1,8})"
)
_GID_INDEX = re.compile(r"\bGID (?:index )?(\d{1,4})\b", re.ASCII)
_GID_RAW = re.compile(
    r"\bGID \d{1,4} \((?P<prefix>[0-9a-fA-F]{1,16})/(?P<interface>[0-9a-fA-F]{1,16})\)"
)
_LOCAL = re.compile(r"\blocal ?G(?:ID|id)s? ?([0-9a-fA-F:.]{2,45})")
_REMOTE = re.compile(r"\bremote ?G(?:ID|id)s? ?([0-9a-fA-F:.]{2,45})")
_ON_DEVICE = re.compile(r"\b(?:on dev|hca|Dev name|HCA) '?([A-Za-z]\w{1,40})(?::(\d{1,3}))?")
_IB_DEVICE = re.compile(r"\bI[bB]Dev (\d{1,4}) Port (\d{1,3})", re.ASCII)
_ROCE = re.compile(r"\bRoCE ?(?:v|[Vv]er(?:sion)?(?:_num)?)[ =]?:? ?(\d)", re.ASCII)


def read_gid(process: NcclProcess, message: str) -> NcclGid | None:
    """The addresses of a connection in a message; None for any other message."""
    if "GID" not in message and "Gid" not in message and "ibv_modify_qp" not in message:
        return None
    failed = _MODIFY_QP.search(message) or _COMPLETION.search(message)
    index, local, remote = (
        _GID_INDEX.search(message),
        _LOCAL.search(message),
        _REMOTE.search(message),
    )
    roce = _ROCE.search(message)
    if not (failed or index or local or remote or roce):
        return None
    named, numbered = _ON_DEVICE.search(message), _IB_DEVICE.search(message)
    port = named.group(2) if named else numbered.group(2) if numbered else None
    raw = _GID_RAW.search(message)
    return NcclGid(
        process=process,
        device=named.group(1) if named else None,
        device_index=int(numbered.group(1)) if numbered and not named else None,
        port=None if port is None else int(port),
        index=int(index.group(1)) if index else None,
        local=_gid(local.group(1)) if local else _from_halves(raw),
        remote=_gid(remote.group(1)) if remote else None,
        roce_version=roce.group(1) if roce else None,
        error=failed["error"].strip() if failed else None,
    )


def _gid(text: str) -> str | None:
    """The address; None if it is redacted or cut."""
    try:
        ipaddress.IPv6Address(text.rstrip("."))
    except ValueError:
        return None
    return text.rstrip(".")


def _from_halves(found: re.Match[str] | None) -> str | None:
    """A GID from its two halves, which NCCL prints in the byte order of the machine."""
    if found is None:
        return None
    halves = (int(found[half], 16).to_bytes(8, "little") for half in ("prefix", "interface"))
    address = ipaddress.IPv6Address(b"".join(halves))
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


WRONG_GID, NO_ROUTE = "wrong GID", "no route between RDMA ports"


def connection_failure(gid: NcclGid) -> str | None:
    """Why a queue pair could not be connected; None if its addresses do not explain it.

    A wrong GID: addresses of two kinds, a link-local or an empty one. A missing route: a routing
    error, or a time-out between two IPv4 subnets (/24, because no mask is logged).
    """
    ends = [ipaddress.IPv6Address(end) for end in (gid.local, gid.remote) if end is not None]
    if any(end.is_link_local or int(end) == 0 for end in ends):
        return WRONG_GID
    mapped = [end.ipv4_mapped for end in ends]
    if len(ends) == 2 and (mapped[0] is None) != (mapped[1] is None):
        return WRONG_GID
    error = gid.error or ""
    if re.search(r"unreachable|[Nn]o route", error):
        return NO_ROUTE
    subnets = {int(address) >> 8 for address in mapped if address is not None}
    return NO_ROUTE if len(subnets) == 2 and "timed out" in error else None
