"""Which type of GID the connections of a rank use, by its log and the ports of its node. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_mnode.criteria.transport.facts import Port
from pytest_mnode.criteria.transport.settings import version_numbers
from pytest_mnode.logs.nccl_log import Gid

GID_CHOSEN_FROM = (2, 21)
"""Until then NCCL takes GID 0 unless told; since then the one of the RoCE version asked for.

Source: NCCL user guide, NCCL_IB_GID_INDEX and NCCL_IB_ROCE_VERSION_NUM.
"""


def wrong_gids(
    gids: Sequence[Gid], ports: Sequence[Port], roce_version: str, nccl_version: str | None
) -> Iterator[str]:
    """What stands against GIDs of `roce_version`, in words.

    gids: as one rank logged them. ports: of the fabric, on its node. nccl_version: where GID 0 is
    taken if the version does so; None where a setting names another, or nothing runs over RDMA.
    """
    shown = {_version(gid.roce_version) for gid in gids} - {None, roce_version}
    if shown:
        versions = ", ".join(sorted(str(v) for v in shown))
        yield f"connections use RoCE {versions} GIDs, promised {roce_version}"
        return
    used = _used(gids, ports)
    for (number, type_), names in used.items():
        if type_ != roce_version:
            yield (
                f"connections use GID {number}, which is RoCE {type_} on {', '.join(names)}, "
                f"promised {roce_version}"
            )
    version = version_numbers(nccl_version)
    if used or version is None or version >= GID_CHOSEN_FROM:
        return
    wrong: dict[str, list[str]] = {}
    for port in ports:
        first = (port.gid_types or {}).get(0)
        if first not in (None, roce_version):
            wrong.setdefault(str(first), []).append(f"{port.device}:{port.port}")
    for first, ports_of_it in wrong.items():
        yield (
            f"NCCL {nccl_version} takes GID 0 unless told, which is RoCE {first} on "
            f"{', '.join(ports_of_it)}, promised {roce_version}"
        )


def _used(gids: Sequence[Gid], ports: Sequence[Port]) -> dict[tuple[int, str], list[str]]:
    """Ports by index and type of the GIDs that connections are logged with."""
    found: dict[tuple[int, str], list[str]] = {}
    for gid in gids:
        for port in ports:
            if gid.index is None or (port.device, port.port) != (gid.device, gid.port or port.port):
                continue
            type_ = (port.gid_types or {}).get(gid.index)
            if type_ is not None:
                names = found.setdefault((gid.index, type_), [])
                name = f"{port.device}:{port.port}"
                names += [name] if name not in names else []
    return found


def _version(told: str | None) -> str | None:
    digits = re.search(r"[12]", told or "")
    return f"v{digits[0]}" if digits else None
