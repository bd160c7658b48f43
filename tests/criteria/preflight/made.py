"""Surveys as values: a healthy cluster, and functions that change parts of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import yaml

from pytest_mnode.certificate.gathered import Kept
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    DirectoryFacts,
    Heard,
    LastFacts,
    LookUp,
    NodeFacts,
    NodeSurvey,
    Path,
    PathFacts,
    Rail,
    Survey,
    survey_to_json,
)
from pytest_mnode.criteria.preflight.environment import Ranks, ranks_to_json
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.evidence.check import Check
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import Gid, Port, RdmaDevice
from pytest_mnode.machine.software import Software
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec

SPEC = """
name: hall
nodes: 64
accelerators: {{per_node: {accelerators}}}
fabric:
  kind: {kind}
  interfaces: [{interfaces}]
  line_rate: 400 Gbit/s
  nics_per_node: {nics}
  mtu: 9000
management: {{interfaces: [eth0], line_rate: 25 Gbit/s, mtu: 1500}}
storage: {{datasets: /data, checkpoints: /ckpt}}
criteria:
  preflight: {preflight}
certificate: {{valid_for: 7 days}}
"""


@cache
def promising(
    preflight: str,
    kind: str = "ethernet",
    interfaces: str = "fab0, fab1",
    accelerators: str = "0",
    *,
    nics: int | None = None,
) -> Spec:
    """A spec with this preflight section. nics: of a node; None for one per name."""
    text = SPEC.format(
        preflight=preflight,
        kind=kind,
        interfaces=interfaces,
        accelerators=accelerators,
        nics=len(interfaces.split(",")) if nics is None else nics,
    )
    return Spec.model_validate(yaml.safe_load(text))


def interface(name: str, address: str, **changes: Any) -> Interface:
    """An interface that is up, at 400 Gbit/s."""
    one = Interface(
        name=name,
        kind=Kind.PHYSICAL,
        admin_up=True,
        carrier=True,
        mtu_bytes=9000,
        speed_mbits_s=400_000,
        addresses=(address,) if address else (),
    )
    return replace(one, **changes)


_LAYERS = {"InfiniBand": ("InfiniBand", "CA"), "RoCE": ("Ethernet", "CA")}
_LAYERS |= {"iWARP": ("Ethernet", "RNIC"), "EFA": ("Unknown", "unspecified")}


def rdma_port(
    protocol: str = "InfiniBand",
    gid_types: Iterable[str | None] | None = ("IB/RoCE v1",),
    **changes: Any,
) -> Port:
    """An ACTIVE port of 400 Gbit/s, with three counters and one hw_counter."""
    layer, node_type = _LAYERS.get(protocol, ("Ethernet", ""))
    gids = None
    if gid_types is not None:
        gids = tuple(Gid(index=i, gid="fe80::1", type=kind) for i, kind in enumerate(gid_types))
    one = Port(
        device="mlx5_0",
        number=1,
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbits_s=400.0,
        link_layer=layer,
        node_type=node_type,
        gids=gids,
        counters={"symbol_error": 0, "link_downed": 0, "port_xmit_data": 5},
        hw_counters={"out_of_sequence": 0},
    )
    return replace(one, **changes)


def rdma_device(*ports: Port, netdevs: tuple[str, ...] = (), firmware: str = "") -> RdmaDevice:
    """The RDMA device with these ports."""
    return RdmaDevice(name=ports[0].device, ports=ports, netdevs=netdevs, firmware=firmware or None)


def devices_of(*ports: Port) -> tuple[RdmaDevice, ...]:
    """The RDMA devices that these ports belong to."""
    names = dict.fromkeys(port.device for port in ports)
    return tuple(rdma_device(*(p for p in ports if p.device == name)) for name in names)


H100 = Accelerator(
    index=0,
    name="H100",
    memory_bytes=80 * 10**9,
    ecc_enabled=True,
    ecc_uncorrected=0,
    persistence=True,
    throttled=(),
    mig_enabled=False,
    remapped_rows_failed=False,
    remapped_rows_pending=False,
)
SOFTWARE = Software(
    python="CPython 3.11.7",
    kernel="6.1.0",
    torch="2.6.0",
    nccl="2.21.5",
    driver="550.54.15",
    driver_is_open=True,
    peermem=None,
    cpu="2 × Intel(R) Xeon(R) Platinum 8480C",
    microcode="0x2b0005c0",
    packages={"numpy": "2.1.0", "torch": "2.6.0"},
)
CODE = {"train/main.py": "0a1b2c3d4e5f"}
SETTINGS = {"net.ipv4.tcp_rmem": "4096 131072 6291456", "net.core.rmem_max": "212992"}
RAILS = ("fab0", "fab1")
"""Two, so that a judge that looks at only one of them is found out."""
_ON_FABRIC = tuple(("fabric", rail, 9000) for rail in RAILS)
_LINKS = (*_ON_FABRIC, ("management", "eth0", 1500))


def node(index: int, count: int) -> NodeSurvey:
    """The survey of one of `count` healthy nodes."""
    others = [i for i in range(count) if i != index]
    control = f"10.1.0.{index + 1}"
    addresses = {rail: f"10.{2 + 10 * n}.0.{index + 1}" for n, rail in enumerate(RAILS)}
    facts = NodeFacts(
        tcp_port=4000,
        udp_port=4001,
        master_problem="",
        rails={
            "fabric": tuple(Rail(rail, addresses[rail], 5, 6) for rail in RAILS),
            "management": (Rail("eth0", control, 3, 4),),
        },
        code=CODE,
        directories=(),
        machine=Machine(
            hostname=f"gpu{index}",
            software=SOFTWARE,
            settings=SETTINGS,
            limits=Limits(None, 1 << 20),
            interfaces=(
                *(interface(rail, address) for rail, address in addresses.items()),
                interface("eth0", control, mtu_bytes=1500, speed_mbits_s=25_000),
            ),
            rdma=(),
        ),
    )
    paths = PathFacts(
        connections=tuple(
            Connection(to, network, rail, 0.001, "", size)
            for network, rail, size in _LINKS
            for to in others
        ),
        master=Connection(0, "control", "", 0.001, ""),
        paths=tuple(
            Path(to, network, rail, True, size, None, 0.0, 0.0001)
            for network, rail, size in _ON_FABRIC
            for to in others
        ),
        look_ups=tuple(
            LookUp(to, what, (found,), 0.001, "")
            for to in range(count)
            for what, found in itertools.permutations((f"gpu{to}", f"10.1.0.{to + 1}"))
        ),
        seen=(),
    )
    heard = tuple(Heard(network, rail, tuple(others)) for network, rail, _ in _LINKS)
    return NodeSurvey(index, f"gpu{index}", control, "", facts, paths, LastFacts(heard, ()))


def healthy(count: int = 4) -> Survey:
    """A cluster that is well."""
    return Survey(tuple(node(index, count) for index in range(count)))


def kept_as(evidence: Survey | Ranks) -> Kept:
    """It as the evidence of a run gives it back."""
    kept = Kept()
    rows = survey_to_json(evidence) if isinstance(evidence, Survey) else ranks_to_json(evidence)
    for one in json.loads(json.dumps([*rows], allow_nan=False)):
        kept.add(one)
    return kept


def with_node(survey: Survey, index: int, **changes: Any) -> Survey:
    """With other fields of one node."""
    nodes = list(survey.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(survey, nodes=tuple(nodes))


def with_facts(survey: Survey, index: int, **changes: Any) -> Survey:
    """The survey with other facts of one node, or other fields of its machine."""
    facts = survey.nodes[index].facts
    assert facts is not None
    parts = {name: changes.pop(name) for name in [*changes] if name in Machine.__slots__}
    machine = replace(facts.machine, **parts)
    return with_node(survey, index, facts=replace(facts, machine=machine, **changes))


def everyone(survey: Survey, **changes: Any) -> Survey:
    """The survey with these facts on all nodes."""
    for index in range(len(survey.nodes)):
        survey = with_facts(survey, index, **changes)
    return survey


def on_loopback(survey: Survey) -> Survey:
    """The survey of nodes that are reached at 127.0.0.1."""
    return replace(survey, nodes=tuple(replace(one, address="127.0.0.1") for one in survey.nodes))


def with_interface(survey: Survey, index: int, name: str, **changes: Any) -> Survey:
    """The survey with other fields of one interface of a node."""
    there = survey.nodes[index].machine.interfaces or ()
    changed = (replace(one, **changes) if one.name == name else one for one in there)
    return with_facts(survey, index, interfaces=tuple(changed))


def with_path_facts(survey: Survey, index: int, **changes: Any) -> Survey:
    """With other facts of one node's paths; a function makes them of what is there."""
    paths = survey.nodes[index].paths
    assert paths is not None
    made: dict[str, Any] = {
        name: tuple(map(change, getattr(paths, name))) if callable(change) else change
        for name, change in changes.items()
    }
    return with_node(survey, index, paths=replace(paths, **made))


def silent(survey: Survey, index: int) -> Survey:
    """The survey with a node that gave no answer; no other node tried a path to it."""
    mute = {"problem": "its survey gave no answer", "facts": None, "paths": None, "last": None}
    changed = with_node(survey, index, **mute)
    for other in changed.nodes:
        if other.paths is not None:
            paths = replace(
                other.paths,
                connections=tuple(c for c in other.paths.connections if c.to != index),
                paths=tuple(p for p in other.paths.paths if p.to != index),
                look_ups=tuple(p for p in other.paths.look_ups if p.of != index),
            )
            changed = with_node(changed, other.index, paths=paths)
    return changed


def cut(
    survey: Survey,
    edges: Iterable[tuple[int, int]],
    network: str = "fabric",
    rails: Collection[str] = RAILS,
) -> Survey:
    """The survey without packets on these (sender, receiver) paths of a network.

    Connections between the two nodes fail, and the receiver hears nothing. rails: of the fabric.
    """
    lost = set(edges)
    pairs = lost | {(b, a) for a, b in lost}

    def fails(index: int, one: Connection | Path) -> bool:
        return (index, one.to) in pairs and on_network(one)

    def on_network(one: Connection | Heard | Path) -> bool:
        return one.network == network and (network != "fabric" or one.rail in rails)

    def connection(index: int, one: Connection) -> Connection:
        dead = replace(one, took_s=None, problem="no answer within 2 s", largest_bytes=None)
        return dead if fails(index, one) else one

    def path(index: int, one: Path) -> Path:
        return Path(one.to, one.network, one.rail, answered=False) if fails(index, one) else one

    def heard(index: int, one: Heard) -> Heard:
        left = tuple(s for s in one.senders if (s, index) not in lost)
        return replace(one, senders=left) if on_network(one) else one

    for i, node in enumerate(survey.nodes):
        assert node.last is not None
        last = replace(node.last, heard=tuple(heard(i, one) for one in node.last.heard))
        changes = {"connections": partial(connection, i), "paths": partial(path, i)}
        survey = with_path_facts(with_node(survey, i, last=last), i, **changes)
    return survey


def with_paths(survey: Survey, change: Callable[[int, Path], Path]) -> Survey:
    """The survey with other paths; `change` gets the index of a node and one of its paths."""
    for index, node in enumerate(survey.nodes):
        if node.paths is not None:
            survey = with_path_facts(survey, index, paths=partial(change, index))
    return survey


Judge = Callable[[Survey, Spec, str], list[Measurement]] | type[Check]


def asked(judge: Judge, survey: Survey, spec: Spec) -> dict[str, list[Measurement]]:
    """Findings about every node, by name. judge: a check, or a function like one."""
    found = {}
    judge = partial(judged, judge) if isinstance(judge, type) else judge
    for one in survey.nodes:
        found[one.name] = judge(survey, spec, one.name)
        assert found[one.name]
    return found


def verdicts(judge: Judge, survey: Survey, spec: Spec) -> dict[str, str]:
    """The worst verdict of each node that does not pass."""
    found = {}
    for name, answer in asked(judge, survey, spec).items():
        there = {m.verdict for m in answer}
        assert there != {None}, name
        for verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL):
            if verdict in there:
                found[name] = verdict.value
    return found


def culprits(judge: Judge, survey: Survey, spec: Spec) -> dict[str, str]:
    """Culprits of each node whose case fails."""
    found: dict[str, list[str]] = {}
    for name, answer in asked(judge, survey, spec).items():
        for failed in (m for m in answer if m.verdict is Verdict.FAIL):
            found.setdefault(name, []).append(failed.culprit or "")
    return {name: "; ".join(those) for name, those in found.items()}


IB = rdma_port()


ANY = "{interfaces: {}, speed: {}, rdma: {gid_types: [IB], errors_at_most: 0}, reachable: {}}"


def everywhere(survey: Survey, *ports: Port, interfaces: tuple[Interface, ...]) -> Survey:
    """The survey with these RDMA ports and interfaces on all nodes, beside eth0."""
    netdevs = tuple(one.name for one in interfaces)
    devices_there = tuple(replace(one, netdevs=netdevs) for one in devices_of(*ports))
    for node in survey.nodes:
        kept = tuple(i for i in node.machine.interfaces or () if i.name == "eth0")
        survey = with_facts(survey, node.index, rdma=devices_there, interfaces=(*kept, *interfaces))
    return survey


def directory(key: str, path: str, **changes: Any) -> DirectoryFacts:
    """A usable directory of a file server."""
    one = DirectoryFacts(
        key=key, path=path, file_system="nfs4 filer:/x", size_bytes=10**12, free_bytes=10**11
    )
    return replace(one, **changes)
