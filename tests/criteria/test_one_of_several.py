"""One bad rail, NIC, accelerator or rank of several, at either end of the list, on one node of
several: no judge passes it, and each names the node and the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest

from pytest_mnode.checks.devices.matmul import judge_products
from pytest_mnode.checks.devices.memory_test import judge_memory
from pytest_mnode.checks.devices.repeated_products import judge_repeated
from pytest_mnode.checks.devices.training_step import judge_steps
from pytest_mnode.checks.node.accelerators import AcceleratorsAreAsPromised
from pytest_mnode.checks.node.cpus import CpusAreBesideAccelerators
from pytest_mnode.checks.node.interfaces import InterfacesAreUp, InterfacesRunAtTheirSpeed
from pytest_mnode.checks.node.kernel_log import KernelLogHasNoFailures
from pytest_mnode.checks.node.mtu import FullSizePacketsPass, InterfacesHaveTheirMtu
from pytest_mnode.checks.node.payloads import PayloadsArriveUnchanged
from pytest_mnode.checks.node.pcie import PcieLinksAreFull
from pytest_mnode.checks.node.rdma import (
    RdmaDevicesCanBeOpened,
    RdmaErrorsStandStill,
    RdmaPortsAreActive,
)
from pytest_mnode.checks.node.reachable import EveryNodeIsReached
from pytest_mnode.checks.node.same import NodesAreTheSame
from pytest_mnode.checks.placement.copies import NearMemoryIsFasterThanFar
from pytest_mnode.checks.placement.nic import RanksSendOverTheNearestNic, nic_rows
from pytest_mnode.criteria.devices import judge_rates, worst_of
from pytest_mnode.criteria.fabric import judge_busbw, judge_latencies, judge_slow_links
from pytest_mnode.criteria.nics_used import judge_nics
from pytest_mnode.criteria.placement.near import COPIES, RankReading
from pytest_mnode.criteria.port_counters.judging import judge as judge_ports
from pytest_mnode.criteria.port_counters.reading import Counters, PortReading
from pytest_mnode.criteria.port_counters.rises import rises
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    LastFacts,
    PayloadFacts,
    Received,
    Sent,
    Survey,
)
from pytest_mnode.criteria.preflight.answers import Path as ProbedPath
from pytest_mnode.criteria.preflight.survey_check import judged as check_judged
from pytest_mnode.criteria.preflight.survey_check import of_node
from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, measured
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.row import RankRows, of_rank
from pytest_mnode.evidence.row import Row as PlacementRow
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.cpus import Cpus
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.numa import Numa, NumaNode
from pytest_mnode.machine.nvml import Accelerator, Load
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import VerbsDevice
from pytest_mnode.measurement import Measurement, Verdict, equals
from pytest_mnode.measuring.latency import Latencies
from pytest_mnode.measuring.locating.diagnosis import CONFIRMED_BY, REPEATS, diagnose
from pytest_mnode.measuring.locating.locate import Effort, conclude
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading
from pytest_mnode.measuring.locating.wording import Names, culprits
from pytest_mnode.measuring.memory_test import RankMemory
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.measuring.repeated_products import RepeatedProducts
from pytest_mnode.measuring.results_of_ranks import RankSteps, SameSteps
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise, MemoryTestPromise
from tests.criteria.preflight.made import (
    H100,
    RAILS,
    cut,
    healthy,
    promising,
    rdma_device,
    rdma_port,
    silent,
    with_facts,
    with_interface,
    with_node,
    with_path_facts,
    with_paths,
)
from tests.criteria.transport import compose
from tests.criteria.transport.compose import carried, on_rank, with_nics
from tests.measuring.sweeps import MIB, judged, row

COUNT = 4
IB = "infiniband"
NAMES = tuple(f"gpu{index}" for index in range(COUNT))
NICS = ("mlx5_0", "mlx5_1")
GPUS = ("0000:1b:00.0", "0000:9b:00.0")
NIC_ADDRESSES = ("0000:1c:00.0", "0000:9c:00.0")
PORT = rdma_port("RoCE", ("IB/RoCE v1", "RoCE v2"))


@dataclass(frozen=True)
class Bad:
    """What is bad: a device, by its place among several, of a node, by its place."""

    node: int
    device: int


class Mute(Bad):
    """A whole node, which gave no answer."""


Broken = Callable[[Survey, Bad], Survey]
Ask = Callable[[Bad | None], Sequence[Measurement]]
"""Measurements of a cluster with one bad device, or a healthy one."""


@dataclass(frozen=True)
class Row:
    """A question that a judge answers. devices: words that name the first and the last device.
    verdict: of a cluster with one bad device."""

    ask: Ask
    devices: Sequence[str]
    verdict: Verdict = Verdict.FAIL


UNKNOWN = Verdict.INCONCLUSIVE
WORLD = World(0, 2 * COUNT, 0, 2, NAMES[0], NAMES)
RANKS = [rank_name(WORLD, rank) for rank in range(WORLD.size)]
RANKS_OF_2, RANKS_OF_8 = ("rank {0} on ",) * 2, ("rank {1} on ",) * 2
INDICES = ("accelerator 0", "accelerator 1")
V1 = PORT.gids and PORT.gids[:1]


def _changed(those: Iterable[Any] | None, index: int, **changes: Any) -> tuple[Any, ...]:
    return tuple(replace(o, **changes) if i == index else o for i, o in enumerate(those or ()))


@cache
def _survey() -> Survey:
    """Nodes of two sockets, each with an accelerator and a NIC."""
    ports = [replace(PORT, device=name) for name in NICS]
    rdma_devices = tuple(
        replace(rdma_device(port, netdevs=(rail,), firmware="28.43"), pci_address=address)
        for port, rail, address in zip(ports, RAILS, NIC_ADDRESSES, strict=True)
    )
    kinds = [(a, "0302", "10de", s) for s, a in enumerate(GPUS)]
    kinds += [(a, "0200", "15b3", s) for s, a in enumerate(NIC_ADDRESSES)]
    link: dict[str, Any] = {"link_width": 16, "max_link_width": 16}
    link |= {"link_gtransfers_s": 32.0, "max_link_gtransfers_s": 32.0}
    functions = tuple(
        PciFunction(
            address=address,
            kind=kind,
            vendor=vendor,
            host=f"pci{socket}",
            numa_node=socket,
            local_cpus=frozenset({socket}),
            **link,
        )
        for address, kind, vendor, socket in kinds
    )
    survey = healthy(COUNT)
    for node in survey.nodes:
        assert node.last is not None
        there = tuple(
            replace(one, pci_address=NIC_ADDRESSES[RAILS.index(one.name)])
            if one.name in RAILS
            else one
            for one in node.machine.interfaces or ()
        )
        survey = with_facts(
            survey,
            node.index,
            interfaces=there,
            rdma=rdma_devices,
            verbs=tuple(VerbsDevice(f"uverbs{n}", name) for n, name in enumerate(NICS)),
            accelerators=tuple(replace(H100, index=n, pci_address=a) for n, a in enumerate(GPUS)),
            pci=PciTree(functions=functions),
            numa=Numa(nodes=tuple(NumaNode(number=n, cpus=frozenset({n})) for n in (0, 1))),
            cpus=Cpus(online=frozenset({0, 1})),
            limits=Limits(None, 1024, frozenset({0, 1})),
            kernel_log=Log(()),
            settings={f"net.ipv4.conf.{rail}.rp_filter": "2" for rail in RAILS},
        )
        pairs = [(rail, n) for rail in RAILS for n in range(COUNT) if n != node.index]
        sent = tuple(Sent(to, "fabric", f"{rail} {node.index}", "") for rail, to in pairs)
        received = tuple(Received(f"{rail} {other}", 4 * MIB, 0) for rail, other in pairs)
        last = LastFacts(node.last.heard, rdma_devices, received)
        survey = with_node(survey, node.index, payloads=PayloadFacts(sent), last=last)
    return survey


def _machine() -> Machine:
    return _survey().nodes[0].machine


def _preflight(judge: Any, promise: str, broken: Broken, kind: str = "roce") -> Ask:
    judge = partial(check_judged, judge) if isinstance(judge, type) else judge

    def ask(bad: Bad | None) -> list[Measurement]:
        survey = _survey()
        if isinstance(bad, Mute):
            survey = with_node(silent(survey, bad.node), bad.node, payloads=None)
        elif bad is not None:
            survey = broken(survey, bad)
        gpus = "2, model: H100, memory: 80 GB"
        spec = promising(promise, kind, accelerators=gpus)
        return [of_node(name, one) for name in NAMES for one in judge(survey, spec, name)]

    return ask


def _same(part: str) -> Any:
    return partial(check_judged, NodesAreTheSame, part=part)


def _link(**changes: Any) -> Broken:
    return lambda survey, bad: with_interface(survey, bad.node, RAILS[bad.device], **changes)


def _machine_with(change: Callable[[Machine, int], dict[str, Any]]) -> Broken:
    """Other facts of the node's machine, from those that it had and the place of the device."""
    return lambda survey, bad: with_facts(
        survey, bad.node, **change(survey.nodes[bad.node].machine, bad.device)
    )


def _gpu(**changes: Any) -> Broken:
    return _machine_with(lambda m, at: {"accelerators": _changed(m.accelerators, at, **changes)})


def _gpu_lost(machine: Machine, at: int) -> dict[str, Any]:
    those = [*(machine.accelerators or ())]
    those[at] = Accelerator(index=at)
    return {"accelerators": tuple(those)}


def _ports(survey: Survey, bad: Bad, **changes: Any) -> tuple[Any, ...]:
    """The RDMA devices of a node, one of them with another port."""
    there = survey.nodes[bad.node].machine.rdma or ()
    port = replace(there[bad.device].ports[0], **changes)
    return _changed(there, bad.device, ports=(port,))


def _port(**changes: Any) -> Broken:
    return lambda survey, bad: with_facts(survey, bad.node, rdma=_ports(survey, bad, **changes))


def _counted(by: int) -> Broken:
    def broken(survey: Survey, bad: Bad) -> Survey:
        last = survey.nodes[bad.node].last
        assert last is not None
        first = _ports(survey, bad, counters={**(PORT.counters or {}), "symbol_error": 5})
        later = _ports(survey, bad, counters={**(PORT.counters or {}), "symbol_error": 5 + by})
        survey = with_facts(survey, bad.node, rdma=first)
        return with_node(survey, bad.node, last=replace(last, rdma=later))

    return broken


def _pcie(addresses: Sequence[str], width: int | None) -> Broken:
    def change(machine: Machine, at: int) -> dict[str, Any]:
        functions = machine.pci.functions
        number = [one.address for one in functions].index(addresses[at])
        return {"pci": PciTree(functions=_changed(functions, number, link_width=width))}

    return _machine_with(change)


def _flapped(_: Machine, at: int) -> dict[str, Any]:
    downs = [Event(Severity.LINK_DOWN, "1", rail, "down") for rail in RAILS]
    return {"kernel_log": Log((*downs, Event(Severity.LINK_DOWN, "2", RAILS[at], "down")))}


def _sysctl(machine: Machine, at: int) -> dict[str, Any]:
    odd = {f"net.ipv4.conf.{RAILS[at]}.rp_filter": "1"}
    return {"settings": {**(machine.settings or {}), **odd}}


FIRMWARE = _machine_with(lambda m, at: {"rdma": _changed(m.rdma, at, firmware="1.0")})
VERBS = _machine_with(lambda m, at: {"verbs": _changed(m.verbs, at, problem="denied")})
CPUSET = _machine_with(lambda _, at: {"limits": Limits(None, 1024, frozenset({1 - at}))})


def _around(bad: Bad) -> set[tuple[int, int]]:
    return {e for n in range(COUNT) for e in ((n, bad.node), (bad.node, n)) if n != bad.node}


def _packets(survey: Survey, bad: Bad) -> Survey:
    def change(index: int, path: ProbedPath) -> ProbedPath:
        hit = (index, path.to) in _around(bad) and path.rail == RAILS[bad.device]
        return replace(path, largest_bytes=1500) if hit else path

    return with_paths(survey, change)


def _segments(survey: Survey, bad: Bad) -> Survey:
    def change(one: Connection) -> Connection:
        return replace(one, largest_bytes=900) if one.rail == RAILS[bad.device] else one

    return with_path_facts(survey, bad.node, connections=change)


def _lost(survey: Survey, bad: Bad) -> Survey:
    return cut(survey, _around(bad), rails=RAILS[bad.device : bad.device + 1])


def _payloads(size_bytes: int, wrong_bytes: int) -> Broken:
    """What a node received over one rail, and what others received from that rail of it."""

    def broken(survey: Survey, bad: Bad) -> Survey:
        for node in survey.nodes:
            assert node.last is not None
            received = tuple(
                replace(one, size_bytes=size_bytes, wrong_bytes=wrong_bytes)
                if rail == RAILS[bad.device] and bad.node in (int(sender), node.index)
                else one
                for one in node.last.received
                for rail, sender in [one.source.split()]
            )
            survey = with_node(survey, node.index, last=replace(node.last, received=received))
        return survey

    return broken


STATES = (
    "{accelerators: {ecc: 'on', ecc_errors_at_most: 0, persistence: 'on', throttling: none, "
    "mig: 'off', remapped_rows: none}}"
)
INTERFACES, RDMA, SAME = "{interfaces: {}}", "{rdma: {}}", "{same: [firmware, sysctl]}"
KERNEL_LOG = "{kernel_log: {link_downs_at_most: 1}}"
ANY = ("", "")
FAIL = Verdict.FAIL
IN_PREFLIGHT: dict[str, Row] = {
    what: Row(_preflight(judge, promise, broken), names, verdict)
    for what, judge, promise, broken, names, verdict in (
        ("interface down", InterfacesAreUp, INTERFACES, _link(admin_up=False), RAILS, FAIL),
        ("no carrier", InterfacesAreUp, INTERFACES, _link(carrier=False), RAILS, FAIL),
        ("unknown carrier", InterfacesAreUp, INTERFACES, _link(carrier=None), RAILS, UNKNOWN),
        (
            "speed of a port",
            InterfacesRunAtTheirSpeed,
            "{speed: {}}",
            _port(rate_gbits_s=100.0),
            NICS,
            FAIL,
        ),
        ("smaller MTU", InterfacesHaveTheirMtu, "{mtu: {}}", _link(mtu_bytes=1500), RAILS, FAIL),
        ("larger MTU", InterfacesHaveTheirMtu, "{mtu: {}}", _link(mtu_bytes=9216), RAILS, FAIL),
        ("unknown MTU", InterfacesHaveTheirMtu, "{mtu: {}}", _link(mtu_bytes=None), RAILS, UNKNOWN),
        ("packets", FullSizePacketsPass, "{mtu: {}}", _packets, RAILS, FAIL),
        ("segments", FullSizePacketsPass, "{mtu: {}}", _segments, ANY, FAIL),
        (
            "payload",
            PayloadsArriveUnchanged,
            "{payload: {}}",
            _payloads(4 * MIB, 1),
            ("fab0+fab1",) * 2,
            FAIL,
        ),
        ("lost payload", PayloadsArriveUnchanged, "{payload: {}}", _payloads(MIB, 0), ANY, UNKNOWN),
        ("connections", EveryNodeIsReached, "{reachable: {}}", _lost, RAILS, FAIL),
        ("state of a port", RdmaPortsAreActive, RDMA, _port(state="INIT"), NICS, FAIL),
        ("unknown state of a port", RdmaPortsAreActive, RDMA, _port(state=None), NICS, UNKNOWN),
        ("GID", RdmaPortsAreActive, "{rdma: {gid_types: [RoCE v2]}}", _port(gids=V1), NICS, FAIL),
        ("port that cannot be opened", RdmaDevicesCanBeOpened, RDMA, VERBS, NICS, FAIL),
        ("errors", RdmaErrorsStandStill, "{rdma: {errors_at_most: 0}}", _counted(1), NICS, FAIL),
        ("reset", RdmaErrorsStandStill, "{rdma: {errors_at_most: 0}}", _counted(-1), NICS, UNKNOWN),
        ("firmware", _same("firmware"), SAME, FIRMWARE, NICS, FAIL),
        ("sysctl", _same("sysctl"), SAME, _machine_with(_sysctl), RAILS, FAIL),
        ("PCIe of a NIC", PcieLinksAreFull, "{pcie: full}", _pcie(NIC_ADDRESSES, 8), NICS, FAIL),
        ("PCIe of a GPU", PcieLinksAreFull, "{pcie: full}", _pcie(GPUS, 8), GPUS, FAIL),
        ("unknown PCIe", PcieLinksAreFull, "{pcie: full}", _pcie(GPUS, None), GPUS, UNKNOWN),
        ("CPUs", CpusAreBesideAccelerators, "{cpus: near}", CPUSET, INDICES, FAIL),
        ("kernel log", KernelLogHasNoFailures, KERNEL_LOG, _machine_with(_flapped), RAILS, FAIL),
        (
            "GPU that does not answer",
            AcceleratorsAreAsPromised,
            STATES,
            _machine_with(_gpu_lost),
            INDICES,
            FAIL,
        ),
    )
}
for what, verdict, mbits_s in (("speed", FAIL, 100_000), ("unknown speed", UNKNOWN, None)):
    slower = _preflight(
        InterfacesRunAtTheirSpeed, "{speed: {}}", _link(speed_mbits_s=mbits_s), "ethernet"
    )
    IN_PREFLIGHT[what] = Row(slower, RAILS, verdict)
BAD_STATES: dict[str, Any] = {
    "name": "A100",
    "memory_bytes": 40 * 10**9,
    "ecc_enabled": False,
    "ecc_uncorrected": 3,
    "persistence": False,
    "throttled": ("HwThermalSlowdown",),
    "mig_enabled": True,
    "remapped_rows_failed": True,
    "remapped_rows_pending": True,
}
OF_GPUS = {
    f"GPU: {key}, {verdict}": Row(
        _preflight(AcceleratorsAreAsPromised, STATES, _gpu(**{key: state})),
        ANY if state is None and key == "memory_bytes" else INDICES,
        verdict,
    )
    for key, bad in BAD_STATES.items()
    for verdict, state in ((FAIL, bad), (UNKNOWN, None))
}


def _of_ports(counters: Counters, later: Counters, **of_node: Any) -> Ask:
    """Counters of fabric ports before and after: `later` those of the bad port."""

    def ask(bad: Bad | None) -> list[Measurement]:
        fabric = compose.spec_of("ethernet", interfaces="fab*").fabric
        before = {name: PortReading("a", dict.fromkeys(RAILS, counters)) for name in NAMES}
        after = dict(before)
        if bad is not None:
            ports = {**before[NAMES[bad.node]].ports, RAILS[bad.device]: later}
            after[NAMES[bad.node]] = PortReading("a", ports)
        return judge_ports([*rises(before, after, fabric.interfaces)], fabric)

    return ask


def _transport(
    broken: Callable[[Evidence, str, str, int], Evidence], also: Sequence[str] = ()
) -> Ask:
    """broken: gets the evidence, the name of a node, of a NIC there, and the number of a rank."""

    def ask(bad: Bad | None) -> list[Measurement]:
        facts = compose.healthy(IB, COUNT)
        facts = with_nics(facts, None, *map(compose.interface, also))
        facts = carried(facts, None, dict.fromkeys(also, 20_000))
        if bad is not None:
            rail = bad.device * (compose.RAILS - 1)
            name = also[bad.device] if also else compose.device(IB, rail)
            rank = bad.node * compose.RAILS + rail
            facts = broken(facts, f"birch{bad.node}", name, rank)
        return list(compose.judged(IB, facts).measurements)

    return ask


def _log_of(facts: Evidence, node: str, nic: str, rank: int) -> Evidence:
    text = compose.log_text(rank, COUNT, IB, via="NET/Socket/0")
    return on_rank(facts, rank, log=compose.read_log(text))


def _no_log(facts: Evidence, node: str, nic: str, rank: int) -> Evidence:
    return on_rank(facts, rank, log=None, no_log="not written")


def _environment(facts: Evidence, node: str, nic: str, rank: int) -> Evidence:
    return on_rank(facts, rank, environment={"NCCL_IB_DISABLE": "1"})


IB_NICS = tuple(compose.device(IB, rail) for rail in (0, compose.RAILS - 1))
OTHERS = ("eno0", "eno1")
QUIET: Counters = {"carrier_changes": 2, "rx_errors": 1, "rx_dropped": 3, "rx_packets": 10**6}
SENT = 2 * compose.PROMISE.size_bytes
OF_TRAFFIC: dict[str, Row] = {
    **{
        f"counter of a port: {key}": Row(_of_ports(QUIET, {**QUIET, key: count}), RAILS)
        for key, count in {"carrier_changes": 3, "rx_errors": 2, "rx_dropped": 10**5}.items()
    },
    **{
        f"unknown counter of a port: {key}": Row(
            _of_ports(QUIET, {**QUIET, key: None}), RAILS, UNKNOWN
        )
        for key in ("carrier_changes", "rx_errors", "rx_dropped")
    },
    "idle rail": Row(_transport(lambda f, node, nic, _: carried(f, node, {nic: 0})), IB_NICS),
    "missing rail": Row(_transport(lambda f, node, nic, _: with_nics(f, node, without=nic)), ANY),
    "rail without counters": Row(
        _transport(lambda f, node, nic, _: carried(f, node, {nic: None})), IB_NICS, UNKNOWN
    ),
    "traffic off the fabric": Row(
        _transport(lambda f, node, nic, _: carried(f, node, {nic: SENT}), OTHERS), OTHERS
    ),
    "log of a rank": Row(_transport(_log_of), RANKS_OF_8),
    "missing log of a rank": Row(_transport(_no_log), RANKS_OF_8, UNKNOWN),
    "setting of a rank": Row(_transport(_environment), RANKS_OF_8),
}


def _nearest(bad: Bad | None) -> list[Measurement]:
    """Each rank sends over the NIC of its accelerator; the bad one over both."""
    found = list[PlacementRow]()
    for number in range(2 * COUNT):
        node, device = divmod(number, 2)
        used = NICS if bad == Bad(node, device) else NICS[device : device + 1]
        here = RankReading(
            machine=_machine(),
            accelerator=GPUS[device],
            beside=GPUS,
            nics=used[:: 1 - 2 * device],
        )
        found += of_rank(nic_rows(here, NICS), number, NAMES[node])
    return RanksSendOverTheNearestNic("nearest").rule(found)


def _is_bad(rank: int, bad: Bad | None) -> bool:
    return bad is not None and rank == 2 * bad.node + bad.device


def _rates(**changes: Any) -> Ask:
    """Ranks that are equally fast, but one, in its rate, alone, or in what its GPU reported."""

    def ask(bad: Bad | None) -> list[Measurement]:
        load = Load(50, (), 1700, 0.0, 5, 5)
        rows = tuple(
            replace(one, **changes) if _is_bad(rank, bad) else one
            for rank, name in enumerate(RANKS)
            for one in [RankRate(name, 100.0, "", 100.0, load)]
        )
        promise = MatmulPromise(at_least_fraction=0.8, at_least_sm_clock_mhz=1400)
        copies = CopyPromise.model_validate(
            {"at_least_fraction": 0.8, "alone_at_least_gbytes_s": 50}
        )
        return [
            *judge_rates(Comparison("matmul", "GFLOP/s", promise, 50, rows, "")),
            *judge_rates(Comparison("host to device", "GB/s", copies, 50, rows, "")),
        ]

    return ask


def _products(count: int | None) -> Ask:
    return lambda bad: judge_products(
        "float32", 8, {name: count if _is_bad(rank, bad) else 0 for rank, name in enumerate(RANKS)}
    )


def _steps(why: str) -> Ask:
    def ask(bad: Bad | None) -> list[Measurement]:
        rows = []
        for rank, name in enumerate(RANKS):
            models: tuple[int, ...] = (rank, (rank + 2) % len(RANKS), (rank + 4) % len(RANKS), rank)
            odd = _is_bad(rank, bad)
            digests = tuple("odd" if odd else f"model {model}" for model in models)
            if odd and why:
                models, digests = (), ()
            rows.append(RankSteps(name, "cuda", models, digests, why if odd else ""))
        return judge_steps(SameSteps(tuple(rows), 5))

    return ask


def _off_fabric(bad: Bad | None) -> list[Measurement]:
    traffic = []
    for index, name in enumerate(NAMES):
        sent = {OTHERS[0]: 1, "fab0": 100, OTHERS[1]: 1}
        if bad is not None and index == bad.node:
            sent |= {OTHERS[bad.device]: 60}
        traffic.append(SentByNode(name, sent, 90))
    return judge_busbw(judged([row(MIB, 0.9)], traffic=traffic))


def _latency(bad: Bad | None) -> list[Measurement]:
    pairs = {
        (a, b): 1e-3 if bad is not None and bad.node in (a, b) else 40e-6
        for a, b in itertools.combinations(range(COUNT), 2)
    }
    return judge_latencies([Latencies(8, 3, 20e-6, pairs)], NAMES)


def _located(slow: Callable[[Bad, int, int], bool]) -> Ask:
    """Rates of all links of four rails, those of a bad rail that are `slow` at a quarter."""

    def ask(bad: Bad | None) -> list[Measurement]:
        rates = Rates(COUNT, 4, 170.0)
        for a, b in itertools.permutations(range(COUNT), 2):
            for rail in range(4):
                hit = bad is not None and rail == 3 * bad.device and slow(bad, a, b)
                read = Reading(a, b, rail, 48.0 if hit else 190.0, True)
                rates.add([read] * CONFIRMED_BY * REPEATS)
        found = diagnose(rates)
        spec = promising("{reachable: {}}", "ethernet", "fab0, fab1, fab2, fab3")
        faults = len(found.nodes) + len(found.paths)
        named = culprits(found, Names.of(NAMES, spec, 4, nvlink=False))
        return [Measurement("slow nodes and paths", faults, "", equals(0), "", named)]

    return ask


RATE, ALONE = {"rate": 40.0}, {"alone": 40.0}
OF_RANKS: dict[str, Row] = {
    "NIC of a rank": Row(_nearest, RANKS_OF_2),
    "product of a rank": Row(_products(3), RANKS_OF_2),
    "missing product of a rank": Row(_products(None), RANKS_OF_2, UNKNOWN),
    "steps of a rank": Row(_steps(""), RANKS_OF_2),
    "missing steps of a rank": Row(_steps("out of memory"), RANKS_OF_2, UNKNOWN),
    "rate of a rank": Row(_rates(rate=40.0), RANKS_OF_2),
    "missing rate of a rank": Row(_rates(rate=None, why="lost"), RANKS_OF_2, UNKNOWN),
    "rate of a rank alone": Row(_rates(alone=40.0), RANKS_OF_2),
    "missing rate of a rank alone": Row(_rates(alone=None), ANY, UNKNOWN),
    "throttled GPU of a rank": Row(
        _rates(load=Load(50, (("HwThermalSlowdown", 20),), 1300, 0.4, 5, 5)), RANKS_OF_2
    ),
    "load of a rank that NVML does not report": Row(
        _rates(load=Load(0, (), None, None, None, None)), RANKS_OF_2, UNKNOWN
    ),
    "PCIe of a rank": Row(_rates(load=Load(50, (), 1700, 0.0, 4, 5)), RANKS_OF_2),
    "bytes off the fabric": Row(_off_fabric, ANY),
    "latency": Row(_latency, ANY),
    "slow rail": Row(_located(lambda bad, a, b: bad.node in (a, b)), ("fab0", "fab3")),
    "slow rail, sending": Row(_located(lambda bad, a, b: bad.node == a), ("fab0", "fab3")),
    "slow rail, receiving": Row(_located(lambda bad, a, b: bad.node == b), ("fab0", "fab3")),
}


@pytest.mark.parametrize("what", [*IN_PREFLIGHT, *OF_GPUS, *OF_TRAFFIC, *OF_RANKS])
def test_one_bad_device_of_several_never_passes_and_is_named(what: str) -> None:
    one = (IN_PREFLIGHT | OF_GPUS | OF_TRAFFIC | OF_RANKS)[what]
    well = [m for m in one.ask(None) if m.verdict not in (Verdict.PASS, None)]
    assert well == []
    for node, device in itertools.product((0, COUNT - 1), (0, 1)):
        asked = one.ask(Bad(node, device))
        verdicts = {m.verdict for m in asked}
        assert one.verdict in verdicts, (node, device)
        assert one.verdict is Verdict.FAIL or Verdict.FAIL not in verdicts, (node, device)
        found = [m for m in asked if m.verdict is one.verdict]
        words = " ".join(f"{m.culprit or ''} {m.note}" for m in found)
        name, other = (
            one.devices[place].format(2 * node + place, compose.RAILS * node + 7 * place)
            for place in (device, 1 - device)
        )
        assert name in words, (node, device)
        accused = " ".join(str(m.culprit) for m in found if m.culprit)
        assert other == name or other not in accused, (node, device)
        blamed = [m.culprit for m in found if m.culprit]
        sure = {name for culprit in blamed for name in culprit.nodes}
        right = {NAMES[node], f"birch{node}"}
        assert sure <= right, (node, device)
        assert sure or one.verdict is UNKNOWN, (node, device)
        assert any(n in words for n in right), (node, device)


def test_a_node_without_an_answer_is_inconclusive_and_fails_no_other() -> None:
    for what, one in IN_PREFLIGHT.items():
        asked = one.ask(Mute(2, 0))
        assert {m.verdict for m in asked} == {Verdict.PASS, UNKNOWN}, what
        assert all("gpu2" in m.note for m in asked if m.verdict is UNKNOWN), what


FEW: dict[Any, Any] = {0: 3, 2 * COUNT - 1: None}
"""By rank: the first is bad, and of the last, on another node, nothing is known."""


def _loads() -> list[Measurement]:
    loads = {0: Load(50, (), 1700, 0.0, 4, 5), 2 * COUNT - 1: Load(0, (), None, None, None, None)}
    fine = Load(50, (), 1700, 0.0, 5, 5)
    rows = [RankRate(name, 50.0, "", 50.0, loads.get(n, fine)) for n, name in enumerate(RANKS)]
    promise = CopyPromise.model_validate({"at_least_fraction": 0.5})
    return judge_rates(Comparison("host to device", "GB/s", promise, None, tuple(rows), "how"))


def _in_place() -> list[Measurement]:
    check = RanksSendOverTheNearestNic("nearest", promising("{rdma: {}}"))
    rows: list[PlacementRow] = []
    ranks = [RankRows(n, name, ()) for n, name in enumerate(n for n in NAMES for _ in "01")]
    answers = [check.answer(one, FEW.get(one.rank, 0), "") for one in ranks]
    check._answered = rows, ranks, answers
    return check.rule(rows)


def _copies() -> list[Measurement]:
    rows = [
        PlacementRow(
            metric=metric, value=None if value is None else rate, rank=n, node=NAMES[n // 2]
        )
        for n in range(2 * COUNT)
        for value in [FEW.get(n, 0)]
        for metric, rate in zip(COPIES[:2], (10.0, 20.0 if value else 5.0), strict=True)
    ]
    return NearMemoryIsFasterThanFar(1.5, promising("{rdma: {}}")).rule(rows)


def _sent(first: dict[str, int], usual: dict[str, int]) -> list[SentByNode]:
    each = [first, *[usual] * (COUNT - 2), {"fab0": 1}]
    return [SentByNode(name, of, 90) for name, of in zip(NAMES, each, strict=True)]


def _links() -> list[Measurement]:
    rates = Rates(COUNT, 1, 170.0)
    for a, b in itertools.permutations(range(COUNT), 2):
        rate = 0.0 if COUNT - 1 in (a, b) else 48.0 if 0 in (a, b) else 190.0
        rates.add([Reading(a, b, 0, rate, True)] * CONFIRMED_BY * REPEATS)
    names = Names.of(NAMES, promising("{rdma: {}}"), 1, nvlink=False)
    return judge_slow_links(conclude(rates, names, None, Effort(), None, every_path=False))


def _remarks() -> list[Measurement]:
    about = [About(ProofFact.LOGGED, name) for name in (NAMES[0], NAMES[-1])]
    found = about[0].fail(Case.SOCKETS, "sockets"), about[1].inconclusive(Case.NO_LOG, "no log")
    return [measured(ProofFact.LOGGED, found, NAMES)]


UNREAD: dict[str, Callable[[], list[Measurement]]] = {
    "products": lambda: judge_products("t", 8, {r: FEW.get(n, 0) for n, r in enumerate(RANKS)}),
    "repeated": lambda: judge_repeated(
        RepeatedProducts("t", 8, 9, 1.0, {RANKS[0]: 1}, failed=(RANKS[-1],))
    ),
    "steps": lambda: judge_steps(
        SameSteps(
            tuple(
                RankSteps(r, "", (n, n), ("a", "b" if n == 0 else "a"), "")
                if n < len(RANKS) - 1
                else RankSteps(r, "", (), (), "out of memory")
                for n, r in enumerate(RANKS)
            ),
            5,
        )
    ),
    "memory": lambda: judge_memory(
        [
            RankMemory(
                r, "", 1, 1.0, FEW.get(n, 0) or 0, (), "lost" if n in FEW and not FEW[n] else ""
            )
            for n, r in enumerate(RANKS)
        ],
        MemoryTestPromise.model_validate({}),
    ),
    "worst": lambda: [
        worst_of("w", "", {r: FEW.get(n, 0) for n, r in enumerate(RANKS)}, equals(0), "", str)
    ],
    "PCIe": _loads,
    "placement": _in_place,
    "copies": _copies,
    "NICs": lambda: judge_nics(
        _sent({"fab0": 100, "fab1": 0}, {"fab0": 50, "fab1": 50}),
        promising("{rdma: {}}", "roce", "fab0, fab1"),
        2,
    ),
    "off fabric": lambda: judge_busbw(
        judged([row(MIB, 0.9)], traffic=_sent({"fab0": 100, OTHERS[0]: 60}, {"fab0": 100}))
    ),
    "links": _links,
    "transport": _remarks,
    "any count": lambda: [
        Measurement.none_allowed("n", [Culprit("", NAMES[0])], "", unsure="not all were read")
    ],
}


@pytest.mark.parametrize("what", UNREAD)
def test_what_is_not_known_beside_a_bad_one_has_not_passed(what: str) -> None:
    failed = [one.culprit for one in UNREAD[what]() if one.verdict is FAIL]
    assert failed, what
    for culprit in failed:
        assert culprit is not None
        assert culprit.nodes == {NAMES[0]}
        suspects = culprit.either
        assert frozenset() in suspects or NAMES[-1] in frozenset().union(*suspects)
