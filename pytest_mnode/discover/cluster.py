"""Values that most nodes of a cluster have, and the nodes that differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_mnode.discover.networks import networks_of, shared_addresses
from pytest_mnode.discover.nodes import FoundCluster, FoundNetwork, Networks, machine_of
from pytest_mnode.discover.page import Entry
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import listed

V = TypeVar("V", bound=Hashable)
CONFIRM = "Confirm against what was bought"
_MOST_NAMED = 8
_ALIKE = 1.1


@dataclass(frozen=True, slots=True)
class Agreed(Generic[V]):
    """A value and the nodes that have it.

    value: the most frequent one; None if no node shows one, or if two are equally frequent.
    having: nodes that have it. odd: every other node, with its own value as text.
    """

    value: V | None
    having: tuple[str, ...]
    odd: tuple[tuple[str, str], ...]

    @property
    def differences(self) -> str:
        """Values of the other nodes, as text; "" if all have the same or none shows any."""
        by_text: dict[str, list[str]] = {}
        for node, text in self.odd:
            by_text.setdefault(text, []).append(node)
        if not self.having and len(by_text) < 2:
            return ""
        return "; ".join(f"{named(nodes)}: {text}" for text, nodes in by_text.items())

    @property
    def seen(self) -> str:
        """Text that names the nodes with the value, and the values of the others."""
        if self.value is None:
            return f"Nodes differ: {self.differences}" if self.differences else "No node shows it"
        odd = f"; differing: {self.differences}" if self.odd else ""
        return f"Seen on {where(self.having, len(self.having) + len(self.odd))}{odd}"


def agreed(values: Mapping[str, V | None], text: Callable[[V], str] = str) -> Agreed[V]:
    """The value of most nodes. values: by node name, None if a node does not show it."""
    counted = Counter(value for value in values.values() if value is not None).most_common()
    tied = len(counted) > 1 and counted[1][1] == counted[0][1]
    usual = counted[0][0] if counted and not tied else None
    return Agreed(
        usual,
        tuple(n for n, value in values.items() if usual is not None and value == usual),
        tuple(
            (node, "unknown" if value is None else text(value))
            for node, value in values.items()
            if usual is None or value != usual
        ),
    )


def alike(sizes: Iterable[int | None]) -> dict[int, int]:
    """For each size the smallest size of its group, whose members exceed that by at most a tenth.

    Sizes derived from the memory that a kernel found differ slightly between all nodes.
    """
    found: dict[int, int] = {}
    least = 0
    for size in sorted({size for size in sizes if size is not None}):
        if size > least * _ALIKE:
            least = size
        found[size] = least
    return found


def named(nodes: Sequence[str], most: int = _MOST_NAMED) -> str:
    """At most `most` names joined by commas, and the number of the rest."""
    return listed(nodes, most, ", ")


def where(having: Sequence[str], count: int) -> str:
    """Text that names the nodes `having` out of `count` nodes."""
    if len(having) == count and count > 1:
        return f"all {count} nodes"
    if len(having) == 1 and count == 1:
        return having[0]
    return f"{len(having)} of {count} nodes ({named(having)})"


class Cluster:
    """Nodes that could be read. Collects the facts that differ, and those that were not seen.

    differences: one line each. missing: dotted keys that a page needs, without a value seen.
    """

    def __init__(self, found: FoundCluster) -> None:
        self.found = found
        self.nodes = found.shown
        self.differences: list[str] = []
        self.missing: list[str] = []
        shared = shared_addresses(self.nodes) if len(self.nodes) > 1 else frozenset[str]()
        self.networks = {node.name: networks_of(node, shared) for node in self.nodes}

    def fact(
        self, what: str, read: Callable[[Machine], V | None], text: Callable[[V], str] = str
    ) -> Agreed[V]:
        """A fact of each node's machine."""
        return self._agreed(what, {n.name: read(machine_of(n)) for n in self.nodes}, text)

    def of_network(
        self,
        network: str,
        what: str,
        read: Callable[[FoundNetwork], V | None],
        text: Callable[[V], str] = str,
    ) -> Agreed[V]:
        """A fact of each node's "fabric" or "management" network."""
        values = {}
        for name, networks in self.networks.items():
            found = network_of(networks, network)
            values[name] = None if found is None else read(found)
        return self._agreed(f"{network} {what}", values, text)

    def _agreed(
        self, what: str, values: dict[str, V | None], text: Callable[[V], str]
    ) -> Agreed[V]:
        found = agreed(values, text)
        if found.differences:
            usual = "" if found.value is None else f" (most: {text(found.value)})"
            line = f"{what}{usual}: {found.differences}"
            if line not in self.differences:  # a fact may be read twice
                self.differences.append(line)
        return found

    def usual(self, network: str) -> FoundNetwork | None:
        """A network as shown by the first node that has the interfaces of most nodes."""
        shown = {name: network_of(found, network) for name, found in self.networks.items()}
        found = agreed({name: one.interfaces if one else None for name, one in shown.items()})
        return shown[found.having[0]] if found.having else None

    def entry(
        self,
        key: str,
        fact: Agreed[V],
        text: Callable[[V], str],
        *,
        by: str,
        example: str,
        why_not: str,
    ) -> Entry:
        """The entry of a fact under a dotted key; without a value, a comment to fill in.

        by: source of the value. example: form of a value, for the comment. why_not: reason why no
        node shows one.
        """
        last = key.rpartition(".")[2]
        if fact.value is None:
            self.missing.append(key)
            why = fact.seen if fact.differences else why_not or fact.seen
            return Entry(last, example, f"FILL IN, and uncomment: {why}.", left_out=True)
        return Entry(last, text(fact.value), f"{by}. {fact.seen}. {CONFIRM}.")


def network_of(networks: Networks, network: str) -> FoundNetwork | None:
    """A node's network by its key in a spec, "fabric" or "management"."""
    return networks.fabric if network == "fabric" else networks.management
