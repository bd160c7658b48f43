"""Does a rank send over the NIC that is nearest to its accelerator?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.placement.facts import Finding, Machine, Question, RankFacts
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.pci import Distance
from pytest_mnode.measurement import Verdict

_Key = tuple[int, float]
_NEAREST: _Key = (0, 0.0)
_ACROSS: _Key = (Distance.NODE.rank, 0.0)
_FARTHEST: _Key = (Distance.SYS.rank, math.inf)
_SAME_NODE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Far:
    """How far a NIC is: between two bounds where it is not known. words: such as "PIX"."""

    name: str
    least: _Key
    most: _Key
    words: str


def judge_nics(
    machine: Machine, rank: RankFacts, candidates: tuple[str, ...] | None = None
) -> Finding:
    """Every NIC that it uses against those it could use: by PCI path first, then NUMA distance.

    Several that are equally near are as good as each other. candidates: names among which to look;
    None for all of the sort that the rank uses that are up; with no name it is not known which is
    nearest. A bond or VLAN is what is below it.
    A NIC whose NUMA node is not known can be no nearer than another host bridge of the same node:
    where that decides it is decided, else inconclusive.
    """
    reason = _why_unknown(machine, rank, candidates)
    if reason is not None or not rank.nics:
        return _finding(rank, Verdict.INCONCLUSIVE, reason=reason or "it used no NIC")
    names = candidates if candidates is not None else _of_the_sort(machine, rank.nics)
    could = [_far(machine, rank, name) for name in dict.fromkeys((*names, *rank.nics))]
    used = [far for far in could if far.name in rank.nics]
    farther = [u for u in used if any(c.most < u.least for c in could)]
    if farther:
        return _finding(rank, Verdict.FAIL, used=used, could=could, farther=farther)
    unknown = [far for far in could if far.least != far.most]
    if any(u in unknown or c.least < u.most for u in used for c in unknown):
        told = ", ".join(f"{far.name} ({far.words})" for far in unknown)
        reason = f"how far from it is not known of {told}"
        return _finding(rank, Verdict.INCONCLUSIVE, used=used, could=could, reason=reason)
    return _finding(rank, Verdict.PASS, used=used, could=could)


def _why_unknown(
    machine: Machine, rank: RankFacts, candidates: tuple[str, ...] | None
) -> str | None:
    if rank.nics is None:
        return rank.unknown.get("nics") or "it is not known which NIC it uses"
    if rank.accelerator is None and rank.numa_node is None:
        return rank.unknown.get("accelerator") or "it is not known which accelerator it has"
    if candidates is not None and not candidates:
        return f"{rank.node} shows none of the NICs among which to look"
    if candidates is None and machine.interfaces is None and machine.rdma is None:
        return f"the NICs of {rank.node} could not be listed"
    return None


def _of_the_sort(machine: Machine, used: Sequence[str]) -> list[str]:
    devices = {device.name: device for device in machine.rdma or ()}
    if any(_device(name) in devices for name in used):
        ports = [port for device in devices.values() for port in device.ports]
        by_port = any(":" in name for name in used)
        up = [port for port in ports if port.active is not False]
        return [port.name if by_port else port.device for port in up]
    return [
        interface.name
        for interface in machine.interfaces or ()
        if interface.kind in (Kind.PHYSICAL, Kind.IPOIB) and interface.up is not False
    ]


def _device(name: str) -> str:
    return name.partition(":")[0]


def _far(machine: Machine, rank: RankFacts, name: str) -> _Far:
    places = _places(machine, name)
    bounds = [_bounds(machine, rank, address, node) for address, node in places]
    if not bounds:
        words = "no such device, or none below it"
        return _Far(name=name, least=_NEAREST, most=_FARTHEST, words=words)
    # Of a bond, the farthest link counts: traffic takes any.
    return max(
        (_Far(name=name, least=least, most=most, words=words) for least, most, words in bounds),
        key=lambda far: (far.most, far.least),
    )


def _places(machine: Machine, name: str) -> list[tuple[str | None, int | None]]:
    """PCI address and NUMA node of each device below a NIC's name."""
    for device in machine.rdma or ():
        if device.name == _device(name):
            return [(device.pci_address, device.numa_node)]
    known = {interface.name: interface for interface in machine.interfaces or ()}
    found: list[Interface] = []
    waiting, seen = [name], set[str]()
    while waiting:
        interface = known.get(waiting.pop())
        if interface is None or interface.name in seen:
            continue
        seen.add(interface.name)
        if interface.pci_address or interface.numa_node is not None:
            found.append(interface)
        else:
            waiting += [*interface.slaves, *([interface.parent] if interface.parent else [])]
    return [(interface.pci_address, interface.numa_node) for interface in found]


def _bounds(
    machine: Machine, rank: RankFacts, address: str | None, node: int | None
) -> tuple[_Key, _Key, str]:
    function = machine.pci.function(rank.accelerator)
    distance = machine.pci.distance(rank.accelerator, address)
    own = function.numa_node if function and function.numa_node is not None else rank.numa_node
    if distance is None:
        if own is None or node is None:
            hosts = machine.pci.function(address) and function
            return (_ACROSS if hosts else _NEAREST), _FARTHEST, "NUMA node unknown"
        distance = Distance.NODE if own == node else Distance.SYS
    if distance is not Distance.SYS:
        return (key := (distance.rank, 0.0)), key, distance.value
    numa = machine.numa.distance(own, node)
    if numa is None:
        return (distance.rank, _SAME_NODE), _FARTHEST, distance.value
    return (key := (distance.rank, float(numa))), key, f"{distance.value}, NUMA distance {numa}"


def _finding(
    rank: RankFacts,
    verdict: Verdict,
    *,
    used: Sequence[_Far] = (),
    could: Sequence[_Far] = (),
    reason: str = "",
    farther: Sequence[_Far] = (),
) -> Finding:
    what = rank.accelerator or "its accelerator"
    found = _words(used) or ", ".join(rank.nics or ()) or "not known"
    best = min((far.most for far in could), default=_FARTHEST)
    nearest = [far for far in could if far.most == best]
    expected = f"{_words(nearest, ' or ')}, nearest to {what}" if nearest else f"nearest to {what}"
    if verdict is Verdict.INCONCLUSIVE:
        expected = f"the NIC nearest to {what}"
        why = f"{rank.name}: uses {found}; {reason}"
    else:
        why = f"{rank.name}: uses {found}; expected {expected}"
    if verdict is Verdict.FAIL:
        why += (
            "; name the NICs of each rank (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), or let NCCL see the"
            " real topology (NCCL_TOPO_FILE in a guest)"
        )
    named = ", ".join(far.name for far in farther or used)
    return Finding(
        question=Question.NIC,
        rank=rank.rank,
        node=rank.node,
        verdict=verdict,
        value=None if verdict is Verdict.INCONCLUSIVE else float(len(farther)),
        limit=0.0,
        unit="NICs farther than the nearest",
        found=found,
        expected=expected,
        why=why,
        culprit=f"{rank.name}: {named or 'NIC'}",
    )


def _words(those: Sequence[_Far], between: str = ", ") -> str:
    return between.join(f"{far.name} ({far.words})" for far in those)
