"""Composed evidence of clusters: nodes of eight ranks and rails, with logs in NCCL's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pytest_mnode.criteria.transport.counted import expected_bytes, judge, remarks_on
from pytest_mnode.criteria.transport.evidence import Evidence, NodeTraffic, RankTransport
from pytest_mnode.criteria.transport.remarks import Case, ProofFact, Remark, in_words
from pytest_mnode.logs.nccl_log.model import NcclLog
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.rdma import Gid, Port, RdmaDevice
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec
from pytest_mnode.spec.fabric import TransportPromise

RAILS = 8
PROMISE = TransportPromise.model_validate({"size": "1 GiB", "calls": 2})
DEVICES = {"infiniband": "mlx5_{}", "roce": "mlx5_{}", "efa": "rdmap{}s0"}
INTERFACES = {"ethernet": "eth[1-8]", "tcpx": "eth[1-8]", "tcpxo": "eth[1-8]", "cxi": "hsn[1-8]"}
"""Fabrics whose NICs are interfaces, with the spec's pattern."""
NETS = {
    "efa": "AWS Libfabric",
    "cxi": "AWS Libfabric",
    "ethernet": "Socket",
    "tcpx": "GPUDirectTCPX_v7",
    "tcpxo": "FasTrak",
}
LAYERS = {"infiniband": "IB", "roce": "RoCE"}


def spec_of(kind: str, *, gpudirect: bool = True, interfaces: str = "") -> Spec:
    """A spec that promises eight rails of this kind."""
    pattern = interfaces or {"efa": "rdmap*", **INTERFACES}.get(kind, "mlx5_[0-7]")
    fabric: dict[str, Any] = {
        "kind": kind,
        "interfaces": [pattern],
        "line_rate": "400 Gbit/s",
        "nics_per_node": RAILS,
        "mtu": 9000 if kind in INTERFACES else 4096,
    }
    if gpudirect and kind not in INTERFACES:
        fabric["gpudirect"] = True
    page = {
        "name": "a hall of our own",
        "nodes": 4,
        "accelerators": {"per_node": RAILS},
        "fabric": fabric,
        "management": {"interfaces": ["mgmt0"], "line_rate": "10 Gbit/s"},
        "criteria": {"fabric": {"transport": {}}},
        "certificate": {"valid_for": "1 days"},
    }
    return Spec.model_validate(page)


def device(kind: str, rail: int) -> str:
    """Name of a rail's NIC."""
    if kind in INTERFACES:
        return INTERFACES[kind].replace("[1-8]", str(rail + 1))
    return DEVICES[kind].format(rail)


def log_text(
    rank: int,
    nodes: int,
    kind: str,
    *,
    net: str | None = None,
    via: str | None = None,
    before: str = "",
    after: str = "",
    devices: list[str] | None = None,
    version: str = "2.27.5",
    gdr: str = "/GDRDMA",
) -> str:
    """A rank's log: channels to the next node and from the previous one over its own rail.

    before, after: message lines before and after the channels. via: replaces the network's own
    index
    and suffix, such as "NET/Socket/0".
    """
    names = devices or [device(kind, rail) for rail in range(RAILS)]
    local, size = rank % RAILS, nodes * RAILS
    who = f"birch{rank // RAILS}:{5000 + local}:{5100 + local} [{local}] NCCL INFO "
    comm = f"comm 0x7f1b0{rank:03x}000 rank {rank} nranks {size} cudaDev {local} nvmlDev {local}"
    comm += f" busId {local + 1}a000 commId 0x3c1d2e5f60718293"
    if net is None:
        net = NETS.get(kind, "IB")
    found = {
        "IB": "NET/IB : Using "
        + " ".join(f"[{i}]{n}:1/{LAYERS.get(kind, 'RoCE')}" for i, n in enumerate(names))
        + " [RO]; OOB mgmt0:10.9.0.1<0>",
        "Socket": "NET/Socket : Using "
        + " ".join(f"[{i}]{n}:10.8.{i}.1<0>" for i, n in enumerate(names)),
        "AWS Libfabric": f"NET/OFI Selected provider is {kind}, fabric is efa (found {RAILS} nics)",
    }.get(net, "NET/Plugin: Loaded net plugin")
    suffix = "" if net == "Socket" else gdr
    path = via or f"NET/{net}/{local % len(names)}{suffix}"
    ahead, behind = (rank + RAILS) % size, (rank - RAILS) % size
    lines = [
        *([before] if before else []),
        found,
        f"Using network {net}",
        f"ncclCommInitRank {comm} - Init START",
        f"Channel {local:02d}/0 : {behind}[{local}] -> {rank}[{local}] [receive] via {path}",
        f"Channel {local:02d}/0 : {rank}[{local}] -> {ahead}[{local}] [send] via {path}",
        *([after] if after else []),
        "Connected all rings, use ring PXN 0 GDR 1",
        f"ncclCommInitRank {comm} - Init COMPLETE",
    ]
    head = f"NCCL version {version}+cuda12.9\n" if rank == 0 else ""
    printed = (line if "NCCL WARN" in line else who + line for line in lines)
    return head + "\n".join(printed) + "\n"


@cache
def read_log(text: str) -> NcclLog:
    """The parsed log of a rank; cached, because tests share many of them."""
    return read_nccl_log(text)


def healthy(kind: str, nodes: int = 3) -> Evidence:
    """Evidence whose four facts agree."""
    spec = spec_of(kind)
    ranks = tuple(
        RankTransport(
            rank=rank,
            node=f"birch{rank // RAILS}",
            environment={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH"},
            log=read_log(log_text(rank, nodes, kind)),
        )
        for rank in range(nodes * RAILS)
    )
    facts = Evidence(
        backend="nccl",
        size_bytes=PROMISE.size_bytes,
        calls=PROMISE.calls,
        nodes=tuple(NodeTraffic(name=f"birch{n}", machine=Machine()) for n in range(nodes)),
        ranks=ranks,
    )
    each = int(expected_bytes(facts, spec.fabric, PROMISE).payload_bytes * 1.02 / RAILS)
    return replace(facts, nodes=tuple(node(one.name, kind, each) for one in facts.nodes))


def interface(name: str, **more: Any) -> Interface:
    """An interface that is up."""
    return Interface(**{"name": name, "kind": Kind.PHYSICAL, "operstate": "up", **more})


def rdma(
    name: str, kind: str, *, netdevs: tuple[str, ...] = (), pci: str | None = None
) -> RdmaDevice:
    """An RDMA device with one active port."""
    types = {0: "IB/RoCE v1", 1: "RoCE v2", 3: "RoCE v2"} if kind == "roce" else {0: "IB"}
    layers = {"infiniband": "InfiniBand", "roce": "Ethernet", "efa": "Unknown"}
    port = Port(
        device=name,
        number=1,
        state="ACTIVE",
        phys_state="LinkUp",
        link_layer=layers[kind],
        gids=tuple(Gid(index=n, gid="", type=t) for n, t in types.items()),
        node_type="unspecified" if kind == "efa" else "CA",
    )
    return RdmaDevice(name=name, ports=(port,), netdevs=netdevs, pci_address=pci)


def node(name: str, kind: str, each: int) -> NodeTraffic:
    """Eight rails that carried `each` bytes in both directions; other NICs carried little."""
    names = [device(kind, rail) for rail in range(RAILS)]
    nics = [interface("lo", kind=Kind.LOOPBACK), interface("mgmt0")]
    devices = []
    if kind in INTERFACES:
        nics += map(interface, names)
    for rail, rail_name in enumerate(() if kind in INTERFACES else names):
        netdevs = {"infiniband": (f"ib{rail}",), "roce": (f"ens{rail}",)}.get(kind, ())
        of = Kind.IPOIB if kind == "infiniband" else Kind.PHYSICAL
        nics += [interface(netdev, kind=of) for netdev in netdevs]
        devices.append(rdma(rail_name, kind, netdevs=netdevs))
    counts = {nic.name: 20_000 for nic in nics}
    counts |= {n if kind in INTERFACES else f"{n}:1": each for n in names}
    return NodeTraffic(
        name=name,
        machine=Machine(interfaces=tuple(nics), rdma=tuple(devices)),
        sent_bytes=counts,
        received_bytes=counts,
    )


@dataclass(frozen=True)
class Judged:
    """Remarks and measurements on the same evidence; their verdicts must agree."""

    remarks: list[Remark]
    measurements: list[Measurement]
    nodes: list[str]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all four facts."""
        remarks = {remark.verdict for remark in self.remarks}
        measured = {one.verdict for one in self.measurements[: len(ProofFact)]}
        order = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
        verdict = next(verdict for verdict in order if verdict in measured)
        assert verdict is next((one for one in order if one in remarks), Verdict.PASS)
        return verdict

    @property
    def answers(self) -> dict[str, str]:
        """The verdict of each fact."""
        return {
            fact: str(one.verdict) for fact, one in zip(ProofFact, self.measurements, strict=False)
        }

    @property
    def culprit(self) -> str:
        """Failed remarks, else inconclusive ones, as text; empty if all facts agree."""
        return self.text(Verdict.FAIL) or self.text(Verdict.INCONCLUSIVE)

    @property
    def cases(self) -> set[Case]:
        """Cases of the remarks that do not pass."""
        return {remark.case for remark in self.remarks if remark.verdict is not Verdict.PASS}

    def text(self, verdict: Verdict, *facts: ProofFact) -> str:
        """Remarks of these facts, or of all facts, as text."""
        return in_words(
            (r for r in self.remarks if r.verdict is verdict and r.fact in (facts or ProofFact)),
            self.nodes,
        )


def judged_by(facts: Evidence, spec: Spec, promise: TransportPromise) -> Judged:
    """These facts, judged."""
    names = [node.name for node in facts.nodes]
    return Judged(remarks_on(facts, spec, promise), judge(facts, spec, promise), names)


def judged(kind: str, facts: Evidence, **spec: Any) -> Judged:
    """The evidence judged by the spec of this kind."""
    return judged_by(facts, spec_of(kind, **spec), PROMISE)


def judged_as(kind: str, facts: Evidence, answers: str, cases: set[Case], *words: str) -> Judged:
    """The judged evidence, if its verdicts, its cases and the words of its culprit are these.

    answers: of each fact in turn: + it passes, - it fails, ? it is inconclusive.
    """
    proof = judged(kind, facts)
    signs = {"pass": "+", "fail": "-", "inconclusive": "?"}
    mixed = Verdict.INCONCLUSIVE if "?" in answers else Verdict.PASS
    assert proof.verdict is (Verdict.FAIL if "-" in answers else mixed), proof.remarks
    assert "".join(signs[proof.answers[fact]] for fact in ProofFact) == answers, proof.culprit
    assert proof.cases == cases, proof.culprit
    for some in words:
        assert some in proof.culprit
    return proof


def on_rank(facts: Evidence, number: int, **changes: Any) -> Evidence:
    """The evidence with one rank changed."""
    ranks = list(facts.ranks)
    ranks[number] = replace(ranks[number], **changes)
    return replace(facts, ranks=tuple(ranks))


def on_node(
    facts: Evidence, name: str | None, change: Callable[[NodeTraffic], NodeTraffic]
) -> Evidence:
    """The evidence with `change` applied to one node, or to all."""
    return replace(
        facts, nodes=tuple(change(n) if name in (None, n.name) else n for n in facts.nodes)
    )


def on_ranks(
    facts: Evidence, node: str | None, change: Callable[[RankTransport], RankTransport]
) -> Evidence:
    """With the ranks of one node changed, or all."""
    return replace(
        facts, ranks=tuple(change(r) if node in (None, r.node) else r for r in facts.ranks)
    )


def with_env(facts: Evidence, node: str | None = None, **settings: str) -> Evidence:
    """The evidence with variables set in the ranks of one node, or of all."""
    return on_ranks(facts, node, lambda r: replace(r, environment={**r.environment, **settings}))


def with_logs(facts: Evidence, kind: str, node: str | None = None, **how: Any) -> Evidence:
    """The evidence with other logs of one node's ranks, or of all; `how` goes to `log_text`."""
    count = len(facts.nodes)
    return on_ranks(
        facts, node, lambda r: replace(r, log=read_log(log_text(r.rank, count, kind, **how)))
    )


def carried(facts: Evidence, name: str | None, counts: Mapping[str, int | None]) -> Evidence:
    """The evidence with these bytes carried by NICs (interfaces or RDMA devices), both ways."""

    def change(one: NodeTraffic) -> NodeTraffic:
        known = dict(one.sent_bytes)
        for nic, count in counts.items():
            key = f"{nic}:1" if nic in one.devices else nic
            known.pop(key, None)
            known |= {} if count is None else {key: count}
        return replace(one, sent_bytes=known, received_bytes=known)

    return on_node(facts, name, change)


def ports_of(facts: Evidence, name: str | None, change: Callable[[Port], Port]) -> Evidence:
    """The evidence with `change` applied to the ports of one node, or of all."""

    def changed(one: NodeTraffic) -> NodeTraffic:
        devices = tuple(
            replace(device, ports=tuple(map(change, device.ports)))
            for device in one.machine.rdma or ()
        )
        return replace(one, machine=replace(one.machine, rdma=devices))

    return on_node(facts, name, changed)


def with_nics(
    facts: Evidence, name: str | None, *extra: Interface | RdmaDevice, without: str = ""
) -> Evidence:
    """The evidence with NICs added on one node, or on all, and the NIC `without` removed."""

    def changed(one: NodeTraffic) -> NodeTraffic:
        every = (*(one.machine.interfaces or ()), *(one.machine.rdma or ()), *extra)
        left = [nic for nic in every if nic.name != without]
        machine = replace(
            one.machine,
            interfaces=tuple(nic for nic in left if isinstance(nic, Interface)),
            rdma=tuple(device for device in left if isinstance(device, RdmaDevice)),
        )
        return replace(one, machine=machine)

    return on_node(facts, name, changed)


def moved(kind: str, facts: Evidence) -> int:
    """Bytes that a node sends in total."""
    return int(expected_bytes(facts, spec_of(kind).fabric, PROMISE).payload_bytes)


def fallen_back(kind: str, facts: Evidence, node: str | None, over: str, **how: Any) -> Evidence:
    """NCCL on sockets over one interface, according to logs and counters."""
    facts = with_logs(facts, kind, node, net="Socket", devices=[over], **how)
    names = {device(kind, rail): 0 for rail in range(RAILS)}
    return carried(facts, node, {**names, over: moved(kind, facts)})
