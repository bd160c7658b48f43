"""Which NICs of a node make up the fabric, and how many of them must carry traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_mnode.criteria.transport.facts import Facts, NodeFacts
from pytest_mnode.spec.models import Spec


@dataclass(frozen=True, slots=True)
class Carrier:
    """A NIC by what is counted on it: an RDMA port, or an interface for sockets.

    state: what its system says of it where that is not well; empty where it is, or is not known.
    """

    name: str
    sent_bytes: int | None
    received_bytes: int | None
    state: str = ""

    @property
    def shown(self) -> str:
        """Name, with its state where that is not well."""
        return f"{self.name} ({self.state})" if self.state else self.name


def is_rdma(spec: Spec) -> bool:
    """Whether the spec promises RDMA."""
    return spec.fabric.kind != "ethernet"


def carriers(node: NodeFacts, spec: Spec, *, rdma: bool, of_fabric: bool) -> list[Carrier] | None:
    """RDMA ports, or interfaces, that belong to the fabric, or those that do not; None: unknown."""
    if rdma:
        if node.ports is None:
            return None
        several = {p.device for p in node.ports if p.port > 1}
        return [
            Carrier(
                f"{p.device}:{p.port}" if p.device in several else p.device,
                p.sent_bytes,
                p.received_bytes,
                "" if p.active in (True, None) else str(p.state),
            )
            for p in node.ports
            if spec.fabric.has_interface(p.device) is of_fabric
        ]
    if node.nics is None:
        return None
    return [
        Carrier(n.name, n.sent_bytes, n.received_bytes, "down" if n.up is False else "")
        for n in node.nics
        if spec.fabric.has_interface(n.name) is of_fabric
    ]


def of_fabric(node: NodeFacts, spec: Spec) -> list[Carrier] | None:
    """The fabric's NICs of a node; None where they could not be listed."""
    return carriers(node, spec, rdma=is_rdma(spec), of_fabric=True)


def rails_expected(facts: Facts, spec: Spec) -> int:
    """How many NICs of a node must carry traffic: all, if as many ranks run as there are devices.

    With fewer ranks than accelerators as many NICs as their share, one at least.
    """
    nics, accelerators = spec.fabric.nics_per_node, spec.accelerators.per_node
    if not accelerators or facts.ranks_per_node >= accelerators:
        return nics
    return max(1, nics * facts.ranks_per_node // accelerators)


def same_wire(node: NodeFacts, names: Iterable[str]) -> set[str]:
    """`names` and all interfaces that carry the same bytes: bonds, slaves, VLANs."""
    pairs = {(nic.name, other) for nic in node.nics or () for other in nic.rides_on}
    found, grown = set(names), True
    while grown:
        linked = {b for a, b in pairs if a in found} | {a for a, b in pairs if b in found}
        grown = not linked <= found
        found |= linked
    return found


def megabytes(count: float) -> str:
    """A number of bytes for a reader."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.4g} GB"
