"""Traffic of many nodes at once: across two halves, into one node, and beside a collective.

Judges import this in the controller, so that torch is imported by what measures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.port_counters.reading import PortReading, read
from pytest_mnode.detection import estimate, wants_more
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.machine.counters import pause_frames
from pytest_mnode.measurement import at_least
from pytest_mnode.measuring.limits import REPEAT_S
from pytest_mnode.measuring.nvlink_domains import domains_of

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.traffic import BisectionPromise, CongestionPromise

Flow = tuple[int, int]
"""A rank that sends, and one that receives."""
COMMUNICATORS, REPEATS, ROUNDS = 3, 3, 6
MOST_TARGETS = 16
"""Of more nodes only so many, evenly spread, receive from all others in turns."""
_LEAD_S = 0.02
"""The aggressors' start before the victims'."""
_TIMES_AS_LONG = 3
"""The aggressors exchange as long as victims that keep a third of their rate."""
_MESSAGE_S = 0.05


@dataclass(frozen=True, slots=True)
class Bisection:
    """halves: nodes by half, those of one index exchange; without pairs that NVLink carries.
    gbits_s: what both halves receive, by communicator and repeat; line_gbits_s: what their NICs
    may. alone_gbits_s: of each pair alone, both ways, by its two nodes; measured only if the sum
    falls short."""

    halves: tuple[tuple[str, ...], tuple[str, ...]]
    gbits_s: tuple[tuple[float, ...], ...]
    line_gbits_s: float
    alone_gbits_s: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Incast:
    """senders: the most at once. gbits_s: what each node received from those outside its NVLink
    domain in its turn, median of repeats; empty if all nodes are in one. before, after: counters of
    ports, and pauses: pause frames, received and sent in between, or why they are not known; all by
    node."""

    senders: int
    line_gbits_s: float
    gbits_s: Mapping[str, float]
    before: Mapping[str, PortReading]
    after: Mapping[str, PortReading]
    pauses: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of each round's all-reduces of the slowest victim, alone and beside the aggressors;
    lasted_s: how long these exchanged, the first to end."""

    victims: tuple[str, ...]
    aggressors: tuple[str, ...]
    alone_s: tuple[float, ...]
    beside_s: tuple[float, ...]
    lasted_s: tuple[float, ...]


class Flows:
    """Flows between ranks, with buffers that are used again."""

    def __init__(self, flows: Iterable[Flow], size_bytes: int, device: torch.device) -> None:
        import torch
        import torch.distributed as dist

        flows, me = [*flows], dist.get_rank()
        self._from = [sender for sender, receiver in flows if receiver == me]
        self._to = [receiver for sender, receiver in flows if sender == me]
        self._device, self._size = device, max(1, size_bytes)
        new: Callable[[], torch.Tensor] = lambda: torch.zeros(  # noqa: E731
            self._size, dtype=torch.uint8, device=device
        )
        self._in, self._out = [new() for _ in self._from], new()

    def run(self, group: Any = None) -> None:
        """Send and receive everything once; the receives first, see `ranks.send_and_receive`."""
        import torch.distributed as dist

        operations = [
            dist.P2POp(dist.irecv, buffer, sender, group=group)
            for buffer, sender in zip(self._in, self._from, strict=True)
        ]
        operations += [dist.P2POp(dist.isend, self._out, rank, group=group) for rank in self._to]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def received_gbits_s(self, group: Any = None) -> list[float]:
        """What each rank received per second, by rank; the same on all, which all call this."""
        from pytest_mnode.measuring.ranks import barrier, by_rank, elapsed_s

        barrier(self._device)
        took_s = elapsed_s(lambda: self.run(group), 1, self._device)
        gbits = 8e-9 * self._size * len(self._from)
        return [rate for [rate] in by_rank([gbits / took_s], self._device)]


def node_gbits_s(spec: Spec, world: World) -> float:
    """What the NICs that a node's ranks use send, at their line rate."""
    return spec.nics_of_ranks(world.local_size) * spec.fabric.line_rate_gbits_s


def _ranks(world: World, node: str) -> range:
    first = world.nodes.index(node) * world.local_size
    return range(first, first + world.local_size)


def _both_ways(world: World, pairs: Iterable[tuple[str, str]]) -> list[Flow]:
    """Flows of each pair of nodes, between equal local ranks."""
    ends = [end for a, b in pairs for end in zip(_ranks(world, a), _ranks(world, b), strict=True)]
    return [*ends, *((b, a) for a, b in ends)]


def halves_of(nodes: Sequence[str], promise: BisectionPromise) -> tuple[tuple[str, ...], ...]:
    """The nodes of each half, as many of one as of the other; empty if a half has none."""
    if promise.halves is None:
        found = [tuple(nodes[: len(nodes) // 2]), tuple(nodes[len(nodes) // 2 :])]
    else:
        listed = [set(expand(text)) for text in promise.halves]
        found = [tuple(node for node in nodes if node in half) for half in listed]
    count = min(map(len, found))
    return tuple(half[:count] for half in found)


def bisection(
    world: World, spec: Spec, promise: BisectionPromise, device: torch.device
) -> Bisection:
    """Measure all pairs across the halves at once, and each pair alone if they do not clearly keep
    the promise.

    While the bound is undecided, more communicators are measured. All ranks call this together.
    """
    from pytest_mnode.measuring.algorithms import DEFAULT, Algorithm, fresh_group

    domain = dict(zip(world.nodes, domains_of(world, spec, device), strict=True))
    pairs = [
        (a, b)
        for a, b in zip(*halves_of(world.nodes, promise), strict=True)
        if domain[a] != domain[b]
    ]
    if not pairs:
        return Bisection(((), ()), (), 0.0, {})
    one, other = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    node = node_gbits_s(spec, world)
    size = int(node * 1e9 / 8 / world.local_size * REPEAT_S)
    flows = Flows(_both_ways(world, pairs), size, device)
    line = 2 * len(pairs) * node
    wanted = promise.at_least_fraction * line / promise.oversubscription
    found, decided = list[tuple[float, ...]](), False
    while wants_more(len(found), COMMUNICATORS, decided=decided):
        with fresh_group(Algorithm(DEFAULT, False, True, ""), device) as group:
            flows.received_gbits_s(group)  # connects
            found.append(tuple(sum(flows.received_gbits_s(group)) for _ in range(REPEATS)))
        value = estimate(found)
        decided = value is not None and at_least(wanted).decides(*value.interval) is not None
    alone = {}
    if not decided or median(map(median, found)) < wanted:
        for pair in pairs:
            by_itself = Flows(_both_ways(world, [pair]), size, device)
            alone[pair] = max(sum(by_itself.received_gbits_s()) for _ in range(2))
    return Bisection((one, other), tuple(found), line, alone)


def targets_of(nodes: Sequence[str]) -> list[str]:
    """The nodes that receive from all others: all, or some that are evenly spread."""
    return [*nodes[:: math.ceil(len(nodes) / MOST_TARGETS)]]


def incast(world: World, spec: Spec, device: torch.device) -> Incast:
    """Let all nodes send to one, in turns. All ranks call this together."""
    node, fabric = node_gbits_s(spec, world), spec.fabric
    domain = dict(zip(world.nodes, domains_of(world, spec, device), strict=True))
    turns, most = dict[str, Flows](), 0
    for target in targets_of(world.nodes):
        senders = [one for one in world.nodes if domain[one] != domain[target]]
        if senders:
            size = int(node * 1e9 / 8 / world.local_size * REPEAT_S / len(senders))
            ends = (zip(_ranks(world, one), _ranks(world, target), strict=True) for one in senders)
            turns[target] = Flows((end for some in ends for end in some), size, device)
            most = max(most, len(senders))
    for flows in turns.values():
        flows.received_gbits_s()  # connects

    def counters() -> dict[str, tuple[PortReading, int | str]]:
        from pytest_mnode.measuring.ranks import gathered

        mine = None
        if world.local_rank == 0:
            nics, protocol = fabric.nics_per_node, fabric.protocol
            read_now = read(fabric.interfaces, nics=nics, protocol=protocol)
            mine = world.node, read_now, pause_frames(fabric.interfaces)
        return {one[0]: (one[1], one[2]) for one in gathered(mine) if one is not None}

    before = counters()
    rates = {
        target: median(sum(flows.received_gbits_s()) for _ in range(REPEATS))
        for target, flows in turns.items()
    }
    after = counters()
    pauses = dict[str, int | str]()
    for name, (_, frames) in after.items():
        start = before[name][1]
        unknown = next((one for one in (start, frames) if isinstance(one, str)), None)
        pauses[name] = unknown if unknown is not None else int(frames) - int(start)
    first, last = ({name: one for name, (one, _) in side.items()} for side in (before, after))
    return Incast(most, node, rates, first, last, pauses)


def sides_of(
    nodes: Sequence[str], promise: CongestionPromise
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Victims and aggressors among these nodes; a node of both is a victim."""
    victims = set(expand(promise.victims)) if promise.victims else set(nodes[::2])
    others = set(expand(promise.aggressors)) if promise.aggressors else set(nodes)
    return (
        tuple(node for node in nodes if node in victims),
        tuple(node for node in nodes if node in others - victims),
    )


def beside(world: World, spec: Spec, promise: CongestionPromise, device: torch.device) -> Beside:
    """Time all-reduces of the victims alone and beside the aggressors, in turns.

    Each aggressor sends to the one half their number further, and receives from the one as far
    before. All ranks call this together.
    """
    import torch
    import torch.distributed as dist

    from pytest_mnode.measuring.ranks import barrier, by_rank, elapsed_s

    victims, aggressors = sides_of(world.nodes, promise)
    group = dist.new_group([rank for node in victims for rank in _ranks(world, node)])
    size = max(4, int(node_gbits_s(spec, world) * 1e9 / 8 / world.local_size * _MESSAGE_S))
    values = torch.zeros(size // 4, dtype=torch.float32, device=device)
    far = max(1, len(aggressors) // 2)
    pairs = [(node, aggressors[(i + far) % len(aggressors)]) for i, node in enumerate(aggressors)]
    ends = [end for a, b in pairs for end in zip(_ranks(world, a), _ranks(world, b), strict=True)]
    flows = Flows(ends, size, device)
    is_victim, is_aggressor = world.node in victims, world.node in aggressors

    def reduce() -> None:
        dist.all_reduce(values, group=group)

    def timed(calls: int, exchanges: int) -> tuple[float, float]:
        """Seconds of the slowest victim, and of the first aggressor that ended."""
        barrier(device)
        took_s = 0.0
        if is_victim and calls:
            time.sleep(_LEAD_S if exchanges else 0.0)
            took_s = elapsed_s(reduce, calls, device)
        elif is_aggressor and exchanges:
            took_s = elapsed_s(flows.run, exchanges, device)
        every = by_rank([took_s], device)
        times = [
            [every[rank][0] for node in side for rank in _ranks(world, node)]
            for side in (victims, aggressors)
        ]
        return max(times[0]), min(times[1])

    timed(1, 0), timed(0, 1)  # connects
    once_s, exchange_s = timed(2, 0)[0] / 2, timed(0, 2)[1] / 2
    calls = max(1, math.ceil(REPEAT_S / once_s))
    exchanges = max(1, math.ceil(_TIMES_AS_LONG * calls * once_s / exchange_s))
    rounds = [(timed(calls, 0)[0], *timed(calls, exchanges)) for _ in range(ROUNDS)]
    dist.destroy_process_group(group) if is_victim else None
    alone, together, lasted = zip(*rounds, strict=True)
    return Beside(victims, aggressors, alone, together, lasted)
