"""Why NCCL does not run as promised, or does not say: the likeliest cause first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pytest_mnode.criteria.transport.facts import NodeFacts, RankFacts
from pytest_mnode.criteria.transport.proof import Case
from pytest_mnode.criteria.transport.selection import Selection
from pytest_mnode.criteria.transport.settings import is_on
from pytest_mnode.logs.causes import causes
from pytest_mnode.logs.nccl_log import NcclLog, Network, Warn, provider_network
from pytest_mnode.logs.nccl_log.gids import WRONG_GID
from pytest_mnode.spec.models import Spec


@dataclass(frozen=True, slots=True)
class Why:
    """The cause of a fallback to sockets, as a case and in words."""

    case: Case
    text: str

    @classmethod
    def of(  # noqa: PLR0911  a cause each
        cls, rank: RankFacts, node: NodeFacts, log: NcclLog, spec: Spec
    ) -> Self:
        """Settings first, as ranks and log tell them, then what the machine lacks."""
        settings = rank.logged_settings | dict(rank.environment)
        if is_on(settings.get("NCCL_IB_DISABLE")) and spec.fabric.kind != "efa":
            return cls(Case.IB_DISABLED, f"NCCL_IB_DISABLE={settings['NCCL_IB_DISABLE']}")
        net = settings.get("NCCL_NET", "")
        if net.lower() in ("socket", "fastsocket"):
            return cls(Case.NET_CHOSEN, f"NCCL_NET={net}")
        if node.ports is not None and not node.ports:
            return cls(Case.NO_DEVICE, "the node has no RDMA device")
        hca = settings.get("NCCL_IB_HCA")
        if hca and node.ports and spec.fabric.kind != "efa":
            chosen = Selection.of(hca)
            if not any(chosen.takes(port.device, port.port) for port in node.ports):
                there = ", ".join(node.devices or ())
                return cls(Case.WRONG_INTERFACE, f"NCCL_IB_HCA={hca} takes none of {there}")
        if node.ports and all(port.active is False for port in node.ports):
            states = ", ".join(f"{p.device}:{p.port} {p.state}" for p in node.ports)
            return cls(Case.NO_DEVICE, f"no RDMA port is active ({states})")
        own = rank.own_log
        told = [none for none in log.no_device if own is None or none.process == own.process]
        providers = log.providers_of(own.process) if own else ()
        if providers and all(provider_network(p) is Network.SOCKETS for p in providers):
            return cls(Case.SOCKETS, f"libfabric took the provider {', '.join(providers)}")
        plugin = settings.get("NCCL_NET_PLUGIN", "")
        if spec.fabric.kind == "efa" and plugin.lower() == "none":
            return cls(Case.NET_CHOSEN, f"NCCL_NET_PLUGIN={plugin}")
        failed = [
            use.name
            for use in log.networks
            if use.failed and (own is None or use.process == own.process)
        ]
        if failed:
            return cls(Case.SOCKETS, f"its network plugin {', '.join(failed)} could not be set up")
        if told:
            there = f", though there is {', '.join(node.devices)}" if node.devices else ""
            return cls(Case.NO_DEVICE, f"NCCL says {told[0].absence}{there}")
        if spec.fabric.kind == "efa" and not providers:
            return cls(Case.SOCKETS, "its log shows no libfabric plugin")
        return cls(Case.SOCKETS, "nothing tells why")


def failure(warn: Warn) -> tuple[Case, str] | None:
    """What failed, and what to do; None where NCCL went on or the warning names no root cause."""
    if warn.recovered:
        return None
    told = causes(f"NCCL WARN {warn.text}")
    if not told or not told[0].root:
        return None
    case = Case.GID_TYPE if told[0].name == WRONG_GID else Case.FAILED
    return case, f"{told[0].short}: NCCL warned {warn.text[:160]!r}; {told[0].kind.remedy}"


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a log may say nothing of channels: what its rank was told to print."""

    environment: Mapping[str, str]

    @property
    def text(self) -> str:
        """In words with the remedy; empty where the settings are as needed."""
        level = self.environment.get("NCCL_DEBUG", "")
        if level.upper() not in ("INFO", "TRACE"):
            shown = f"NCCL_DEBUG={level}" if level else "NCCL_DEBUG is not set"
            return f"{shown}; set NCCL_DEBUG=INFO"
        named = {part.strip() for part in self.environment.get("NCCL_DEBUG_SUBSYS", "").split(",")}
        named = {part.upper() for part in named if part}
        if named and not named & {"ALL", "NET", "INIT"}:
            shown = self.environment["NCCL_DEBUG_SUBSYS"]
            return f"NCCL_DEBUG_SUBSYS={shown}; set INIT,NET,ENV,GRAPH"
        return ""
