"""Judges of perftest: bandwidth, latency, and where its programs ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.criteria.preflight.survey import search_path
from pytest_mnode.criteria.transport.counted import header_share
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.machine.encoding import decode
from pytest_mnode.machine.fabric_nics import fabric_ports
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Bound, Measurement, all_of, at_least, at_most, equals, listed
from pytest_mnode.measuring.tools.beside_nic import ToolPlacement
from pytest_mnode.measuring.tools.perftest_pairs import PairResult, Promise
from pytest_mnode.spec.fabric import WriteBandwidthPromise, WriteLatencyPromise
from pytest_mnode.spec.quantity import RATE

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.machine.rdma import RdmaDevice
    from pytest_mnode.spec.inventory import Fabric

DEFAULT = WriteBandwidthPromise.model_validate({})
"""Settings if the spec has none: the program is on every node's PATH."""
_FEW = 0.05
"""Share of a program's memory that may be elsewhere: library pages that others wrote to."""


def judge_devices(devices: Mapping[str, Sequence[RdmaDevice]], fabric: Fabric) -> list[Measurement]:
    """One measurement per node: its number of fabric devices, without which no pair is measured."""
    found = []
    for node, names in of_fabric(devices, fabric).items():
        others = [one.name for one in devices[node] if one.name not in names]
        there = ", ".join(names) or f"no RDMA device of the fabric ({', '.join(fabric.interfaces)})"
        also = f"; outside of the fabric it has {', '.join(others)}" if others else ""
        found.append(
            Measurement(
                f"RDMA devices of {node}",
                len(names),
                "",
                at_least(fabric.nics_per_node).of("fabric.nics_per_node", fabric.nics_per_node),
                "fabric.nics_per_node",
                Culprit(f"{node} has {there}{also}", node),
            )
        )
    return found


def bound_of(fabric: Fabric, promise: Promise) -> Bound:
    """The bound of each pair, in Gbit/s or µs."""
    if isinstance(promise, WriteLatencyPromise):
        return at_most(1e6 * promise.at_most_s).of("at_most", promise.at_most_s)
    left = _left_by_headers(fabric)
    bound = at_least(promise.at_least_fraction * left * fabric.line_rate_gbits_s)
    bound = bound.of("fabric.line_rate", fabric.line_rate_bits_s)
    return bound.of("fabric.mtu", fabric.mtu_bytes).of(
        "at_least_fraction", promise.at_least_fraction
    )


def _left_by_headers(fabric: Fabric) -> float:
    """The part that headers leave at the spec's MTU of what they leave at RDMA's largest."""
    if fabric.kind == "ethernet":
        return 1.0
    largest = fabric.model_copy(update={"mtu_bytes": 4096})
    return min(1.0, (1 + header_share(largest)) / (1 + header_share(fabric)))


def missing(nodes: Sequence[str], fabric: Fabric, promise: Promise) -> Measurement:
    """The bandwidth that could not be measured, because these nodes lack the program."""
    return Measurement(
        promise.program,
        None,
        "µs" if isinstance(promise, WriteLatencyPromise) else "Gbit/s",
        bound_of(fabric, promise),
        note=f"{promise.program} is not on the PATH of {listed(nodes, separator=', ')}: install "
        "perftest there, or list fabric.write_bandwidth under not_promised, with a reason",
    )


def judge(pairs: Sequence[PairResult], fabric: Fabric, promise: Promise) -> list[Measurement]:
    """One measurement per pair and rail, and one of the places where the programs ran."""
    bound = bound_of(fabric, promise)
    if isinstance(promise, WriteLatencyPromise):
        unit = "µs"
        source = f"fabric.write_latency.at_most {1e6 * promise.at_most_s:g} µs"
    else:
        unit = "Gbit/s"
        source = (
            f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}"
            f" × at_least_fraction {promise.at_least_fraction:g}"
        )
        if (left := _left_by_headers(fabric)) < 1:
            source += f" × {left:.3g} that headers leave of it at MTU {fabric.mtu_bytes}"
    slow = [pair for pair in pairs if pair.value is not None and not bound.holds(pair.value)]
    found = [
        Measurement(
            f"{promise.program} {pair.path}",
            pair.value,
            unit,
            bound,
            source,
            _culprit(pair, slow),
            pair.why or (f"mean of {len(pair.repeats)} runs" if len(pair.repeats) > 1 else ""),
            detection=pair.estimate.detection(bound.accepted) if pair.estimate else None,
            interval=pair.estimate.interval if pair.estimate else None,
        )
        for pair in pairs
    ]
    return found if promise.binding == "none" else [*found, _judge_binding(pairs, promise)]


def _culprit(pair: PairResult, slow: Sequence[PairResult]) -> Culprit:
    """The end of a pair that is slow as sender and as receiver, if the other end is not; else both.

    slow: all pairs that miss their bound.
    """
    of_rail = [other for other in slow if other.device == pair.device]
    both_ways = {other.sender for other in of_rail} & {other.receiver for other in of_rail}
    ends = both_ways & {pair.sender, pair.receiver}
    if len(ends) == 1:
        [node] = ends
        return Culprit.device(f"{node} {pair.device} (sends and receives)", node, pair.device)
    return Culprit.path(pair.path, (pair.sender, pair.receiver))


def _judge_binding(pairs: Sequence[PairResult], promise: Promise) -> Measurement:
    """Number of programs not near their NIC. Programs that measured nothing do not count."""
    far, unknown = list[Culprit](), list[str]()
    ran = [pair for pair in pairs if pair.value is not None]
    for pair in ran:
        for node, side, placed in (
            (pair.sender, "client", pair.client),
            (pair.receiver, "server", pair.server),
        ):
            who = f"{promise.program} {side} on {node}"
            if placed is None or placed.near_cpus is None:
                why = placed.unknown if placed else "the program sent no report"
                unknown.append(f"{who}: {why}")
            elif words := list(_off(placed)):
                text = f"{who}: {', '.join(words)}; expected beside {placed.place}"
                far.append(Culprit(text, node))
            elif placed.cpus is None or not placed.memory_bytes:
                unknown.append(f"{who}: its CPUs and memory were not observed")
    return Measurement(
        f"{promise.program} processes off their NIC's NUMA node",
        len(far) if far or (ran and not unknown) else None,
        "",
        equals(0),
        "fabric: binding nic",
        all_of(far),
        listed(far or unknown) or ("" if ran else "no program measured a value"),
    )


def _off(placed: ToolPlacement) -> Iterator[str]:
    """CPUs and memory of a program that were not near its device, in words."""
    if (stray := (placed.cpus or frozenset()) - (placed.near_cpus or frozenset())) and placed.cpus:
        all_of_them = stray == placed.cpus
        yield f"CPUs {format_cpulist(placed.cpus)}" + ("" if all_of_them else " are not all near")
    memory = placed.memory_bytes or {}
    there = {n: size for n, size in memory.items() if n not in (placed.near_memory or ())}
    if sum(there.values()) > _FEW * sum(memory.values()):
        yield f"memory on NUMA node {format_cpulist(there)}"
    if placed.problem:
        yield placed.problem


def devices_of(cluster: Nodes) -> dict[str, tuple[RdmaDevice, ...]]:
    """RDMA devices by node; () if a node has none."""
    argv = [cluster.python, "-P", "-m", "pytest_mnode.machine", "rdma"]
    answers = cluster.run(argv, env=search_path(cluster.python))
    return {answer.node: _devices_in(answer.stdout) for answer in answers}


def _devices_in(answer: str) -> tuple[RdmaDevice, ...]:
    """The devices in a node's answer; other output of its shell is ignored."""
    line = next((one for one in answer.splitlines() if one.startswith("{")), "")
    try:
        return decode(Machine, line).rdma or ()
    except ValueError:
        return ()


def of_fabric(
    devices: Mapping[str, Sequence[RdmaDevice]], fabric: Fabric
) -> dict[str, tuple[str, ...]]:
    """Names of the RDMA devices of the fabric, by node."""
    found = {
        node: fabric_ports(fabric.interfaces, fabric.nics_per_node, fabric.protocol, there)
        for node, there in devices.items()
    }
    return {node: tuple(dict.fromkeys(p.device for p in ports)) for node, ports in found.items()}
