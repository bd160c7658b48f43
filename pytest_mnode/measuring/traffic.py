"""Which interfaces and RDMA devices the nodes sent over while something was measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.machine.counters import grown_by, sent_so_far
from pytest_mnode.machine.netdev import read_interfaces
from pytest_mnode.machine.rdma import read_rdma
from pytest_mnode.measuring.wires import Beneath, all_beneath, beneath_of, own_bytes
from pytest_mnode.rank.world import World
from pytest_mnode.spec.inventory import Network

_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """Bytes that each interface and RDMA device of a node sent, headers included, as both count.

    least_bytes: what the node must have sent to the others; less than half of it on all interfaces
    of a network together, and on all others, means that no counter saw the traffic, as with
    soft-RoCE. 0 where it need not send anything. beneath: which of them count the same bytes.
    """

    node: str
    sent_bytes: Mapping[str, int]
    least_bytes: int
    beneath: Beneath = field(default_factory=dict)

    def own_bytes(self, network: Network | None = None) -> dict[str, int]:
        """What each interface sent, with bytes that several count at one of them: the uppermost,
        or below that those of `network`."""
        known = {*self.sent_bytes, *itertools.chain.from_iterable(self.beneath.values())}
        named = [n for n in known if network is not None and network.has_interface(n)]
        return own_bytes(self.sent_bytes, self.beneath, named)

    @property
    def carrier(self) -> str | None:
        """The interface that sent most; None where all together sent too little to have done so."""
        own = self.own_bytes()
        if not self._enough(sum(own.values())):
            return None
        return max(own, key=lambda name: own[name])

    def share(self, network: Network) -> float | None:
        """Part of the bytes that went over `network`, 0 to 1; None where none are known."""
        on_it, past_it = self._sums(network)
        return on_it / (on_it + past_it) if self._enough(max(on_it, past_it)) else None

    def astray(self, network: Network) -> str | None:
        """The interface that carried the traffic instead of `network`; None where none did."""
        on_it, past_it = self._sums(network)
        if past_it <= on_it or not self._enough(past_it):
            return None
        past = {
            name: n for name, n in self.own_bytes(network).items() if not self._is_on(name, network)
        }
        return max(past, key=lambda name: past[name])

    def _sums(self, network: Network) -> tuple[int, int]:
        """Bytes over the interfaces of `network`, and over all others: a node may have many NICs,
        of which each carries its part."""
        own = self.own_bytes(network)
        on_it = sum(n for name, n in own.items() if self._is_on(name, network))
        return on_it, sum(own.values()) - on_it

    def _is_on(self, name: str, network: Network) -> bool:
        """Whether an interface is of `network`, or of those that are made of its interfaces."""
        return any(map(network.has_interface, (name, *all_beneath(name, self.beneath))))

    def _enough(self, sent: int) -> bool:
        return bool(self.least_bytes) and sent >= self.least_bytes / 2


def astray(traffic: Sequence[NodeTraffic], network: Network) -> str | None:
    """Who sent over what instead of `network`, in words; None where nobody did."""
    instead = {t.node: name for t in traffic if (name := t.astray(network))}
    if not instead:
        return None
    who = "all nodes" if len(instead) == len(traffic) else ", ".join(instead)
    over = ", ".join(dict.fromkeys(instead.values()))
    return f"{who} sent over {over} instead of {'+'.join(network.interfaces)}"


def same_bytes() -> Beneath:
    """Which interfaces and RDMA devices of this node count the same bytes."""
    return beneath_of(read_interfaces() or (), read_rdma() or ())


class Counted:
    """Context manager that reads the counters around what it encloses; all ranks enter it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Counted:
        self._before = sent_so_far()
        return self

    def __exit__(self, *_: object) -> None:
        self._after = sent_so_far()

    def by_node(self, least_bytes: Sequence[int]) -> tuple[NodeTraffic, ...]:
        """What each node sent, in the world's order, as `least_bytes` is. All ranks call this."""
        import torch.distributed as dist

        sent = Counter[str]()
        for name, count in grown_by(self._before, self._after).items():
            if name != _LOOPBACK or self._world.local_size == 1:
                sent[name.partition(":")[0]] += count  # ports of one device together
        mine: tuple[dict[str, int], Beneath] = dict(sent), same_bytes()
        every = [mine] * self._world.size
        dist.all_gather_object(every, mine)
        first_ranks = every[:: self._world.local_size]
        return tuple(
            NodeTraffic(node, counts, least, beneath)
            for node, (counts, beneath), least in zip(
                self._world.nodes, first_ranks, least_bytes, strict=True
            )
        )
