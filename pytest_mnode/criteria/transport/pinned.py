"""Judges fact one: the settings of every rank, compared with the spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_mnode.criteria.transport.evidence import (
    Evidence,
    NodeTraffic,
    RankTransport,
    gid_types,
    is_rdma,
    state_of,
)
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, Remark
from pytest_mnode.criteria.transport.settings import (
    FAILOVER,
    GID_CHOSEN_SINCE,
    MUST_BE_EQUAL,
    Selection,
    cost,
    distance,
    effect,
    is_off,
    is_on,
    number,
    version_numbers,
)
from pytest_mnode.spec.models import Spec

_PLUGIN_OF = {"efa": "EFA", "tcpx": "TCPX", "tcpxo": "TCPXO", "cxi": "Slingshot", "ub": "UB"}


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's settings, to be compared with the promise."""

    spec: Spec
    roce_version: str
    rank: RankTransport
    node: NodeTraffic
    nccl_version: str | None
    ranks_per_node: int

    @property
    def about(self) -> About:
        return About(ProofFact.PINNED, self.rank.node, self.rank.rank)

    def value(self, name: str) -> str | None:
        """The value in the environment, else the one that NCCL logged."""
        return self.rank.environment.get(name, self.rank.logged_settings.get(name))

    def shown(self, name: str) -> str:
        """NAME=value, with the file if the value is not from the environment."""
        file = self.rank.settings_of_files.get(name)
        if name not in self.rank.environment:
            file = "its log"
        return f"{name}={self.value(name)}{f' (in {file})' if file else ''}"

    def blame(self, case: Case, name: str, text: str) -> Remark:
        """A setting that contradicts the promise."""
        return self.about.fail(case, f"{self.shown(name)} {text}", setting=name)

    def unread(self, name: str, text: str) -> Remark:
        """A setting whose effect is not known, because a reading is missing."""
        return self.about.inconclusive(Case.UNREADABLE, f"{self.shown(name)}: {text}", name)

    def note(self, name: str, text: str) -> Remark:
        """A setting that is no objection."""
        return self.about.note(Case.NOTED, f"{self.shown(name)}: {text}", name)


def pinned(facts: Evidence, spec: Spec, roce_version: str) -> list[Remark]:
    """Variables of each rank that send traffic elsewhere, and variables that differ by rank."""
    found: list[Remark] = []
    for rank in facts.ranks:
        own = rank.log.nccl_version if rank.log else None
        node, version = facts.node(rank.node), own or facts.nccl_version
        one = _Rank(spec, roce_version, rank, node, version, facts.ranks_per_node)
        remarks = [*(_gloo if facts.backend == "gloo" else _nccl)(one), *_others(one)]
        found += [*remarks, *_costs(one, remarks)]
    if facts.backend == "gloo":  # it reads none of NCCL's variables and uses no RDMA port
        return found
    if spec.fabric.protocol is not None:
        found += [remark for node in facts.nodes for remark in _ports(node, spec, roce_version)]
    return [*found, *_differing(facts.ranks)]


def _gloo(one: _Rank) -> Iterator[Remark]:
    written = one.value("GLOO_SOCKET_IFNAME") or ""
    if len(written) < 2:  # torch ignores it
        text = "GLOO_SOCKET_IFNAME is not set: gloo uses the interface of the host name"
        yield one.about.note(Case.NOTED, text)
        return
    names = [name.strip() for name in written.split(",") if name.strip()]
    wrong = [name for name in names if not one.spec.fabric.has_interface(name)]
    if wrong or not names:
        yield one.blame(Case.WRONG_INTERFACE, "GLOO_SOCKET_IFNAME", f"is not {_fabric(one.spec)}")


def _nccl(one: _Rank) -> Iterator[Remark]:
    yield from _network(one)
    if is_rdma(one.spec):
        for name in FAILOVER:
            if is_on(one.value(name)):
                yield one.note(name, "a port that dies ends no job: its traffic moves to others")
        yield from _devices(one)
        yield from _gids(one)
    elif one.spec.fabric.kind == "ethernet":
        yield from _interfaces(one)
    if one.spec.fabric.gpudirect:
        yield from _gpudirect(one)
    within = one.ranks_per_node > 1 and is_on(one.value("NCCL_P2P_DISABLE"))
    if within and is_on(one.value("NCCL_SHM_DISABLE")):
        yield one.about.fail(
            Case.NOT_ON_FABRIC,
            "NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1 sends over the NIC what should stay inside "
            "the node",
            setting="NCCL_P2P_DISABLE",
        )


def _network(one: _Rank) -> Iterator[Remark]:
    kind = one.spec.fabric.kind
    net = (one.value("NCCL_NET") or "").strip()
    if kind in ("infiniband", "roce") and is_on(one.value("NCCL_IB_DISABLE")):
        yield one.blame(Case.IB_DISABLED, "NCCL_IB_DISABLE", "disables RDMA")
    sockets = net.lower() in ("socket", "fastsocket")
    if sockets and kind != "ethernet":
        yield one.blame(Case.NET_CHOSEN, "NCCL_NET", f"chooses sockets where {kind} is promised")
    elif net.upper() == "IB" and kind not in ("infiniband", "roce"):
        yield one.blame(Case.NET_CHOSEN, "NCCL_NET", f"chooses verbs where {kind} is promised")
    elif net and not sockets:
        yield one.note("NCCL_NET", "a fallback would be an error")
    if one.spec.accelerators.nodes_of_a_domain > 1 and is_off(one.value("NCCL_MNNVL_ENABLE")):
        yield one.note("NCCL_MNNVL_ENABLE", "NICs carry what NVLink would inside a domain")
    for name, text in (
        ("NCCL_NET_PLUGIN", f"loads no plugin, and {_PLUGIN_OF.get(kind)} needs one"),
        ("FI_PROVIDER", f"leaves out {kind}, which is promised"),
        ("HCCL_INTER_HCCS_DISABLE", "sends by RoCE between nodes, where ub is promised"),
    ):
        if kind in _PLUGIN_OF and cost(name, one.value(name) or "", kind, None):
            yield one.blame(Case.NET_CHOSEN, name, text)


def _devices(one: _Rank) -> Iterator[Remark]:
    variable, spec = "NCCL_IB_HCA", one.spec
    written = one.value(variable)
    if not written or spec.fabric.kind == "efa":
        return
    if one.node.machine.rdma is None:
        yield one.unread(variable, "RDMA devices could not be listed, so its choice is not known")
        return
    chosen = Selection.of(written)
    there = [p for p in one.node.machine.ports if p.active is not False]
    taken = {p.device for p in there if chosen.takes(p.device, p.number)}
    ours = {p.device for p in one.node.fabric_ports(spec) if p.active is not False}
    if why := one.node.why_not_taken(chosen):
        yield one.blame(Case.NO_DEVICE, variable, why)
        return
    if left_out := sorted(ours - taken):
        text = f"leaves out {', '.join(left_out)} of the fabric{chosen.doubt}"
        yield one.blame(Case.RAIL_DOWN, variable, text)
    if stray := sorted(name for name in taken if not one.node.is_named(name, spec)):
        text = f"takes {', '.join(stray)}, not of {_fabric(spec)}"
        yield one.blame(Case.STRAY_RAIL, variable, text)


def _gids(one: _Rank) -> Iterator[Remark]:
    if one.spec.fabric.kind != "roce":
        return
    asked = number(one.value("NCCL_IB_ROCE_VERSION_NUM"))
    version = version_numbers(one.nccl_version)
    reads_it = version is None or version >= GID_CHOSEN_SINCE
    if reads_it and asked in (1, 2) and f"v{asked}" != one.roce_version:
        text = f"where RoCE {one.roce_version} is promised"
        yield one.blame(Case.GID_TYPE, "NCCL_IB_ROCE_VERSION_NUM", text)
    variable = "NCCL_IB_GID_INDEX"
    index = number(one.value(variable))
    if index is None or index < 0:
        return
    wrong: dict[str, list[str]] = {}
    for port in one.node.fabric_ports(one.spec):
        types = gid_types(port)
        if state_of(port):  # its GIDs may be gone, which is not the setting's fault
            continue
        if types is None:
            yield one.unread(variable, f"types of the GIDs of {port.name} could not be read")
        elif index not in types:
            yield one.blame(Case.GID_TYPE, variable, f"is not the index of a GID of {port.name}")
        elif types[index] != one.roce_version:
            wrong.setdefault(types[index], []).append(port.name)
    for type_, names in wrong.items():
        text = f"is RoCE {type_} on {', '.join(names)}, promised {one.roce_version}"
        yield one.blame(Case.GID_TYPE, variable, text)


def _ports(node: NodeTraffic, spec: Spec, roce_version: str) -> Iterator[Remark]:
    """Fabric ports with another protocol than promised, or without a GID of that RoCE version."""
    about, wanted = About(ProofFact.PINNED, node.name), spec.fabric.protocol
    others: dict[str | None, list[str]] = {}
    for port in node.fabric_ports(spec):
        if state_of(port):
            continue
        types = gid_types(port)
        if port.protocol != wanted:
            others.setdefault(port.protocol, []).append(port.name)
        elif wanted == "RoCE" and types is not None and roce_version not in types.values():
            yield about.fail(Case.GID_TYPE, f"{port.name} has no GID of RoCE {roce_version}")
    for protocol, names in others.items():
        shown = ", ".join(names)
        if protocol is None:
            text = f"node type or link layer of {shown} could not be read, promised is {wanted}"
            yield about.inconclusive(Case.UNREADABLE, text)
        else:
            text = f"protocol of {shown} is {protocol}, promised is {wanted}"
            yield about.fail(Case.OTHER_NETWORK, text)


def _interfaces(one: _Rank) -> Iterator[Remark]:
    """Interfaces of NCCL's sockets; with RDMA they carry only the set-up of connections."""
    variable = "NCCL_SOCKET_IFNAME"
    written = one.value(variable) or ""
    if len(written) < 2:  # NCCL ignores it
        return
    if one.node.machine.interfaces is None:
        yield one.unread(variable, "interfaces could not be listed, so its choice is not known")
        return
    fabric = one.spec.fabric
    nics, chosen = one.node.machine.interfaces, Selection.of(written)
    # NCCL skips interfaces without an address, such as the links of a bond, but not lo.
    names = [nic.name for nic in nics if nic.addresses] or [n.name for n in nics if n.name != "lo"]
    taken = [name for name in names if chosen.takes(name)]
    if not any(fabric.has_interface(name) for name in taken):
        over = f"takes {', '.join(taken) or 'no interface of this node'}{chosen.doubt}"
        yield one.blame(Case.WRONG_INTERFACE, variable, f"{over}, not {_fabric(one.spec)}")
    elif stray := [name for name in taken if not fabric.has_interface(name)]:
        text = f"takes {', '.join(stray)} beside {_fabric(one.spec)}"
        yield one.blame(Case.STRAY_RAIL, variable, text)


def _gpudirect(one: _Rank) -> Iterator[Remark]:
    blame = partial(one.blame, Case.GPUDIRECT_OFF)
    level = "NCCL_NET_GDR_LEVEL" if one.value("NCCL_NET_GDR_LEVEL") else "NCCL_IB_GDR_LEVEL"
    if distance(one.value(level)) == 0:
        yield blame(level, "disables GPUDirect, which is promised")
    if is_off(one.value("NCCL_NET_GDR_READ")):
        yield blame("NCCL_NET_GDR_READ", "sends through the host")
    if cost("FI_EFA_USE_DEVICE_RDMA", one.value("FI_EFA_USE_DEVICE_RDMA") or "", "efa", None):
        yield blame("FI_EFA_USE_DEVICE_RDMA", "disables RDMA reads")


def _others(one: _Rank) -> Iterator[Remark]:
    """Settings of other libraries: only notes, because other facts judge them."""
    pipe = one.value("TP_SOCKET_IFNAME")
    if pipe and not one.spec.fabric.has_interface(pipe.strip()):
        yield one.note("TP_SOCKET_IFNAME", "RPC does not run on the fabric")
    devices = one.value("UCX_NET_DEVICES")
    if devices and devices.strip().lower() != "all":
        names = [name.strip().partition(":")[0] for name in devices.split(",")]
        if wrong := [name for name in names if not one.node.is_named(name, one.spec)]:
            yield one.note("UCX_NET_DEVICES", f"{', '.join(wrong)} for UCX")
    transports = {part.strip() for part in (one.value("UCX_TLS") or "").lower().split(",")}
    rdma_transports = {"all", "ib", "rc", "dc", "rc_x"}
    if is_rdma(one.spec) and "tcp" in transports and not transports & rdma_transports:
        yield one.note("UCX_TLS", "UCX is restricted to sockets")


def _costs(one: _Rank, remarks: Sequence[Remark]) -> Iterator[Remark]:
    """Settings that cost speed and have no remark yet: they change no path."""
    known = {remark.setting for remark in remarks}
    for name in {**one.rank.environment, **one.rank.logged_settings}:
        why = cost(name, one.value(name) or "", one.spec.fabric.kind, one.nccl_version)
        if why is not None and name not in known:
            yield one.note(name, why)


def _fabric(spec: Spec) -> str:
    return f"the fabric ({', '.join(spec.fabric.interfaces)})"


def _differing(ranks: Sequence[RankTransport]) -> Iterator[Remark]:
    """Each rank whose value differs from most ranks, for variables that must be equal on all.

    If no value is that of most ranks, each rank differs: nobody knows which are right.
    """
    for name in MUST_BE_EQUAL:
        holders: dict[str | int | None, list[RankTransport]] = {}
        for rank in ranks:
            holders.setdefault(effect(name, rank.environment.get(name)), []).append(rank)
        ordered = sorted(holders, key=lambda value: -len(holders[value]))
        most = 2 * len(holders[ordered[0]]) > len(ranks)
        for value in ordered[most:] if len(ordered) > 1 else ():
            other = ordered[value == ordered[0]]
            others = "not set" if other is None else repr(holders[other][0].environment[name])
            for rank in holders[value]:
                shown = "is not set" if value is None else f"is {rank.environment[name]!r}"
                remark = About(ProofFact.PINNED, rank.node, rank.rank).fail(
                    Case.DIFFERS, f"{name} {shown}, on other ranks {others}"
                )
                yield replace(remark, sure=most)
