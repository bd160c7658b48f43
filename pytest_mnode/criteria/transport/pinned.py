"""First fact: what the environment pins, in every rank, and whether it is what was promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_mnode.criteria.transport.differing import differing
from pytest_mnode.criteria.transport.facts import Facts, NodeFacts, RankFacts
from pytest_mnode.criteria.transport.gid_types import GID_CHOSEN_FROM
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, FactVerdict, Finding
from pytest_mnode.criteria.transport.selection import Selection
from pytest_mnode.criteria.transport.settings import (
    cost,
    distance,
    is_off,
    is_on,
    number,
    version_numbers,
)
from pytest_mnode.spec.models import Spec


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's environment beside the promise; methods tell what they object to."""

    spec: Spec
    roce_version: str
    rank: RankFacts
    node: NodeFacts
    nccl_version: str | None

    def value(self, name: str) -> str | None:
        """As the environment has it, else as NCCL says that it found it."""
        return self.rank.environment.get(name, self.rank.logged_settings.get(name))

    def shown(self, name: str) -> str:
        """NAME=value, with the file where it does not come from the environment."""
        file = self.rank.settings_of_files.get(name)
        if name not in self.rank.environment:
            file = "its log"
        return f"{name}={self.value(name)}{f' (in {file})' if file else ''}"

    def _told(self, answer: Answer, case: Case, text: str) -> Finding:
        return Finding(
            fact=Fact.PINNED,
            answer=answer,
            case=case,
            text=text,
            node=self.rank.node,
            rank=self.rank.rank,
        )

    def against(self, case: Case, text: str) -> Finding:
        return self._told(Answer.DISAGREES, case, text)

    def missing(self, text: str) -> Finding:
        return self._told(Answer.MISSING, Case.UNREADABLE, text)

    def note(self, text: str) -> Finding:
        return self._told(Answer.AGREES, Case.NOTED, text)


def pinned(facts: Facts, spec: Spec, roce_version: str) -> FactVerdict:
    """What each rank's variables send elsewhere or tie, and where ranks differ."""
    found: list[Finding] = []
    for rank in facts.ranks:
        own = rank.log.nccl_version if rank.log else None
        one = _Rank(spec, roce_version, rank, facts.node(rank.node), own or facts.nccl_version)
        mine = [*(_gloo if facts.backend == "gloo" else _nccl)(one), *_others(one)]
        found += [*mine, *_costs(one, mine)]
    if facts.backend != "gloo" and spec.fabric.protocol is not None:
        found += [f for node in facts.nodes for f in _ports(node, spec, roce_version)]
    found += differing(facts.ranks)
    return FactVerdict(Fact.PINNED, tuple(found))


def _gloo(one: _Rank) -> Iterator[Finding]:
    written = one.value("GLOO_SOCKET_IFNAME")
    if written is None:
        yield one.note("GLOO_SOCKET_IFNAME is not set: gloo takes the interface of the host's name")
        return
    names = [name.strip() for name in written.split(",") if name.strip()]
    wrong = [name for name in names if not one.spec.fabric.has_interface(name)]
    if wrong or not names:
        yield one.against(
            Case.WRONG_INTERFACE, f"{one.shown('GLOO_SOCKET_IFNAME')} is not {_fabric(one.spec)}"
        )


def _nccl(one: _Rank) -> Iterator[Finding]:
    rdma = one.spec.fabric.kind != "ethernet"
    yield from _network(one)
    if rdma:
        yield from _devices(one)
        yield from _gids(one)
    else:
        yield from _interfaces(one)
    if one.spec.fabric.gpudirect:
        yield from _gpudirect(one)
    if is_on(one.value("NCCL_P2P_DISABLE")) and is_on(one.value("NCCL_SHM_DISABLE")):
        yield one.against(
            Case.NOT_ON_FABRIC,
            "NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1 sends over the NIC what should stay inside "
            "the node",
        )


def _network(one: _Rank) -> Iterator[Finding]:
    kind = one.spec.fabric.kind
    net = (one.value("NCCL_NET") or "").strip()
    if kind in ("infiniband", "roce") and is_on(one.value("NCCL_IB_DISABLE")):
        yield one.against(Case.IB_DISABLED, f"{one.shown('NCCL_IB_DISABLE')} switches RDMA off")
    sockets = net.lower() in ("socket", "fastsocket")
    if sockets and kind != "ethernet":
        yield one.against(
            Case.NET_CHOSEN, f"{one.shown('NCCL_NET')} chooses sockets where {kind} is promised"
        )
    elif net.upper() == "IB" and kind in ("efa", "ethernet"):
        yield one.against(
            Case.NET_CHOSEN, f"{one.shown('NCCL_NET')} chooses verbs where {kind} is promised"
        )
    elif net and not sockets:
        yield one.note(f"{one.shown('NCCL_NET')}: a fallback would be an error")
    if kind == "efa":
        plugin = (one.value("NCCL_NET_PLUGIN") or "").strip().lower()
        if plugin == "none":
            yield one.against(
                Case.NET_CHOSEN, f"{one.shown('NCCL_NET_PLUGIN')}: EFA needs its plugin"
            )
        provider = (one.value("FI_PROVIDER") or "").strip()
        chosen = Selection.of(provider.lower().replace("^", "", 1))
        takes_efa = any(name.startswith("efa") for name, _ in chosen.names)
        if provider and takes_efa is provider.startswith("^"):
            yield one.against(
                Case.NET_CHOSEN, f"{one.shown('FI_PROVIDER')} leaves out efa, which is promised"
            )


def _devices(one: _Rank) -> Iterator[Finding]:
    written = one.value("NCCL_IB_HCA")
    if not written or one.spec.fabric.kind == "efa":
        return
    shown, fabric = one.shown("NCCL_IB_HCA"), one.spec.fabric
    if one.node.ports is None:
        yield one.missing(f"{shown}: which devices it takes is not known, for none could be listed")
        return
    chosen = Selection.of(written)
    there = [p for p in one.node.ports if p.active is not False]
    taken = {p.device for p in there if chosen.takes(p.device, p.port)}
    ours = {p.device for p in there if fabric.has_interface(p.device)}
    if not taken:
        yield one.against(Case.NO_DEVICE, f"{shown} takes no RDMA device of this node")
        return
    if left_out := sorted(ours - taken):
        yield one.against(Case.RAIL_DOWN, f"{shown} leaves out {', '.join(left_out)} of the fabric")
    if stray := sorted(taken - ours):
        yield one.against(
            Case.STRAY_RAIL, f"{shown} takes {', '.join(stray)}, not of {_fabric(one.spec)}"
        )


def _gids(one: _Rank) -> Iterator[Finding]:
    if one.spec.fabric.kind != "roce":
        return
    asked = number(one.value("NCCL_IB_ROCE_VERSION_NUM"))
    version = version_numbers(one.nccl_version)
    reads_it = version is None or version >= GID_CHOSEN_FROM
    if reads_it and asked in (1, 2) and f"v{asked}" != one.roce_version:
        yield one.against(
            Case.GID_TYPE,
            f"{one.shown('NCCL_IB_ROCE_VERSION_NUM')} where RoCE {one.roce_version} is promised",
        )
    index = number(one.value("NCCL_IB_GID_INDEX"))
    if index is None or index < 0:
        return
    shown = one.shown("NCCL_IB_GID_INDEX")
    wrong: dict[str, list[str]] = {}
    for port in one.node.ports or ():
        if not one.spec.fabric.has_interface(port.device):
            continue
        name = f"{port.device}:{port.port}"
        if port.gid_types is None:
            yield one.missing(f"{shown}: types of the GIDs of {name} could not be read")
        elif index not in port.gid_types:
            yield one.against(Case.GID_TYPE, f"{shown}: {name} has no such GID")
        elif port.gid_types[index] != one.roce_version:
            wrong.setdefault(port.gid_types[index], []).append(name)
    for type_, names in wrong.items():
        yield one.against(
            Case.GID_TYPE,
            f"{shown} is RoCE {type_} on {', '.join(names)}, promised {one.roce_version}",
        )


def _ports(node: NodeFacts, spec: Spec, roce_version: str) -> Iterator[Finding]:
    """Ports of the fabric that speak another protocol than promised, or have no GID of RoCE's."""

    def finding(answer: Answer, case: Case, text: str) -> Finding:
        return Finding(fact=Fact.PINNED, answer=answer, case=case, text=text, node=node.name)

    wanted = spec.fabric.protocol
    others: dict[str | None, list[str]] = {}
    for port in node.ports or ():
        name = f"{port.device}:{port.port}"
        if not spec.fabric.has_interface(port.device) or port.active is False:
            continue
        if port.protocol != wanted:
            others.setdefault(port.protocol, []).append(name)
        elif (
            wanted == "RoCE"
            and port.gid_types is not None
            and roce_version not in port.gid_types.values()
        ):
            text = f"{name} has no GID of RoCE {roce_version}"
            yield finding(Answer.DISAGREES, Case.GID_TYPE, text)
    for protocol, names in others.items():
        shown = ", ".join(names)
        if protocol is None:
            text = f"node type or link layer of {shown} could not be read, promised is {wanted}"
            yield finding(Answer.MISSING, Case.UNREADABLE, text)
        else:
            text = f"protocol of {shown} is {protocol}, promised is {wanted}"
            yield finding(Answer.DISAGREES, Case.OTHER_NETWORK, text)


def _interfaces(one: _Rank) -> Iterator[Finding]:
    """Of NCCL's sockets; for RDMA they only carry the first words between ranks."""
    written = one.value("NCCL_SOCKET_IFNAME")
    if not written:
        return
    shown = one.shown("NCCL_SOCKET_IFNAME")
    if one.node.nics is None:
        yield one.missing(f"{shown}: which interfaces it takes is not known, for none were listed")
        return
    fabric = one.spec.fabric
    taken = Selection.of(written).taken(nic.name for nic in one.node.nics if nic.name != "lo")
    if not any(fabric.has_interface(name) for name in taken):
        over = f"takes {', '.join(taken)}" if taken else "takes no interface of this node"
        yield one.against(Case.WRONG_INTERFACE, f"{shown} {over}, not {_fabric(one.spec)}")
    elif stray := [name for name in taken if not fabric.has_interface(name)]:
        yield one.against(
            Case.STRAY_RAIL, f"{shown} takes {', '.join(stray)} beside {_fabric(one.spec)}"
        )


def _gpudirect(one: _Rank) -> Iterator[Finding]:
    against = partial(one.against, Case.GPUDIRECT_OFF)
    if distance(one.value("NCCL_NET_GDR_LEVEL") or one.value("NCCL_IB_GDR_LEVEL")) == 0:
        name = "NCCL_NET_GDR_LEVEL" if one.value("NCCL_NET_GDR_LEVEL") else "NCCL_IB_GDR_LEVEL"
        yield against(f"{one.shown(name)} switches GPUDirect off, which is promised")
    if is_off(one.value("NCCL_NET_GDR_READ")):
        yield against(f"{one.shown('NCCL_NET_GDR_READ')} sends through the host")
    if cost("FI_EFA_USE_DEVICE_RDMA", one.value("FI_EFA_USE_DEVICE_RDMA") or "", "efa", None):
        yield against(f"{one.shown('FI_EFA_USE_DEVICE_RDMA')} switches RDMA reads off")


def _others(one: _Rank) -> Iterator[Finding]:
    """Settings of other libraries: told, and left to other facts."""
    pipe = one.value("TP_SOCKET_IFNAME")
    if pipe and not one.spec.fabric.has_interface(pipe.strip()):
        yield one.note(f"{one.shown('TP_SOCKET_IFNAME')}: RPC does not run on the fabric")
    devices = one.value("UCX_NET_DEVICES")
    if devices and devices.strip().lower() != "all":
        names = [name.strip().partition(":")[0] for name in devices.split(",")]
        if wrong := [name for name in names if not one.spec.fabric.has_interface(name)]:
            yield one.note(f"{one.shown('UCX_NET_DEVICES')}: {', '.join(wrong)} for UCX")
    transports = {part.strip() for part in (one.value("UCX_TLS") or "").lower().split(",")}
    rdma = one.spec.fabric.kind != "ethernet"
    if rdma and "tcp" in transports and not transports & {"all", "ib", "rc", "dc", "rc_x"}:
        yield one.note(f"{one.shown('UCX_TLS')}: UCX is kept to sockets")


def _costs(one: _Rank, told: Sequence[Finding]) -> Iterator[Finding]:
    """Settings that cost speed and of which nothing is told yet: they change no path."""
    for name in {**one.rank.environment, **one.rank.logged_settings}:
        why = cost(name, one.value(name) or "", one.spec.fabric.kind, one.nccl_version)
        shown = one.shown(name)
        if why is not None and not any(finding.text.startswith(shown) for finding in told):
            yield one.note(f"{shown}: {why}")


def _fabric(spec: Spec) -> str:
    return f"the fabric ({', '.join(spec.fabric.interfaces)})"
