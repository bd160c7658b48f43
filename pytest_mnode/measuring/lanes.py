"""Lanes: collectives in groups, each lane by itself and all at the same time; tokens of experts.

Judges import this in the controller, so that torch is imported by what measures.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from pytest_mnode.launchers.hosts import expand
from pytest_mnode.measuring.at_once import Flows, node_gbits_s
from pytest_mnode.measuring.limits import REPEAT_S
from pytest_mnode.measuring.nvlink_domains import domains_of, nvlink_gbits_s
from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective

if TYPE_CHECKING:
    import torch

    from pytest_mnode.checks.groups import Layout
    from pytest_mnode.measuring.traffic import SentByNode
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.traffic import ExpertsPromise, JobsPromise

Kind = Literal["all_reduce", "all_gather", "all_to_all", "send_recv"]
KINDS: Mapping[str, Kind] = {
    **{"pp": "send_recv", "ep": "all_to_all", "fsdp": "all_gather", "shard": "all_gather"},
    **{"cp": "all_gather", "sp": "all_gather"},
}
"""What goes on in a dimension; in all others gradients or activations are summed."""
_MESSAGE_S = 0.05
_FEWEST_CALLS, _MOST_CALLS = 2, 400
_PATH_S = 0.05


@dataclass(frozen=True, slots=True)
class Lane:
    """A collective in groups of ranks that do not overlap. size_bytes: what nccl-tests means by it;
    of send_recv what each stage sends to the next, and to the one before."""

    name: str
    kind: Kind
    groups: tuple[tuple[int, ...], ...]
    size_bytes: int

    def flows(self) -> Counter[tuple[int, int]]:
        """Bytes of one call from rank to rank: rings along the group, and direct messages."""
        found = Counter[tuple[int, int]]()
        for group in self.groups:
            ranks, following = len(group), [*zip(group, (*group[1:], group[0]), strict=True)]
            if ranks < 2:
                continue
            if self.kind == "all_to_all":
                each = self.size_bytes // ranks
                found.update({(a, b): each for a in group for b in group if a != b})
            elif self.kind == "send_recv":
                for a, b in following[:-1]:
                    found.update({(a, b): self.size_bytes, (b, a): self.size_bytes})
            else:
                times = 2 if self.kind == "all_reduce" else 1
                moved = times * (ranks - 1) * self.size_bytes // ranks
                found.update(dict.fromkeys(following, moved))
        return found

    @property
    def steps(self) -> int:
        """Steps one after the other."""
        ranks = max(map(len, self.groups))
        return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1}.get(self.kind, 1)


def busiest_bytes(
    flows: Mapping[tuple[int, int], int], local_size: int, *, of_ranks: int | None = None
) -> int:
    """Bytes that the busiest node sends to other nodes, or receives from them; or the busiest of so
    many ranks."""
    ends: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for ranks, size in flows.items():
        nodes = [rank // local_size for rank in ranks]
        if nodes[0] != nodes[1]:
            for of, rank in zip(ends, ranks, strict=True):
                of[rank // (of_ranks or local_size)] += size
    return max((*ends[0].values(), *ends[1].values()), default=0)


def some_nics(lanes: Sequence[Lane], local_size: int) -> str:
    """Why lanes may send over NICs of some ranks only; "" if over those of all, or of none.

    A collective uses the NICs of its whole group, a pipeline those of ranks beside other nodes.
    """
    for lane in lanes:
        reaching = {a for a, b in lane.flows() if a // local_size != b // local_size}
        if lane.kind != "send_recv":
            spans = (group for group in lane.groups if not reaching.isdisjoint(group))
            reaching = {rank for group in spans for rank in group}
        if reaching and len(reaching) < sum(map(len, lane.groups)):
            return f"groups of {lane.name} send over NICs of some ranks only"
    return ""


def leaving_bytes(flows: Mapping[tuple[int, int], int], world: World, calls: int) -> list[int]:
    """Bytes that each node sends to others in so many calls."""
    found, each = [0] * len(world.nodes), world.local_size
    for (a, b), size in flows.items():
        found[a // each] += calls * size if a // each != b // each else 0
    return found


def rank_gbits_s(spec: Spec, world: World) -> float:
    """What the NICs of one rank send, at their line rate: one, or as many as there are for each."""
    nics = spec.nics_of_ranks(world.local_size) // world.local_size
    return spec.fabric.line_rate_gbits_s * max(1, nics)


def model_s(
    steps: int, flows: Mapping[tuple[int, int], int], spec: Spec, world: World
) -> float | None:
    """steps × α + bytes of the busiest node / line rate of its NICs; None inside nodes, whose own
    rate the spec does not say."""
    most = busiest_bytes(flows, world.local_size)
    alpha = Platform.of(spec).alpha
    wire_s = most * 8e-9 / node_gbits_s(spec, world)
    return alpha.start_s + steps * alpha.between_s + wire_s if most else None


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Seconds of a call, by round, of the slowest rank. by_group_s: medians alone, by group.
    busiest_bytes: of one call. expected_s: by the model; None inside nodes."""

    lane: Lane
    calls: int
    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]
    by_group_s: tuple[float, ...]
    busiest_bytes: int
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class Together:
    """whole_s: of all lanes at once, by round. paths_gbits_s: of paths between nodes alone, if
    lanes are slow, each with what it may carry. sent: bytes by node and NIC in all rounds."""

    title: str
    lanes: tuple[LaneTimes, ...]
    whole_s: tuple[float, ...]
    paths_gbits_s: Mapping[tuple[str, str], tuple[float, float]]
    sent: tuple[SentByNode, ...] = ()

    @property
    def sums_s(self) -> list[float]:
        """Time of all lanes one after the other, by round."""
        return [
            sum(one.alone_s[number] * one.calls for one in self.lanes)
            for number in range(len(self.whole_s))
        ]

    @property
    def overlaps(self) -> list[float]:
        """Time one after the other over that at once, by round."""
        return [a / b for a, b in zip(self.sums_s, self.whole_s, strict=True)]


def lanes_of(layout: Layout, size_bytes: int) -> list[Lane]:
    """A lane for each dimension of more than one rank."""
    return [
        Lane(name, KINDS.get(name, "all_reduce"), layout.groups(name), size_bytes)
        for name in layout.wider_than_one(layout.names)
    ]


def job_lanes(world: World, promise: JobsPromise, size_bytes: int) -> list[Lane]:
    """A lane for each job; empty if one of them has fewer than two nodes here."""
    if promise.nodes is None:
        sides = [world.nodes[::2], world.nodes[1::2]]
    else:
        listed = [set(expand(text)) for text in promise.nodes]
        sides = [tuple(node for node in world.nodes if node in side) for side in listed]
    if min(map(len, sides)) < 2:
        return []
    each = world.local_size
    return [
        Lane(
            f"job {number}",
            "all_reduce",
            (tuple(world.nodes.index(n) * each + k for n in side for k in range(each)),),
            size_bytes,
        )
        for number, side in enumerate(sides, 1)
    ]


def message_bytes(spec: Spec, world: World, given: int | None) -> int:
    """As given, or what a rank's share of the NICs sends in 50 ms; whole values of each rank."""
    size = given or int(node_gbits_s(spec, world) * 1e9 / 8 / world.local_size * _MESSAGE_S)
    whole = 4 * world.size  # which the groups of a mesh divide; sums need no equal parts
    return max(1, size // whole) * whole


class _Calls:
    """This rank's calls of a lane, with buffers and a group of their own."""

    def __init__(self, lane: Lane, me: int, device: torch.device) -> None:
        import torch
        import torch.distributed as dist

        made = [dist.new_group([*group]) for group in lane.groups]  # by all ranks, in one order
        place = next((n for n, group in enumerate(lane.groups) if me in group), None)
        self.lane, self.device, self._me = lane, device, me
        self.place = None if place is None or len(lane.groups[place]) < 2 else place
        self.group: Any = None if place is None else made[place]
        self.ranks = lane.groups[place] if place is not None else ()
        count = lane.size_bytes // 4
        self._out = torch.zeros(count, device=device)
        self._in = torch.zeros(count, device=device)
        self._also = torch.zeros(count, device=device)

    def close(self) -> None:
        """Destroy the group. All ranks of it call this."""
        import torch.distributed as dist

        if self.group is not None:
            dist.destroy_process_group(self.group)

    def once(self) -> None:
        import torch.distributed as dist

        from pytest_mnode.measuring.collectives import all_gather_single

        match self.lane.kind:
            case "all_reduce":
                dist.all_reduce(self._out, group=self.group)
            case "all_gather":
                part = self._out[: len(self._out) // len(self.ranks)]
                all_gather_single(self._in, part, group=self.group)
            case "all_to_all":
                dist.all_to_all_single(self._in, self._out, group=self.group)
            case "send_recv":
                at = self.ranks.index(self._me)
                near = [self.ranks[n] for n in (at - 1, at + 1) if 0 <= n < len(self.ranks)]
                operations = [
                    dist.P2POp(dist.isend, self._out, to, group=self.group) for to in near
                ]
                landing = zip((self._in, self._also), near, strict=False)
                operations[:0] = [dist.P2POp(dist.irecv, *one, group=self.group) for one in landing]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()

    def run(self, calls: int) -> float:
        """Seconds of so many calls, on a stream of their own."""
        import torch

        new_stream: Any = torch.cuda.Stream
        stream = new_stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            began = time.perf_counter()
            for _ in range(calls):
                self.once()
            if stream:
                stream.synchronize()
            return time.perf_counter() - began


def at_once(
    title: str, lanes: Sequence[Lane], spec: Spec, world: World, device: torch.device, *,
    rounds: int, least: float = 0.0, least_together: float = 0.0, most_paths: int = 0,
) -> Together:  # fmt: skip
    """Time each lane by itself, then all at once, in each round. All ranks call this together.

    least: fraction of the model's rate below which paths are measured alone. least_together: of the
    time of all lanes one after the other over that at once, below which those of all lanes are.
    """
    from pytest_mnode.measuring.nic_counters import Counted
    from pytest_mnode.measuring.ranks import barrier, by_rank

    mine = [_Calls(lane, world.rank, device) for lane in lanes]

    def timed(calls: Mapping[int, int]) -> list[list[float]]:
        """Seconds of each of these lanes, by rank; 0 of ranks that are not in it."""
        took, errors = dict.fromkeys(range(len(mine)), 0.0), list[Exception]()

        def run(number: int) -> None:
            try:
                took[number] = mine[number].run(calls[number])
            except Exception as error:  # of a thread, raised below
                error.add_note(f"in lane {lanes[number].name}")
                errors.append(error)

        here = [number for number in calls if mine[number].place is not None]
        threads = [threading.Thread(target=run, args=(number,)) for number in here[1:]]
        barrier(device)
        for thread in threads:
            thread.start()
        if here:
            run(here[0])
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return by_rank([*took.values()], device)

    def slowest(every: list[list[float]], number: int) -> float:
        return max(of_rank[number] for of_rank in every)

    calls = {}
    for number in range(len(mine)):
        timed({number: 1})  # connects
        once_s = max(1e-6, slowest(timed({number: 2}), number) / 2)
        calls[number] = max(_FEWEST_CALLS, min(_MOST_CALLS, math.ceil(REPEAT_S / once_s)))
    alone: list[list[list[list[float]]]] = [[] for _ in mine]
    together = []
    with Counted(world) as counted:
        for _ in range(rounds):
            for number, many in calls.items():
                alone[number].append(timed({number: many}))
            together.append(timed(calls))
    moved = [leaving_bytes(lane.flows(), world, calls[i]) for i, lane in enumerate(lanes)]
    sent = counted.by_node([*map(sum, zip(*moved, strict=True))])
    found = []
    for number, lane in enumerate(lanes):
        flows, many = lane.flows(), calls[number]
        by_group = tuple(
            median(max(every[rank][number] for rank in group) / many for every in alone[number])
            for group in lane.groups
        )
        found.append(
            LaneTimes(
                lane,
                many,
                tuple(slowest(every, number) / many for every in alone[number]),
                tuple(slowest(every, number) / many for every in together),
                by_group,
                busiest_bytes(flows, world.local_size),
                model_s(lane.steps, flows, spec, world),
            )
        )
    whole = tuple(max(map(max, every)) for every in together)
    for one in mine:
        one.close()
    timed_lanes = Together(title, tuple(found), whole, {})
    slow = [one for one in found if one.expected_s and one.expected_s < least * median(one.alone_s)]
    if median(timed_lanes.overlaps) < least_together:
        slow = found
    paths = {pair for one in slow for pair in one.lane.flows()}
    rates = paths_alone(paths, spec, world, device, most_paths)
    return replace(timed_lanes, paths_gbits_s=rates, sent=sent)


def spread(paths: Collection[tuple[int, int]], nodes: int, most: int) -> list[tuple[int, int]]:
    """Up to `most` of the paths between nodes, by their distance on the circle of nodes, so that
    they are of as many nodes as may be: of more nodes than `most` first every second, or third."""
    stride = math.ceil(nodes / max(1, most))
    return sorted(paths, key=lambda ends: ((ends[1] - ends[0]) % nodes, ends[0] % stride, ends))[
        :most
    ]


def paths_alone(
    pairs: set[tuple[int, int]], spec: Spec, world: World, device: torch.device, most: int
) -> dict[tuple[str, str], tuple[float, float]]:
    """Rates of paths between nodes, one at a time, by (sender, receiver), each with what it may be:
    NVLink's inside a domain."""
    found, each = dict[tuple[str, str], tuple[float, float]](), world.local_size
    domains, nics = domains_of(world, spec, device), rank_gbits_s(spec, world)
    between = {(a // each, b // each): (a, b) for a, b in sorted(pairs) if a // each != b // each}
    for a, b in spread(between, len(world.nodes), most):
        line = nvlink_gbits_s(spec) or nics if domains[a] == domains[b] else nics
        flows = Flows([between[a, b]], max(4, int(line * 1e9 / 8 * _PATH_S)), device)
        flows.received_gbits_s()  # connects
        rate = max(sum(flows.received_gbits_s()) for _ in range(2))
        found[world.nodes[a], world.nodes[b]] = rate, line
    return found


@dataclass(frozen=True, slots=True)
class Tokens:
    """Seconds of dispatch and combine of one size, by call, of the slowest rank. hot: the rank
    whose experts were chosen most, by call; each at least once. expected_s: by the model; None
    inside one node."""

    size_bytes: int
    calls_s: tuple[float, ...]
    hot: tuple[int, ...]
    expected_s: float | None

    @property
    def p50_s(self) -> float:
        return median(self.calls_s)

    @property
    def p99_s(self) -> float:
        """At most one call in a hundred took longer."""
        return sorted(self.calls_s)[math.ceil(0.99 * len(self.calls_s)) - 1]


@dataclass(frozen=True, slots=True)
class Experts:
    """What tokens took, by size; paths and bytes as in `Together`."""

    tokens: tuple[Tokens, ...]
    skew: float
    paths_gbits_s: Mapping[tuple[str, str], tuple[float, float]]
    sent: tuple[SentByNode, ...] = ()


def split(size_bytes: int, skew: float, ranks: int, hot: int) -> list[int]:
    """Values of float32 that a rank sends to each, of `size_bytes` on average; the hot one has
    `skew` times as many, and the others share the rest."""
    skew = min(skew, ranks)
    values = [0.0] * ranks
    for rank in range(ranks):
        values[rank] = skew if rank == hot else (ranks - skew) / max(1, ranks - 1)
    return [max(1, int(one * size_bytes / 4)) for one in values]


def experts_wire_s(flows: Mapping[tuple[int, int], int], spec: Spec, world: World) -> float:
    """Seconds of the busiest node's bytes over all its NICs, or of the busiest rank's over its own,
    which receives the tokens of a hot one: whichever takes longer."""
    of_node_s = busiest_bytes(flows, world.local_size) / node_gbits_s(spec, world)
    of_rank_s = busiest_bytes(flows, world.local_size, of_ranks=1) / rank_gbits_s(spec, world)
    return 8e-9 * max(of_node_s, of_rank_s)


def experts(
    world: World, spec: Spec, promise: ExpertsPromise, device: torch.device, most_paths: int
) -> Experts:
    """Time dispatch and combine over all ranks, each rank hot in turns. All ranks call this."""
    import torch
    import torch.distributed as dist

    from pytest_mnode.measuring.nic_counters import Counted
    from pytest_mnode.measuring.ranks import barrier, by_rank, finish

    found = []
    pairs = {(a, b) for a in range(world.size) for b in range(world.size) if a != b}
    model = CollectiveModel(
        Platform.of(spec), Collective.ALL_TO_ALL, len(world.nodes), world.local_size, "gloo"
    )
    calls = promise.calls_over(world.size)
    with Counted(world) as counted:
        for size in promise.sizes_bytes:
            times, hots = [], []
            for call in range(-world.size, calls):  # the first ones connect
                hot = call % world.size
                out = split(size, promise.skew, world.size, hot)
                back = [out[world.rank]] * world.size
                sent, came = (torch.zeros(sum(one), device=device) for one in (out, back))
                barrier(device)
                began = time.perf_counter()
                dist.all_to_all_single(came, sent, back, out)
                dist.all_to_all_single(sent, came, out, back)
                finish(device)
                if call >= 0:
                    times.append(time.perf_counter() - began)
                    hots.append(hot)
            slowest = [max(every) for every in zip(*by_rank(times, device), strict=True)]
            flows = {(a, b): 4 * split(size, promise.skew, world.size, 0)[b] for a, b in pairs}
            alpha_s = model.alpha_s(Algorithm.DIRECT)
            wire_s = experts_wire_s(flows, spec, world)
            expected = 2 * (alpha_s + wire_s) if wire_s else None
            found.append(Tokens(size, tuple(slowest), tuple(hots), expected))
    leaving = calls * world.local_size * (world.size - world.local_size) * sum(promise.sizes_bytes)
    by_nic = counted.by_node([leaving] * len(world.nodes))
    p50, p99 = promise.p50_at_most_times, promise.p99_at_most_times
    slow = any(
        (p50 and one.expected_s and one.p50_s > p50 * one.expected_s)
        or (p99 and one.p99_s > p99 * one.p50_s)
        for one in found
    )
    measured = paths_alone(pairs if slow else set(), spec, world, device, most_paths)
    return Experts(tuple(found), promise.skew, measured, by_nic)
