"""Which NICs of a node a rank could send over, and whether one is near to anybody. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode.criteria.placement.facts import Finding, Machine
from pytest_mnode.machine.pci import Distance
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Spec


def fabric_nics(machine: Machine, used: Sequence[str], spec: Spec) -> tuple[str, ...]:
    """NICs of the fabric that are not known to be down: RDMA ports where those are used."""
    fabric = spec.fabric
    if any(":" in name for name in used):
        devices = machine.rdma or ()
        wanted = [d for d in devices if any(map(fabric.has_interface, (d.name, *d.netdevs)))]
        return tuple(p.name for d in wanted for p in d.ports if p.active is not False)
    interfaces = machine.interfaces or ()
    return tuple(i.name for i in interfaces if fabric.has_interface(i.name) and i.up is not False)


def sending(machine: Machine, used: Sequence[str], spec: Spec) -> tuple[str, ...]:
    """Of interfaces that count the same bytes, those that stand for them: a bond, not its links.

    Where the spec names one of them and not the other, the one that it names.
    """
    known = {i.name: i for i in machine.interfaces or ()}
    named = {name for name in used if spec.fabric.has_interface(name)}

    def below(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            one = known.get(waiting.pop())
            for lower in (*one.slaves, one.parent) if one else ():
                if lower in known and lower not in found:
                    found.add(lower)
                    waiting.append(lower)
        return found

    beneath = {name: below(name) for name in used}

    def stands(name: str) -> bool:
        above = {other for other in used if name in beneath[other]}
        if name in named:
            return not above & named
        return not above and not beneath[name] & named

    return tuple(name for name in used if stands(name))


def near_somebody(
    machine: Machine, found: Finding, used: Sequence[str], beside: Sequence[str | None]
) -> Finding:
    """A finding that passed, unless a NIC is across sockets from every accelerator in `beside`.

    A socket may have several NUMA nodes: another node of the same socket is near enough.

    One NIC a node serves ranks on all sockets, and is as near as can be to those on its own. On a
    socket of its own, it is near to nobody.
    """
    places = {i.name: i.pci_address for i in machine.interfaces or ()}
    places |= {p.name: d.pci_address for d in machine.rdma or () for p in d.ports}
    for name in used if found.verdict is Verdict.PASS else ():
        place = places.get(name)
        if beside and all(_across_sockets(machine, place, address) for address in beside):
            expected = f"{name} on the socket of an accelerator"
            return replace(
                found,
                verdict=Verdict.FAIL,
                value=1.0,
                expected=expected,
                why=f"rank {found.rank} on {found.node}: uses {found.found}; expected {expected}",
            )
    return found


def _across_sockets(machine: Machine, one: str | None, other: str | None) -> bool:
    """Whether two functions are known to be on different sockets."""
    if machine.pci.distance(one, other) is not Distance.SYS:
        return False
    a, b = _sockets(machine, one), _sockets(machine, other)
    return not (a and b) or a.isdisjoint(b)


def _sockets(machine: Machine, address: str | None) -> frozenset[int]:
    """Sockets of the CPUs on a function's NUMA node; empty where not known."""
    function = machine.pci.function(address)
    node = machine.numa.node(function.numa_node if function else None)
    cpus = node.cpus or frozenset() if node else frozenset()
    return frozenset(n for n, those in machine.cpus.packages.items() if not cpus.isdisjoint(those))
