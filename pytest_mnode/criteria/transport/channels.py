"""One rank's NCCL log against the promise: network, devices, GPUDirect, GIDs, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_mnode.criteria.transport.facts import NodeFacts, RankFacts
from pytest_mnode.criteria.transport.gid_types import wrong_gids
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, Finding
from pytest_mnode.criteria.transport.sockets import off_fabric
from pytest_mnode.criteria.transport.why import Silence, Why, failure
from pytest_mnode.logs.nccl_log import Channel, NcclLog, Network, RankLog, network_of
from pytest_mnode.spec.models import Spec

_LAYERS = {"IB": "infiniband", "INFINIBAND": "infiniband", "ROCE": "roce", "ETHERNET": "roce"}
_OTHER_FABRICS = ("cxi", "gni", "opx", "psm2")
"""Libfabric providers of Slingshot, Aries and Omni-Path. Source: fi_provider(7)."""


class RankChannels:
    """What one rank's log says of its channels, beside the promise."""

    def __init__(
        self,
        spec: Spec,
        roce_version: str,
        node: NodeFacts,
        rank: RankFacts,
        nccl_version: str | None = None,
    ) -> None:
        self.spec = spec
        self.roce_version = roce_version
        self.node = node
        self.rank = rank
        self.nccl_version = rank.log.nccl_version if rank.log else None
        self.nccl_version = self.nccl_version or nccl_version
        self.log: NcclLog | None = rank.log
        self.mine = rank.own_log
        self.channels: tuple[Channel, ...] = ()
        if self.mine is not None:
            self.channels = self.mine.net_channels

    @property
    def identified(self) -> bool:
        """Whether a line of a communicator or a channel says that this is its log."""
        return self.mine is not None and bool(self.mine.comms or self.mine.channels)

    @property
    def whole(self) -> bool:
        """Whether nothing is known to be missing in it: what it does not tell of is not there."""
        if self.log is None or self.mine is None or not self.identified:
            return False
        if self.mine.complete is False:
            return False
        return not (self.log.truncated or self.log.unknown_lines)

    def said(self, answer: Answer, case: Case, text: str) -> Finding:
        return Finding(
            fact=Fact.LOGGED,
            answer=answer,
            case=case,
            text=text,
            node=self.node.name,
            rank=self.rank.rank,
        )

    def against(self, case: Case, text: str) -> Finding:
        return self.said(Answer.DISAGREES, case, text)

    def missing(self, case: Case, text: str) -> Finding:
        return self.said(Answer.MISSING, case, text)

    def note(self, case: Case, text: str) -> Finding:
        return self.said(Answer.AGREES, case, text)

    def findings(self) -> Iterator[Finding]:
        """All that it objects to, lacks or notes."""
        if self.log is None:
            yield self.missing(Case.NO_LOG, f"no log: {self.rank.no_log or 'none was written'}")
            return
        if not self.identified:
            silence = Silence(self.rank.environment).text or "no line says which rank wrote it"
            yield self.missing(Case.NO_LOG, f"the log does not tell of this rank: {silence}")
        if self.mine is None:
            yield from self._failed_for_all(self.log)
            return
        yield from self._whole(self.log, self.mine)
        yield from self._carried(self.log) if self.channels else self._chosen(self.log, self.mine)
        if any((c.network or "").upper().startswith("UCX") for c in self.channels):
            configs = [one for one in self.log.ucx if one.process == self.mine.process]
            for case, text in off_fabric(configs, self.spec, self.rank):
                yield self.against(case, text)
        yield from self._gids(self.log)
        yield from self._warned(self.log, self.mine)

    def _whole(self, log: NcclLog, mine: RankLog) -> Iterator[Finding]:
        if log.unknown_lines:
            text = (
                f"{len(log.unknown_lines)} lines of channels cannot be read, such as "
                f"{log.unknown_lines[0][:120]!r}"
            )
            yield self.missing(Case.UNREADABLE, text)
        if log.truncated:
            yield self.missing(Case.UNREADABLE, f"the log is not whole: {log.truncated[0][:120]}")
        if mine.complete is False:
            yield self.missing(Case.UNREADABLE, "the log ends before its communicator is complete")

    def _chosen(self, log: NcclLog, mine: RankLog) -> Iterator[Finding]:
        """The network that NCCL says it uses, where no channel is logged."""
        providers = log.providers_of(mine.process)
        promised = Network.SOCKETS if self.spec.fabric.kind == "ethernet" else Network.RDMA
        for name in log.networks_of(mine.process):
            kind = network_of(name, providers)
            if kind in (promised, Network.UNKNOWN):
                continue
            if kind is Network.SOCKETS:
                why = Why.of(self.rank, self.node, log, self.spec)
                text = f"NCCL uses network {name} instead of {self.spec.fabric.kind}: {why.text}"
                yield self.against(why.case, text)
            else:
                text = f"NCCL uses network {name} ({kind}), promised is {self.spec.fabric.kind}"
                yield self.against(Case.OTHER_NETWORK, text)

    def _carried(self, log: NcclLog) -> Iterator[Finding]:
        by_kind: dict[Network, list[Channel]] = {}
        for channel in self.channels:
            kind = log.kind_of(channel) or Network.UNKNOWN
            by_kind.setdefault(kind, []).append(channel)
        if unknown := by_kind.get(Network.UNKNOWN):
            names = ", ".join(dict.fromkeys(c.network or c.detail for c in unknown))
            text = f"channels run over {names}, of which it is not known what carries it"
            yield self.missing(Case.UNKNOWN_NETWORK, text)
        sockets = by_kind.get(Network.SOCKETS, [])
        if self.spec.fabric.kind == "ethernet":
            yield from self._other(by_kind.get(Network.RDMA, []), "RDMA")
            yield from self._socket_interfaces(log, sockets)
            return
        yield from self._other(by_kind.get(Network.GPUDIRECT_TCP, []), "TCP")
        if sockets:
            yield from self._fallen_back(log, sockets)
        yield from self._rdma(log, by_kind.get(Network.RDMA, []))

    def _other(self, channels: Sequence[Channel], what: str) -> Iterator[Finding]:
        if channels:
            text = (
                f"channels run over {_networks(channels)} ({what}), promised is "
                f"{self.spec.fabric.kind}"
            )
            yield self.against(Case.OTHER_NETWORK, text)

    def _socket_interfaces(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Finding]:
        names, unnamed = adapters(log, channels)
        if unnamed:
            yield self.missing(Case.UNREADABLE, "the log does not name the interfaces of sockets")
        if wrong := [name for name in names if not self.spec.fabric.has_interface(name)]:
            fabric = ", ".join(self.spec.fabric.interfaces)
            case = Case.WRONG_INTERFACE if len(wrong) == len(names) else Case.STRAY_RAIL
            text = f"sockets run over {', '.join(wrong)}, not over the fabric ({fabric})"
            yield self.against(case, text)

    def _fallen_back(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Finding]:
        names, _ = adapters(log, channels)
        over = _networks(channels) + (f" ({', '.join(names)})" if names else "")
        why = Why.of(self.rank, self.node, log, self.spec)
        text = f"channels run over {over} instead of {self.spec.fabric.kind}: {why.text}"
        yield self.against(why.case, text)
        known = {nic.name for nic in self.node.nics or () if nic.infiniband}
        if over_ib := [n for n in names if n in known or (not known and n.startswith("ib"))]:
            text = f"sockets run over {', '.join(over_ib)}, which is IP over InfiniBand, not RDMA"
            yield self.against(Case.IPOIB, text)

    def _rdma(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Finding]:
        kind = self.spec.fabric.kind
        devices, _ = log.adapters(channels)
        ports = {port.device: port.protocol or "" for port in self.node.ports or ()}
        told = {d.link_layer or ports.get(name, "") for name, d in devices.items()}
        layers = {_LAYERS.get(layer.upper()) for layer in told} - {None}
        providers = set(log.providers_of(channels[0].process)) if channels else set()
        efa = any(name.lower().startswith("efa") for name in providers)
        own = sorted(name for name in providers if name.lower().split(";")[0] in _OTHER_FABRICS)
        if channels and kind == "efa" and not efa:
            yield from self._other(channels, ", ".join(sorted(providers)) or "verbs")
        elif channels and kind != "efa" and (efa or own):
            yield from self._other(channels, "EFA" if efa else ", ".join(own))
        elif kind != "efa" and (other := sorted(str(x) for x in layers - {kind})):
            yield from self._other(channels, ", ".join(other))
        if self.spec.fabric.gpudirect:
            yield from self._gpudirect(log, channels)

    def _gpudirect(self, log: NcclLog, channels: Sequence[Channel]) -> Iterator[Finding]:
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
            yield self.against(Case.GPUDIRECT_OFF, text)
        elif any(c.gdr is None for c in channels):
            yield self.missing(Case.UNREADABLE, "whether channels use GPUDirect is cut off")

    def _gids(self, log: NcclLog) -> Iterator[Finding]:
        if self.spec.fabric.kind != "roce":
            return
        process = self.mine.process if self.mine else None
        told = wrong_gids(
            # Why a connection failed is told with NCCL's own warning.
            [replace(gid, error=None) for gid in log.gids if gid.process == process],
            [p for p in self.node.ports or () if self.spec.fabric.has_interface(p.device)],
            self.roce_version,
            self._takes_the_first(log),
        )
        for text in told:
            yield self.against(Case.GID_TYPE, text)

    def _takes_the_first(self, log: NcclLog) -> str | None:
        """The version, where it takes GID 0 for RDMA because nothing tells it otherwise."""
        runs_rdma = any(log.kind_of(c) is Network.RDMA for c in self.channels)
        pinned = "NCCL_IB_GID_INDEX" in self.rank.environment  # judged there
        return self.nccl_version if runs_rdma and not pinned else None

    def _failed_for_all(self, log: NcclLog) -> Iterator[Finding]:
        """What failed for good by a log that does not tell its ranks, so that all ranks tell it."""
        for warn in log.warnings:
            cause = failure(warn) if warn.recovered is False else None
            if cause is not None:
                yield self.against(cause[0], f"{warn.process}: {cause[1]}")

    def _warned(self, log: NcclLog, mine: RankLog) -> Iterator[Finding]:
        for warn in log.warnings:
            if warn.process != mine.process or mine.cuda_device not in (None, warn.cuda_device):
                continue
            told = f"NCCL warned {warn.text[:160]!r}"
            cause = failure(warn)
            if cause is not None:
                # Without a sign that NCCL gave up or went on, it may have done either.
                yield (self.missing if warn.recovered is None else self.against)(*cause)
            elif warn.recovered is False:
                yield self.missing(Case.UNREADABLE, f"{told} and gave up")
            else:
                again = " and went on" if warn.recovered else ""
                yield self.note(Case.RECOVERED, f"{told}{again}")


def _networks(channels: Sequence[Channel]) -> str:
    return ", ".join(dict.fromkeys(f"NET/{channel.network}" for channel in channels))


def adapters(log: NcclLog, channels: Sequence[Channel]) -> tuple[tuple[str, ...], bool]:
    """Names of the devices of these channels, and whether any of them has no name."""
    devices, all_named = log.adapters(channels)
    return tuple(devices), not all_named
