"""Facts of all nodes side by side, and the entries that they make. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_mnode.discover.agreeing import Agreed, agreed, where
from pytest_mnode.discover.facts import Networks, NetworkSeen, NodeLook, Seen, Sight
from pytest_mnode.discover.networks import networks_of
from pytest_mnode.discover.page import Entry
from pytest_mnode.discover.sharing import shared_addresses

V = TypeVar("V", bound=Hashable)
CONFIRM = "Confirm against what was bought"


def look_of(node: Seen) -> NodeLook:
    """What a node showed, of one that did."""
    assert node.look is not None
    return node.look


@dataclass(frozen=True, slots=True)
class Fact(Generic[V]):
    """One fact of every node that showed something."""

    found: Agreed[V]
    count: int

    @property
    def value(self) -> V | None:
        """What most nodes have; None where none tells, or none has the majority."""
        return self.found.value

    @property
    def seen(self) -> str:
        """On which nodes it was seen, and what the others have."""
        if self.found.value is None:
            differing = self.found.differences
            return f"Nodes differ: {differing}" if differing else "No node tells it"
        odd = f"; differing: {self.found.differences}" if self.found.odd else ""
        return f"Seen on {where(self.found.having, self.count)}{odd}"


class Cluster:
    """Nodes that showed something. Remembers which facts differ, and what was not seen.

    differences: a line each. missing: dotted keys that a page needs and nothing was seen for.
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.nodes = sight.shown
        self.differences: list[str] = []
        self.missing: list[str] = []
        shared = shared_addresses(self.nodes) if len(self.nodes) > 1 else frozenset[str]()
        self.networks = {node.name: networks_of(node, shared) for node in self.nodes}

    def of(
        self, what: str, read: Callable[[NodeLook], V | None], text: Callable[[V], str] = str
    ) -> Fact[V]:
        """A fact that each node's look tells."""
        return self._fact(what, {n.name: read(look_of(n)) for n in self.nodes}, text)

    def of_network(
        self,
        network: str,
        what: str,
        read: Callable[[NetworkSeen], V | None],
        text: Callable[[V], str] = str,
    ) -> Fact[V]:
        """A fact of each node's "fabric" or "management" network."""
        values = {}
        for name, networks in self.networks.items():
            found = network_of(networks, network)
            values[name] = None if found is None else read(found)
        return self._fact(f"{network} {what}", values, text)

    def _fact(self, what: str, values: dict[str, V | None], text: Callable[[V], str]) -> Fact[V]:
        found = agreed(values, text)
        if found.differences:
            usual = "" if found.value is None else f" (most: {text(found.value)})"
            line = f"{what}{usual}: {found.differences}"
            if line not in self.differences:  # a fact may be asked for twice
                self.differences.append(line)
        return Fact(found, len(self.nodes))

    def usual(self, network: str) -> NetworkSeen | None:
        """A network as the first node shows it that has the interfaces of most nodes."""
        shown = {name: network_of(found, network) for name, found in self.networks.items()}
        found = agreed({name: one.interfaces if one else None for name, one in shown.items()})
        return shown[found.having[0]] if found.having else None

    def entry(
        self,
        key: str,
        fact: Fact[V],
        text: Callable[[V], str],
        *,
        by: str,
        example: str,
        why_not: str,
    ) -> Entry:
        """The entry of a fact under a dotted key, or of its absence, as a comment to fill in.

        by: what told it. example: the form of a value, for the comment. why_not: why no node tells
        one.
        """
        last = key.rpartition(".")[2]
        if fact.value is None:
            self.missing.append(key)
            why = fact.seen if fact.found.differences else why_not or fact.seen
            return Entry(last, example, f"FILL IN, and uncomment: {why}.", left_out=True)
        return Entry(last, text(fact.value), f"{by}. {fact.seen}. {CONFIRM}.")


def network_of(networks: Networks, network: str) -> NetworkSeen | None:
    """One of a node's networks by its key in a spec."""
    return networks.fabric if network == "fabric" else networks.management
