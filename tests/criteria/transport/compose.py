"""Facts of clusters that do not exist: nodes of eight ranks and rails, with logs as NCCL writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_mnode.criteria.transport import Facts, Nic, NodeFacts, Port, Proof, RankFacts, judge
from pytest_mnode.criteria.transport.moved import expected
from pytest_mnode.logs.nccl_log import read_nccl_log
from pytest_mnode.spec import Spec
from pytest_mnode.spec.fabric import TransportPromise

RAILS = 8
PROMISE = TransportPromise.model_validate({"size": "1 GiB", "calls": 2})
DEVICES = {"infiniband": "mlx5_{}", "roce": "mlx5_{}", "efa": "rdmap{}s0", "ethernet": "eth{}"}
LAYERS = {"infiniband": "IB", "roce": "RoCE"}


def spec_of(kind: str, *, gpudirect: bool = True) -> Spec:
    """A page that promises eight rails of this kind."""
    pattern = {"efa": "rdmap*", "ethernet": "eth[1-8]"}.get(kind, "mlx5_[0-7]")
    fabric: dict[str, Any] = {
        "kind": kind,
        "interfaces": [pattern],
        "line_rate": "400 Gbit/s",
        "nics_per_node": RAILS,
        "mtu": {"ethernet": 9000}.get(kind, 4096),
    }
    if gpudirect and kind != "ethernet":
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
    return DEVICES[kind].format(rail + (kind == "ethernet"))


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
    """What a rank logs: its channel to the next node and from the one before, over its own rail.

    before, after: lines of messages to put before the channels and after them. via: instead of the
    network's own index and suffix, such as "NET/Socket/0".
    """
    names = devices or [device(kind, rail) for rail in range(RAILS)]
    local, size = rank % RAILS, nodes * RAILS
    who = f"birch{rank // RAILS}:{5000 + local}:{5100 + local} [{local}] NCCL INFO "
    comm = f"comm 0x7f1b0{rank:03x}000 rank {rank} nranks {size} cudaDev {local} nvmlDev {local}"
    comm += f" busId {local + 1}a000 commId 0x3c1d2e5f60718293"
    if net is None:
        net = {"efa": "AWS Libfabric", "ethernet": "Socket"}.get(kind, "IB")
    found = {
        "IB": "NET/IB : Using "
        + " ".join(f"[{i}]{n}:1/{LAYERS.get(kind, 'RoCE')}" for i, n in enumerate(names))
        + " [RO]; OOB mgmt0:10.9.0.1<0>",
        "Socket": "NET/Socket : Using "
        + " ".join(f"[{i}]{n}:10.8.{i}.1<0>" for i, n in enumerate(names)),
        "AWS Libfabric": f"NET/OFI Selected provider is efa, fabric is efa (found {RAILS} nics)",
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
    told = (line if "NCCL WARN" in line else who + line for line in lines)
    return head + "\n".join(told) + "\n"


def healthy(kind: str, nodes: int = 3) -> Facts:
    """All four facts agree."""
    spec = spec_of(kind)
    ranks = tuple(
        RankFacts(
            rank=rank,
            node=f"birch{rank // RAILS}",
            environment={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH"},
            log=read_nccl_log(log_text(rank, nodes, kind)),
        )
        for rank in range(nodes * RAILS)
    )
    names = tuple(NodeFacts(name=f"birch{n}", nics=(), ports=()) for n in range(nodes))
    facts = Facts(
        backend="nccl", size_bytes=PROMISE.size_bytes, calls=PROMISE.calls, nodes=names, ranks=ranks
    )
    each = int(expected(facts, spec.fabric, PROMISE).payload_bytes * 1.02 / RAILS)
    return replace(facts, nodes=tuple(_node(node.name, kind, each) for node in names))


def _node(name: str, kind: str, each: int) -> NodeFacts:
    def nic(nic_name: str, count: int = 20_000, **more: Any) -> Nic:
        return Nic(name=nic_name, sent_bytes=count, received_bytes=count, up=True, **more)

    nics = [nic("lo"), nic("mgmt0")]
    ports: list[Port] = []
    for rail in range(RAILS):
        if kind == "ethernet":
            nics.append(nic(device(kind, rail), each))
            continue
        netdevs = {"infiniband": (f"ib{rail}",), "roce": (f"ens{rail}",)}.get(kind, ())
        nics += [nic(n, infiniband=kind == "infiniband") for n in netdevs]
        ports.append(
            Port(
                device=device(kind, rail),
                port=1,
                sent_bytes=each,
                received_bytes=each,
                state="ACTIVE",
                protocol=spec_of(kind).fabric.protocol,
                gid_types={0: "v1", 1: "v2", 3: "v2"} if kind == "roce" else {0: "IB"},
                netdevs=netdevs,
            )
        )
    return NodeFacts(name=name, nics=tuple(nics), ports=tuple(ports))


def judged(kind: str, facts: Facts, **spec: Any) -> Proof:
    """The proof of these facts for the page of this kind."""
    return judge(facts, spec_of(kind, **spec), PROMISE)


def on_node(facts: Facts, name: str | None, change: Callable[[NodeFacts], NodeFacts]) -> Facts:
    """With one node changed, or all."""
    return replace(
        facts, nodes=tuple(change(n) if name in (None, n.name) else n for n in facts.nodes)
    )


def with_env(facts: Facts, node: str | None = None, **settings: str) -> Facts:
    """With variables set in the ranks of one node, or all."""
    return replace(
        facts,
        ranks=tuple(
            replace(r, environment={**r.environment, **settings}) if node in (None, r.node) else r
            for r in facts.ranks
        ),
    )


def with_logs(facts: Facts, kind: str, node: str | None = None, **how: Any) -> Facts:
    """With other logs of one node's ranks, or of all; `how` as log_text takes it."""
    count = len(facts.nodes)
    return replace(
        facts,
        ranks=tuple(
            replace(r, log=read_nccl_log(log_text(r.rank, count, kind, **how)))
            if node in (None, r.node)
            else r
            for r in facts.ranks
        ),
    )


def carried(facts: Facts, node: str | None, counts: Mapping[str, int | None]) -> Facts:
    """With what these NICs (interfaces or RDMA devices) carried in both directions."""

    def change(n: NodeFacts) -> NodeFacts:
        def of(item: Any, name: str) -> Any:
            if name not in counts:
                return item
            return replace(item, sent_bytes=counts[name], received_bytes=counts[name])

        return replace(
            n,
            nics=tuple(of(nic, nic.name) for nic in n.nics or ()),
            ports=tuple(of(port, port.device) for port in n.ports or ()),
        )

    return on_node(facts, node, change)


def moved(kind: str, facts: Facts) -> int:
    """What a node sends in all."""
    return int(expected(facts, spec_of(kind).fabric, PROMISE).payload_bytes)


def fallen_back(kind: str, facts: Facts, node: str | None, over: str, **how: Any) -> Facts:
    """NCCL on sockets over one interface: logs say so, and so do counters."""
    facts = with_logs(facts, kind, node, net="Socket", devices=[over], **how)
    names = {device(kind, rail): 0 for rail in range(RAILS)}
    return carried(facts, node, {**names, over: moved(kind, facts)})
