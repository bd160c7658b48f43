"""Finds why NCCL left RDMA, or uses a wrong type of GID: the likeliest cause first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_mnode.criteria.transport.evidence import RankTransport
from pytest_mnode.criteria.transport.node_traffic import NodeTraffic, gid_types
from pytest_mnode.criteria.transport.remarks import Case
from pytest_mnode.criteria.transport.selection import Selection
from pytest_mnode.criteria.transport.settings import GID_CHOSEN_SINCE, is_on, version_numbers
from pytest_mnode.logs.causes import causes
from pytest_mnode.logs.nccl_log import NcclGid, NcclLog, NetworkKind, Warn, provider_network
from pytest_mnode.logs.nccl_log.gids import WRONG_GID
from pytest_mnode.machine.rdma import Port
from pytest_mnode.spec.models import Spec

_SHOWN = 160


def why_fallen_back(
    rank: RankTransport, node: NodeTraffic, log: NcclLog, spec: Spec
) -> tuple[Case, str]:
    """The cause of a fallback to sockets, as a case and in words."""
    return next(_reasons(rank, node, log, spec), (Case.SOCKETS, "the log does not show why"))


def _reasons(
    rank: RankTransport, node: NodeTraffic, log: NcclLog, spec: Spec
) -> Iterator[tuple[Case, str]]:
    """Settings first, in the environment or in the log, then what the machine lacks."""
    settings = rank.logged_settings | dict(rank.environment)
    kind, ports = spec.fabric.kind, node.machine.ports
    verbs, rdma = kind in ("infiniband", "roce"), spec.fabric.protocol is not None
    if is_on(settings.get("NCCL_IB_DISABLE")) and verbs:
        yield Case.IB_DISABLED, f"NCCL_IB_DISABLE={settings['NCCL_IB_DISABLE']}"
    net = settings.get("NCCL_NET", "")
    if net.lower() in ("socket", "fastsocket"):
        yield Case.NET_CHOSEN, f"NCCL_NET={net}"
    if rdma and node.machine.rdma is not None and not ports:
        yield Case.NO_DEVICE, "the node has no RDMA device"
    if rdma and ports and all(port.active is False for port in ports):
        states = ", ".join(f"{port.name} {port.state}" for port in ports)
        yield Case.NO_DEVICE, f"no RDMA port is active ({states})"
    hca = settings.get("NCCL_IB_HCA")
    if hca and ports and verbs and (why := node.why_not_taken(Selection.of(hca))):
        yield Case.WRONG_INTERFACE, f"NCCL_IB_HCA={hca} {why}"
    own = rank.own_log
    providers = log.providers_of(own.process) if own else ()
    if providers and all(provider_network(p) is NetworkKind.SOCKETS for p in providers):
        yield Case.SOCKETS, f"libfabric chose the provider {', '.join(providers)}"
    plugin = settings.get("NCCL_NET_PLUGIN", "")
    if not verbs and plugin.lower() == "none":
        yield Case.NET_CHOSEN, f"NCCL_NET_PLUGIN={plugin}"
    uses = (use for use in log.networks if own is None or use.process == own.process)
    failed = dict.fromkeys(use.name for use in uses if use.failed)
    # NCCL's own IB fails because of what is missing below.
    if plugins := [name for name in failed if name != "IB"]:
        yield Case.SOCKETS, f"its network plugin {', '.join(plugins)} could not be initialised"
    for none in log.no_device:
        if rdma and (own is None or none.process == own.process):
            there = f", though there is {', '.join(node.devices)}" if node.devices else ""
            yield Case.NO_DEVICE, f"NCCL says {none.absence}{there}"
    if failed:
        yield Case.SOCKETS, f"its network {', '.join(failed)} could not be initialised"
    if kind in ("efa", "cxi") and not providers:
        yield Case.SOCKETS, "its log shows no libfabric plugin"


def failure(warn: Warn) -> tuple[Case, str] | None:
    """What failed, with the remedy; None if NCCL recovered or the warning has no root cause."""
    if warn.recovered:
        return None
    found = causes(f"NCCL WARN {warn.text}")
    if not found or not found[0].root:
        return None
    case = Case.GID_TYPE if found[0].name == WRONG_GID else Case.FAILED
    return case, f"{found[0].short}: NCCL warned {warn.text[:_SHOWN]!r}; {found[0].kind.remedy}"


def wrong_gids(
    gids: Sequence[NcclGid], ports: Sequence[Port], roce_version: str, nccl_version: str | None
) -> Iterator[str]:
    """GIDs in use that are not of `roce_version`, in words.

    gids: as one rank logged them. ports: of the fabric, on its node. nccl_version: of a rank that
    takes the default GID of its version; None if a setting names one, or RDMA is not used.
    """
    digits = [re.search(r"[12]", gid.roce_version or "") for gid in gids]
    logged = {f"v{digit[0]}" for digit in digits if digit} - {roce_version}
    if logged:
        versions = ", ".join(sorted(logged))
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
    if used or version is None or version >= GID_CHOSEN_SINCE:
        return
    wrong: dict[str, list[str]] = {}
    for port in ports:
        first = (gid_types(port) or {}).get(0)
        if first not in (None, roce_version):
            wrong.setdefault(str(first), []).append(port.name)
    for first, names in wrong.items():
        yield (
            f"NCCL {nccl_version} takes GID 0 by default, which is RoCE {first} on "
            f"{', '.join(names)}, promised {roce_version}"
        )


def _used(gids: Sequence[NcclGid], ports: Sequence[Port]) -> dict[tuple[int, str], list[str]]:
    """Ports by index and type of the GIDs that the log shows for connections."""
    found: dict[tuple[int, str], dict[str, None]] = {}
    for gid in gids:
        for port in ports:
            here = (port.device, port.number) == (gid.device, gid.port or port.number)
            type_ = (gid_types(port) or {}).get(gid.index) if gid.index is not None else None
            if here and type_ is not None and gid.index is not None:
                found.setdefault((gid.index, type_), {})[port.name] = None
    return {key: list(names) for key, names in found.items()}
