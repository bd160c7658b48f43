"""Which interfaces the nodes sent over while something was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.probes.nic import sent_bytes
from pytest_mnode.spec.models import Network
from pytest_mnode.world.contract import World

_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """Bytes that each interface of a node sent, headers included, by the kernel's counters.

    least_bytes: what the node must have sent to the others; less than half of it on all interfaces
    of a network together, and on all others, means that the kernel did not see the traffic, as with
    RDMA. 0 where it need not send anything.
    """

    node: str
    sent_bytes: Mapping[str, int]
    least_bytes: int

    @property
    def carrier(self) -> str | None:
        """The interface that sent most; None where all together sent too little to have done so."""
        if not self._enough(sum(self.sent_bytes.values())):
            return None
        return max(self.sent_bytes, key=lambda name: self.sent_bytes[name])

    def share(self, network: Network) -> float | None:
        """Part of the bytes that went over `network`, 0 to 1; None where none are known."""
        on_it, past_it = self._sums(network)
        return on_it / (on_it + past_it) if self._enough(max(on_it, past_it)) else None

    def astray(self, network: Network) -> str | None:
        """The interface that carried the traffic instead of `network`; None where none did."""
        on_it, past_it = self._sums(network)
        if past_it <= on_it or not self._enough(past_it):
            return None
        past = {name: n for name, n in self.sent_bytes.items() if not network.has_interface(name)}
        return max(past, key=lambda name: past[name])

    def _sums(self, network: Network) -> tuple[int, int]:
        """Bytes over the interfaces of `network`, and over all others: a node may have many NICs,
        of which each carries its part."""
        on_it = sum(n for name, n in self.sent_bytes.items() if network.has_interface(name))
        return on_it, sum(self.sent_bytes.values()) - on_it

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


class Counted:
    """Context manager that reads the counters around what it encloses; all ranks enter it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Counted:
        self._before = sent_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self._after = sent_bytes()

    def by_node(self, least_bytes: Sequence[int]) -> tuple[NodeTraffic, ...]:
        """What each node sent, in the world's order, as `least_bytes` is. All ranks call this."""
        import torch.distributed as dist

        sent = {
            name: count - self._before[name]
            for name, count in self._after.items()
            if name in self._before and (name != _LOOPBACK or self._world.local_size == 1)
        }
        every: list[dict[str, int]] = [{} for _ in range(self._world.size)]
        dist.all_gather_object(every, sent)
        first_ranks = every[:: self._world.local_size]
        return tuple(
            NodeTraffic(node, counts, least)
            for node, counts, least in zip(self._world.nodes, first_ranks, least_bytes, strict=True)
        )
