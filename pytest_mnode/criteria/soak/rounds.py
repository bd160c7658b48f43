"""One round of a soak, in ranks: checked products, sums, messages and transfers of rotating pairs.

All ranks call the same functions. Everything is measured and judged by what the other criteria
measure and judge with; only which nodes are partners, seeds and repeats are those of the round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

import torch
import torch.distributed as dist

from pytest_mnode.checks.devices.matmul import LARGEST_CHECKED, judge_products
from pytest_mnode.checks.devices.repeated_products import judge_repeated
from pytest_mnode.checks.devices.training_step import judge_steps
from pytest_mnode.criteria.devices import judge_rates
from pytest_mnode.criteria.soak.found import LogOfNode, Measured, Plan, Rate
from pytest_mnode.culprit import Culprit
from pytest_mnode.logs import kernel_log
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.measuring import devices, results_of_ranks
from pytest_mnode.measuring.collectives import ALL_REDUCE
from pytest_mnode.measuring.locating.pairs import Pairs, Rails, chunk_bytes
from pytest_mnode.measuring.locating.rounds import Pair, both_ways, circle
from pytest_mnode.measuring.messages import exchange
from pytest_mnode.measuring.naming import culprit_of
from pytest_mnode.measuring.ranks import by_rank, gathered
from pytest_mnode.measuring.repeated_products import compare_products
from pytest_mnode.measuring.sweep import sweep
from pytest_mnode.rank import here
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import Collective
from pytest_mnode.spec.devices import DevicesCriterion, MatmulPromise

PRODUCTS = 2
"""Checked products of a round and data type; a check costs the host as much as the device gains."""
SEEDS = 1 << 16
"""From the seed of a round's repeated products to that of the next."""
LOAD_S, PAIRS_S = 10.0, 5.0
"""[choice] Timed products, and transfers of pairs, of a round on nodes of their own: long enough
that GPUs stay hot, and short enough that a round ends within a minute."""
SHORT_S = 0.2
"""The same where nodes share a machine."""
TRIES = 3
"""A path is slow in a round if all of its tries were."""
STANDS_OUT = 0.8
"""[choice] A slow path is below this share of what one NIC must carry: a round is no proof of the
line rate, which the fabric criterion gives."""
_MOST_EXCHANGED = 64
"""Number of nodes up to which every two ranks exchange messages in each round."""
_MOST_PAIRS = 32
"""Pairs that get an all-reduce of their own in each round, as every rank takes part in making the
group of each; of more pairs other ones in each round."""
_FEW_BYTES = 64 << 10
_CALL_S = 0.02
"""[choice] Longest sum: the number of sums that are checked finds a wrong one, not their size."""
_REPEATS = 2


def logs(*, world: World) -> Mapping[str, LogOfNode]:
    """The failures in the kernel logs of all nodes so far, each read by its first rank."""
    mine: LogOfNode = ""
    if world.local_rank == 0:
        try:
            events = kernel_log.read().events
        except OSError as error:
            mine = str(error).partition("\n")[0]
        else:
            bad = kernel_log.Severity.FAULT
            mine = tuple((e.when, e.device, e.what) for e in events if e.severity is bad)
    every = gathered(mine)
    return {node: every[i * world.local_size] for i, node in enumerate(world.nodes)}


def measure_round(plan: Plan, *, world: World) -> Measured | None:
    """In ranks: measure a round. None but on rank 0, as all ranks have the same."""
    found = Measured()
    if here.rank is None:
        raise RuntimeError("a round of a soak is measured in ranks")
    device = here.rank.groups.device
    _devices(plan, world, device, found)
    if world.size > 1:
        _messages(world, device, found)
        _sums(plan, world, device, found)
    if len(world.nodes) > 1:
        _pairs(plan, world, device, found)
    if len(world.nodes) > 2:  # of two, that of all ranks is theirs
        _sums_of_pairs(plan, world, device, found)
    if plan.reads_log:
        found.logs = logs(world=world)
    return found if world.rank == 0 else None


def _devices(plan: Plan, world: World, device: torch.device, found: Measured) -> None:
    promise = plan.spec.criteria.devices
    if promise is None:
        return
    if promise.matmul is not None:
        for dtype in promise.matmul.dtypes:
            _products(plan, promise.matmul, dtype, world, device, found)
            _load(plan, promise, dtype, world, device, found)
    if promise.repeated_products is not None:
        once = promise.repeated_products.model_copy(update={"duration_s": None})
        for kind in once.dtypes:
            voted = compare_products(once, kind, world, device, seed=plan.number * SEEDS)
            found.measurements += judge_repeated(voted)
            _checked(found, "repeated products", voted.products * world.size)
    if promise.training_step is not None:
        steps = results_of_ranks.compare_steps(promise.training_step, world, device, plan.number)
        found.measurements += judge_steps(steps)
        _checked(found, "training steps", sum(len(row.models) for row in steps.rows) * steps.steps)


def _products(  # noqa: PLR0917  of one round
    plan: Plan,
    promise: MatmulPromise,
    dtype: str,
    world: World,
    device: torch.device,
    found: Measured,
) -> None:
    size, wrong = min(promise.size, LARGEST_CHECKED), dict[str, int | None]()
    for turn in range(PRODUCTS):
        seed = (plan.number * PRODUCTS + turn) * world.size
        of_turn = results_of_ranks.wrong_products(size, dtype, world, device, seed=seed)
        for rank, count in of_turn.items():
            before = wrong.get(rank, 0)
            wrong[rank] = None if count is None or before is None else before + count
    found.measurements += judge_products(dtype, size, wrong)
    _checked(found, "products", PRODUCTS * world.size)


def _load(  # noqa: PLR0917  of one round
    plan: Plan,
    promise: DevicesCriterion,
    dtype: str,
    world: World,
    device: torch.device,
    found: Measured,
) -> None:
    """Products for as long as a device needs to get hot, and how fast they were."""
    assert promise.matmul is not None
    load_s = devices.REPEAT_S if plan.spec.shares_processors else LOAD_S
    timed = promise.matmul.model_copy(update={"repeats": math.ceil(load_s / devices.REPEAT_S)})
    family = promise.comparisons * plan.rounds
    compared = devices.compare_matmul(timed, dtype, world, device, comparisons=family)
    found.slow += judge_rates(compared)
    by_node: dict[str, list[float]] = {}
    for rank, one in enumerate(compared.rows):
        if one.rate is not None:
            by_node.setdefault(world.nodes[rank // world.local_size], []).append(one.rate)
    found.rates += [
        Rate(compared.name, node, min(rates), compared.unit) for node, rates in by_node.items()
    ]


def _messages(world: World, device: torch.device, found: Measured) -> None:
    if len(world.nodes) > _MOST_EXCHANGED:
        return
    met, sent = exchange(world, device), world.size * (world.size - 1)
    source = "every message arrives as it was sent"
    found.measurements.append(
        Measurement("wrong messages", len(met.wrong), "", equals(0), source, met.culprit)
    )
    _checked(found, "messages", sent)


def _sums(plan: Plan, world: World, device: torch.device, found: Measured) -> None:
    fabric = plan.spec.criteria.fabric
    promise = fabric.busbw(Collective.ALL_REDUCE) if fabric else None
    moved = plan.spec.fabric.line_rate_bits_s / 8 * _CALL_S / 2  # a ring sends all of it twice
    sizes = promise.sizes_bytes if promise else (_FEW_BYTES,)
    size = max((one for one in sizes if one <= moved), default=sizes[0])
    done = sweep(ALL_REDUCE, [size], warmup=1, repeats=_REPEATS, device=device)
    for lost in done.unmeasured:
        found.measurements.append(Measurement.unknown("all_reduce, wrong values", lost.why))
    for one in done.rows:
        found.measurements.append(
            Measurement(
                "all_reduce, wrong values",
                one.wrong,
                "",
                equals(0),
                "a sum of whole numbers is exact",
                culprit_of(world, one.wrong_ranks, one.wrong_senders),
            )
        )
        _checked(found, "sums", one.checked)
        found.rates.append(Rate("all_reduce", "", one.busbw_gbytes_s, "GB/s"))


def _sums_of_pairs(plan: Plan, world: World, device: torch.device, found: Measured) -> None:
    """An all-reduce of each pair by itself, all at once: of all ranks, other paths may be used."""
    step = math.ceil(len(found.partners) / _MOST_PAIRS)
    pairs = found.partners[plan.number % step :: step]
    mine: tuple[list[int], dist.ProcessGroup] | None = None
    members = [_ranks(world, a) + _ranks(world, b) for a, b in pairs]
    for ranks in members:
        group = dist.new_group(ranks)
        if world.rank in ranks:
            mine = ranks, group
    wrong = 0
    if mine is not None:
        ranks, group = mine
        cells = torch.arange(_FEW_BYTES, dtype=torch.float32, device=device) + plan.number
        values = (cells + 31 * world.rank) % 1009
        dist.all_reduce(values, group=group)
        expected = sum((cells + 31 * rank) % 1009 for rank in ranks)
        wrong = int((values != expected).sum())
        dist.destroy_process_group(group)
    every = [int(count) for [count] in by_rank([wrong], device)]
    bad = [pair for pair, ranks in zip(pairs, members, strict=True) if any(every[r] for r in ranks)]
    named = [(world.nodes[a], world.nodes[b]) for a, b in bad]
    found.measurements.append(
        Measurement.none_allowed(
            "pairs with a wrong sum",
            [Culprit(f"{a} or {b}", either=[[a, b]]) for a, b in named],
            "a sum of whole numbers is exact",
        )
    )
    _checked(found, "sums of pairs", len(pairs))


def _ranks(world: World, node: int) -> list[int]:
    return [*range(node * world.local_size, (node + 1) * world.local_size)]


def _pairs(plan: Plan, world: World, device: torch.device, found: Measured) -> None:
    """Pairs of one turn of the tournament, at the same time, in both directions by turns."""
    spec, nodes = plan.spec, world.nodes
    turns = circle(len(nodes))
    found.partners = partners = turns[(plan.number - 1) % len(turns)]
    rails = Rails.of(world, spec.fabric.nics_per_node)
    size_bytes = chunk_bytes(spec.fabric.line_rate_mbits_s * rails.nics_each)
    pairs = Pairs(rails, size_bytes, device)
    fabric = spec.criteria.fabric
    promise = fabric.send_recv_busbw if fabric else None
    least = STANDS_OUT * promise.nic_mbits_s(spec.fabric) * rails.nics_each if promise else 0.0
    wrong: set[Pair] = set()
    rates: dict[tuple[int, int, int], list[float]] = {}

    def measured(of: tuple[Pair, ...]) -> float:
        """Seconds since the pairs were made, by the clock of rank 0: the same on all ranks."""
        spent_s = 0.0
        for step in both_ways(of, tuple(range(rails.count)), 0, "soak"):
            done = pairs.measure(step)
            spent_s = done.spent_s
            for one in done.readings:
                rates.setdefault((one.sender, one.receiver, one.rail), []).append(one.mbits_s)
                if one.wrong:
                    wrong.add((one.sender, one.receiver))
        return spent_s

    load_s = SHORT_S if spec.shares_processors else PAIRS_S
    while (spent_s := measured(partners)) < load_s:
        pass
    slow: dict[Pair, float] = {}
    for attempt in range(TRIES):
        slow = {(a, b): max(tried) for (a, b, _), tried in rates.items() if max(tried) < least}
        again = tuple(pair for pair in partners if pair in slow or pair[::-1] in slow)
        if not again or attempt == TRIES - 1:
            break
        spent_s = measured(again)
    found.pairs_s = spent_s
    by_pair = {
        pair: min(
            statistics.median(tried)
            for (a, b, _), tried in rates.items()
            if (a, b) in (pair, pair[::-1])
        )
        for pair in partners
    }
    found.rates += [
        Rate("transfers of pairs", nodes[node], rate, "Mbit/s")
        for pair, rate in by_pair.items()
        for node in pair
    ]

    def paths(of: dict[Pair, str]) -> Culprit | None:
        ways = [(nodes[a], nodes[b]) for a, b in of]
        words = [f"path from {nodes[a]} to {nodes[b]}{text}" for (a, b), text in of.items()]
        return Culprit.path(", ".join(words), *ways) if of else None

    found.measurements.append(
        Measurement(
            "transfers with wrong bytes",
            len(wrong),
            "",
            equals(0),
            "every byte arrives as it was sent",
            paths(dict.fromkeys(sorted(wrong), "")),
        )
    )
    if promise is not None:
        named = {pair: f" ({rate:.4g} Mbit/s)" for pair, rate in slow.items()}
        found.slow.append(
            Measurement(
                "slow paths",
                len(slow),
                "",
                equals(0),
                f"{least:.4g} Mbit/s: {STANDS_OUT:g} of what send_recv_busbw asks of a NIC",
                paths(named),
            )
        )


def _checked(found: Measured, kind: str, calls: int) -> None:
    found.checked[kind] = found.checked.get(kind, 0) + calls
