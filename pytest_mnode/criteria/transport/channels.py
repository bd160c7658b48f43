"""Judges one rank's NCCL log: network, devices, GPUDirect, GIDs, warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_mnode.criteria.transport.evidence import NodeTraffic, RankTransport, gid_types
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, Remark
from pytest_mnode.criteria.transport.settings import (
    GID_CHOSEN_SINCE,
    Selection,
    is_on,
    version_numbers,
    why_silent,
)
from pytest_mnode.logs.causes import causes
from pytest_mnode.logs.nccl_log.gids import WRONG_GID
from pytest_mnode.logs.nccl_log.model import (
    Channel,
    NcclGid,
    NcclLog,
    NetworkKind,
    RankLog,
    UcxConfig,
    Warn,
    is_offloaded,
    network_of,
    provider_network,
)
from pytest_mnode.machine.rdma import Port
from pytest_mnode.spec.models import Spec

_LAYERS = {"IB": "infiniband", "INFINIBAND": "infiniband", "ROCE": "roce", "ETHERNET": "roce"}
_NETWORKS = {
    "ethernet": NetworkKind.SOCKETS,
    "tcpx": NetworkKind.GPUDIRECT_TCP,
    "tcpxo": NetworkKind.GPUDIRECT_TCP,
}
"""What NCCL's networks are on the fabrics that are not RDMA."""
_OTHER_FABRICS = ("cxi", "gni", "opx", "psm2")
"""Libfabric providers of Slingshot, Aries and Omni-Path. Source: fi_provider(7)."""
_SHOWN, _WARNING_SHOWN = 120, 160


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
    return (
        case,
        f"{found[0].short}: NCCL warned {warn.text[:_WARNING_SHOWN]!r}; {found[0].kind.remedy}",
    )


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


@dataclass(slots=True)
class RankChannels:
    """The channels in one rank's log, compared with the promise.

    nccl_version: from the rank's log, or from another rank's. own: the rank's part of a log that
    ranks may share. channels: the rank's network channels.
    """

    spec: Spec
    roce_version: str
    node: NodeTraffic
    rank: RankTransport
    nccl_version: str | None = None
    own: RankLog | None = field(init=False)
    channels: tuple[Channel, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.nccl_version = (self.log and self.log.nccl_version) or self.nccl_version
        self.own = self.rank.own_log
        self.channels = self.own.net_channels if self.own else ()

    @property
    def log(self) -> NcclLog | None:
        return self.rank.log

    @property
    def about(self) -> About:
        return About(ProofFact.LOGGED, self.node.name, self.rank.rank)

    def _unreadable(self, text: str) -> Remark:
        return self.about.inconclusive(Case.UNREADABLE, text)

    @property
    def identified(self) -> bool:
        """Whether a line of a communicator or a channel shows that this is the rank's log."""
        return self.own is not None and bool(self.own.comms or self.own.channels)

    @property
    def whole(self) -> bool:
        """Whether no line is known to be missing, so that what is not logged did not happen."""
        if self.log is None or self.own is None or not self.identified:
            return False
        return self.own.complete is not False and not (self.log.truncated or self.log.unknown_lines)

    def remarks(self) -> Iterator[Remark]:
        """All remarks on this rank's log."""
        if self.log is None:
            text = f"no log: {self.rank.no_log or 'none was written'}"
            yield self.about.inconclusive(Case.NO_LOG, text)
            return
        if not self.identified:
            why = why_silent(self.rank.environment) or "no line shows which rank wrote it"
            yield self.about.inconclusive(Case.NO_LOG, f"the log does not contain this rank: {why}")
        if self.own is None:
            yield from self._failed_for_all(self.log)
            return
        yield from self._not_whole(self.log, self.own)
        yield from self._carried(self.log) if self.channels else self._chosen(self.log, self.own)
        if any((c.network or "").upper().startswith("UCX") for c in self.channels):
            configs = [one for one in self.log.ucx if one.process == self.own.process]
            yield from ucx_off_fabric(configs, self.spec, self.rank, self.node)
        yield from self._gids(self.log, self.own)
        yield from self._warned(self.log, self.own)

    def _not_whole(self, log: NcclLog, own: RankLog) -> Iterator[Remark]:
        if log.unknown_lines:
            text = (
                f"{len(log.unknown_lines)} lines of channels cannot be read, such as "
                f"{log.unknown_lines[0][:_SHOWN]!r}"
            )
            yield self._unreadable(text)
        if log.truncated:
            yield self._unreadable(f"the log is incomplete: {log.truncated[0][:_SHOWN]}")
        if own.complete is False:
            yield self._unreadable("the log ends before its communicator is complete")

    def _chosen(self, log: NcclLog, own: RankLog) -> Iterator[Remark]:
        """The network that NCCL chose, if no channel is logged."""
        providers = log.providers_of(own.process)
        promised = _NETWORKS.get(self.spec.fabric.kind, NetworkKind.RDMA)
        for name in log.networks_of(own.process):
            kind = network_of(name, providers)
            if kind in (promised, NetworkKind.UNKNOWN):
                continue
            if kind is NetworkKind.SOCKETS:
                case, why = why_fallen_back(self.rank, self.node, log, self.spec)
                text = f"NCCL uses network {name} instead of {self.spec.fabric.kind}: {why}"
                yield self.about.fail(case, text, fallback=True)
            else:
                text = f"NCCL uses network {name} ({kind}), promised is {self.spec.fabric.kind}"
                yield self.about.fail(Case.OTHER_NETWORK, text)

    def _carried(self, log: NcclLog) -> Iterator[Remark]:
        by_kind: dict[NetworkKind, list[Channel]] = {}
        for channel in self.channels:
            kind = log.kind_of(channel) or NetworkKind.UNKNOWN
            by_kind.setdefault(kind, []).append(channel)
        if unknown := by_kind.get(NetworkKind.UNKNOWN):
            names = ", ".join(dict.fromkeys(c.network or c.detail for c in unknown))
            text = f"channels run over {names}: it is not known which network carries their bytes"
            yield self.about.inconclusive(Case.UNKNOWN_NETWORK, text)
        sockets = by_kind.get(NetworkKind.SOCKETS, [])
        if self.spec.fabric.kind == "ethernet":
            yield from self._other(by_kind.get(NetworkKind.RDMA, []), "RDMA")
            yield from self._socket_interfaces(log, sockets)
            return
        direct_tcp = by_kind.get(NetworkKind.GPUDIRECT_TCP, [])
        if sockets:
            yield from self._fallen_back(log, sockets)
        if self.spec.fabric.kind not in _NETWORKS:
            yield from self._other(direct_tcp, "TCP")
            yield from self._rdma(log, by_kind.get(NetworkKind.RDMA, []))
            return
        yield from self._other(by_kind.get(NetworkKind.RDMA, []), "RDMA")
        offloaded = self.spec.fabric.kind == "tcpxo"
        wrong = [c for c in direct_tcp if is_offloaded(c.network or "") is not offloaded]
        yield from self._other(wrong, "TCPX" if offloaded else "TCPXO")
        yield from self._socket_interfaces(log, direct_tcp)

    def _other(self, channels: Sequence[Channel], what: str) -> Iterator[Remark]:
        if channels:
            text = (
                f"channels run over {_networks(channels)} ({what}), promised is "
                f"{self.spec.fabric.kind}"
            )
            yield self.about.fail(Case.OTHER_NETWORK, text)

    def _socket_interfaces(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Remark]:
        names, all_named = log.adapters(channels)
        if not all_named and self.spec.fabric.kind == "ethernet":  # plugins list none
            yield self._unreadable("the log does not name the interfaces of sockets")
        if wrong := [name for name in names if not self.spec.fabric.has_interface(name)]:
            fabric = ", ".join(self.spec.fabric.interfaces)
            case = Case.WRONG_INTERFACE if len(wrong) == len(names) else Case.STRAY_RAIL
            what = "sockets" if self.spec.fabric.kind == "ethernet" else "channels"
            text = f"{what} run over {', '.join(wrong)}, not over the fabric ({fabric})"
            yield self.about.fail(case, text)

    def _fallen_back(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Remark]:
        names, _ = log.adapters(channels)
        over = _networks(channels) + (f" ({', '.join(names)})" if names else "")
        case, why = why_fallen_back(self.rank, self.node, log, self.spec)
        text = f"channels run over {over} instead of {self.spec.fabric.kind}: {why}"
        yield self.about.fail(case, text, fallback=True)
        known = self.node.ipoib
        if over_ib := [n for n in names if n in known or (not known and n.startswith("ib"))]:
            text = f"sockets run over {', '.join(over_ib)}, which is IP over InfiniBand, not RDMA"
            yield self.about.fail(Case.IPOIB, text)

    def _rdma(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Remark]:
        kind = self.spec.fabric.kind
        devices, _ = log.adapters(channels)
        ports = {port.device: port.protocol or "" for port in self.node.machine.ports}
        printed = {d.link_layer or ports.get(name, "") for name, d in devices.items()}
        layers = {_LAYERS.get(layer.upper()) for layer in printed} - {None}
        providers = set(log.providers_of(channels[0].process)) if channels else set()
        efa = any(name.lower().startswith("efa") for name in providers)
        own = sorted(name for name in providers if name.lower().split(";")[0] in _OTHER_FABRICS)
        by_provider = kind in ("efa", "cxi")
        if channels and by_provider and not (efa if kind == "efa" else kind in own):
            yield from self._other(channels, ", ".join(sorted(providers)) or "verbs")
        elif channels and not by_provider and (efa or own):
            yield from self._other(channels, "EFA" if efa else ", ".join(own))
        elif not by_provider and (other := sorted(str(x) for x in layers - {kind})):
            yield from self._other(channels, ", ".join(other))
        if self.spec.fabric.gpudirect:
            yield from self._gpudirect(log, channels)

    def _gpudirect(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Remark]:
        staged = [c for c in channels if c.gdr is False]
        if staged:
            own = staged[0].process
            disabled = [g for g in log.gpu_direct if not g.enabled and g.process == own]
            reasons = [g.reason for g in disabled if g.reason]
            off = dict.fromkeys(g.device_name for g in disabled if g.device_name)
            why = f"NCCL says that it is disabled for {', '.join(off)}" if off else ""
            why = f": {reasons[0] if reasons else why}" if reasons or why else ""
            ways = " and ".join(dict.fromkeys(c.direction.value for c in staged if c.direction))
            text = (
                f"channels{f' that {ways}' if ways else ''} run over {_networks(staged)} without "
                f"GDRDMA, staged through the host although GPUDirect is promised{why}"
            )
            yield self.about.fail(Case.GPUDIRECT_OFF, text)
        elif any(c.gdr is None for c in channels):
            yield self._unreadable("the log ends before it shows whether channels use GPUDirect")

    def _gids(self, log: NcclLog, own: RankLog) -> Iterator[Remark]:
        if self.spec.fabric.kind != "roce":
            return
        runs_rdma = any(log.kind_of(c) is NetworkKind.RDMA for c in self.channels)
        pinned = "NCCL_IB_GID_INDEX" in self.rank.environment  # judged by the first fact
        for text in wrong_gids(
            # The error of a connection is reported with NCCL's own warning.
            [replace(gid, error=None) for gid in log.gids if gid.process == own.process],
            self.node.fabric_ports(self.spec),
            self.roce_version,
            self.nccl_version if runs_rdma and not pinned else None,
        ):
            yield self.about.fail(Case.GID_TYPE, text)

    def _failed_for_all(self, log: NcclLog) -> Iterator[Remark]:
        """Final failures in a log that does not identify its ranks: they count for every rank."""
        for warn in log.warnings:
            cause = failure(warn) if warn.recovered is False else None
            if cause is not None:
                yield self.about.fail(cause[0], f"{warn.process}: {cause[1]}")

    def _warned(self, log: NcclLog, own: RankLog) -> Iterator[Remark]:
        for warn in log.warnings:
            if warn.process == own.process and own.cuda_device in (None, warn.cuda_device):
                yield self._warning(warn)

    def _warning(self, warn: Warn) -> Remark:
        text = f"NCCL warned {warn.text[:_WARNING_SHOWN]!r}"
        cause = failure(warn)
        if cause is not None:
            # Without a sign that NCCL gave up or recovered, it may have done either.
            unsure = warn.recovered is None
            return (self.about.inconclusive if unsure else self.about.fail)(*cause)
        if warn.recovered is False:
            return self._unreadable(f"{text} and gave up")
        return self.about.note(Case.RECOVERED, f"{text}{' and continued' * bool(warn.recovered)}")


def _networks(channels: Sequence[Channel]) -> str:
    return ", ".join(dict.fromkeys(f"NET/{channel.network}" for channel in channels))


def ucx_off_fabric(
    configs: Sequence[UcxConfig], spec: Spec, rank: RankTransport, node: NodeTraffic
) -> Iterator[Remark]:
    """Remarks on UCX where it reaches other nodes over another network than the fabric."""
    about = About(ProofFact.LOGGED, rank.node, rank.rank)
    kind, fabric = spec.fabric.kind, ", ".join(spec.fabric.interfaces)
    for config in configs:
        if kind == "ethernet" and config.rdma:
            text = f"UCX runs over {', '.join(config.rdma)} (RDMA), promised is {kind}"
            yield about.fail(Case.OTHER_NETWORK, text)
            continue
        if kind != "ethernet" and not config.rdma:
            named = ("UCX_TLS", "UCX_NET_DEVICES")
            why = [f"{n}={rank.environment[n]}" for n in named if n in rank.environment]
            text = f"channels run over UCX's tcp ({', '.join(config.tcp)}) instead of {kind}"
            reason = ", ".join(why) or "the log does not show why"
            yield about.fail(Case.SOCKETS, f"{text}: {reason}", fallback=True)
            continue
        used = config.tcp if kind == "ethernet" else config.rdma
        wrong = [name for name in used if not node.is_named(name, spec)]
        if wrong:
            case = Case.WRONG_INTERFACE if len(wrong) == len(used) else Case.STRAY_RAIL
            text = f"UCX runs over {', '.join(wrong)}, not over the fabric ({fabric})"
            yield about.fail(case, text)
