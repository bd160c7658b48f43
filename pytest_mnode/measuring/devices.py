"""How fast each rank computes and copies by itself, and why one is slower than the others.

Nodes that share one machine, as those of the rack do, would slow each other: there the ranks take
turns, one at a time and by one thread, and what a rank waits for a CPU is held against it only
where the cause is its own: the quota of its control group, or other processes of its own node that
ran. The rest is the doing of whoever else uses the machine, and is left out. Ranks with a
machine of their own all work at once, by the clock. Who seems slow is measured again, twice, and is
slow only if it was each time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_mnode.machine.nvml import LoadSampler
from pytest_mnode.machine.waiting import Spent, read_waiting, spent_between, total
from pytest_mnode.measuring import outliers
from pytest_mnode.measuring.agree import by_rank
from pytest_mnode.measuring.causes import cause
from pytest_mnode.measuring.compared import Compared, RankRate
from pytest_mnode.measuring.timing import elapsed_s, finish
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise, RankPromise

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

ROUNDS = 3
REPEAT_S = 0.1
"""How long a repeat runs: longer than the period of a CPU quota, and than a clock's grain."""
MOST_CALLS = 10_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
COPIES = ("memory_copy", "device_copy", "host_to_device", "device_to_host")


@dataclass(frozen=True, slots=True)
class Work:
    """A call to time. amount: how much it does. on: the device whose time counts."""

    amount: float
    call: Callable[[], object]
    on: torch.device


def compare_matmul(
    promise: MatmulPromise, dtype: str, world: World, device: torch.device
) -> Compared:
    """Products of matrices on each rank's device. All ranks call this."""
    floor = promise.at_least_tflops.get(dtype)  # type: ignore[call-overload]

    def make() -> Work:
        a, b = (_random(promise.size, dtype, device) for _ in range(2))
        out = torch.empty_like(a)
        flops = 2.0 * promise.size**3
        return Work(flops / 1e9, lambda: torch.mm(a, b, out=out), device)

    name = f"matmul {dtype}"
    return _compare(
        name, "GFLOP/s", promise, None if floor is None else floor * 1e3, make, world, device
    )


def compare_copy(kind: str, promise: CopyPromise, world: World, device: torch.device) -> Compared:
    """Copies of one of the kinds in `COPIES`. All ranks call this."""
    floor = promise.at_least_gbytes_s
    return _compare(
        kind.replace("_", " "),
        "GB/s",
        promise,
        floor,
        lambda: _copying(kind, promise.size_bytes, device),
        world,
        device,
    )


def _copying(kind: str, size_bytes: int, device: torch.device) -> Work:
    host = torch.device("cpu")
    if kind != "memory_copy" and device.type == "cpu":
        raise RuntimeError("this rank has no device")
    places = {
        "memory_copy": (host, host),
        "device_copy": (device, device),
        "host_to_device": (host, device),
        "device_to_host": (device, host),
    }[kind]
    pinned = places[0] != places[1]
    source, target = (
        torch.ones(size_bytes, dtype=torch.uint8, device=place, pin_memory=pinned and place == host)
        for place in places
    )
    on = host if kind == "memory_copy" else device
    return Work(size_bytes / 1e9, lambda: target.copy_(source, non_blocking=pinned), on)


def wrong_rows(size: int, dtype: str, device: torch.device, seed: int) -> int:
    """Rows of a product that did not come out right on a device; NaN is wrong.

    Factors are -1, 0 and 1, few enough of them that every sum is a whole number that the dtype
    holds exactly; the product is checked by Freivalds' method, A(Bx) = (AB)x in float64 with random
    signs x, which no single wrong value can pass.
    """
    generator = torch.Generator().manual_seed(seed)
    part = min(0.5, (1 << 5) / size**0.5 / 2)

    def factor() -> torch.Tensor:
        signs = torch.randint(0, 2, (size, size), generator=generator) * 2 - 1
        there = torch.rand(size, size, generator=generator) < part
        made: torch.Tensor = (signs * there).to(torch.float64)
        return made

    a, b = factor(), factor()
    signs = (torch.randint(0, 2, (size, 4), generator=generator) * 2 - 1).to(torch.float64)
    kind: torch.dtype = getattr(torch, dtype)
    product = torch.mm(a.to(device, kind), b.to(device, kind)).to("cpu", torch.float64)
    right = a @ (b @ signs)
    return int((~((product @ signs) == right).all(dim=1)).sum())


def wrong_products(
    promise: MatmulPromise, dtype: str, world: World, device: torch.device, measure: Measure
) -> None:
    """Check one product on every rank. All ranks call this."""
    size = min(promise.size, 2048)  # checking costs the host as much as the device gains
    try:
        mine = float(wrong_rows(size, dtype, device, world.rank))
    except RuntimeError:
        mine = -1.0
    wrong = [row[0] for row in by_rank([mine], device)]
    names = _names(world)
    bad = [f"{n} ({int(w)})" for n, w in zip(names, wrong, strict=True) if w > 0]
    failed = [name for name, count in zip(names, wrong, strict=True) if count < 0]
    measure(
        f"matmul {dtype}, wrong rows",
        None if failed and not bad else sum(count for count in wrong if count > 0),
        equals=0,
        source=f"whole numbers, {size} × {size}, exact in {dtype}",
        culprit=", ".join(bad) or None,
        note=f"could not be computed by {', '.join(failed)}" if failed else "",
    )


def _compare(  # noqa: PLR0917  what the two kinds of work differ in
    name: str,
    unit: str,
    promise: RankPromise,
    floor: float | None,
    make: Callable[[], Work],
    world: World,
    device: torch.device,
) -> Compared:
    """Measure in rounds until nobody seems slow, three at most."""
    rank, why = _names(world)[world.rank], ""
    shared = _share_a_machine(world)
    threads = torch.get_num_threads()
    work: Work | None = None
    try:
        if shared:
            torch.set_num_threads(1)
        try:
            work = make()
            work.call()
            finish(work.on)
        except (RuntimeError, MemoryError) as error:
            work, why = None, str(error).partition("\n")[0]
        if not all(has for [has] in by_rank([float(work is not None)], device)):
            row = RankRate(rank, None, why or "not measured, for another rank cannot be")
            return Compared(name, unit, promise, floor, _gathered(row, world), "")
        assert work is not None
        sampler = _sampler(work.on)
        rate, spent = _rounds(work, promise, world, device, shared, sampler)
    finally:
        torch.set_num_threads(threads)
    alone = None
    if isinstance(promise, CopyPromise) and (promise.alone_at_least_gbytes_s or "host" in name):
        # Where nodes share a machine the ranks took turns anyway.
        alone = rate if shared else _alone(work, promise, world, device)
    load = sampler.load if sampler is not None else None
    why = cause(spent, shared, load, world.node)
    how = _how(shared, promise)
    return Compared(
        name,
        unit,
        promise,
        floor,
        _gathered(RankRate(rank, rate, why, spent, alone, load), world),
        how,
    )


def _sampler(on: torch.device) -> LoadSampler | None:
    """Of the GPU that works; None for a CPU."""
    if on.type != "cuda":
        return None
    return LoadSampler(str(getattr(torch.cuda.get_device_properties(on), "uuid", "")))


def _rounds(  # noqa: PLR0917  what one rank needs to know
    work: Work,
    promise: RankPromise,
    world: World,
    device: torch.device,
    shared: bool,
    sampler: LoadSampler | None,
) -> tuple[float, Spent]:
    """This rank's best round, and what all its time went to."""
    best, stretches = 0.0, []
    calls = 0
    turns: Sequence[int] = range(world.size)
    for _ in range(ROUNDS):
        rates = []
        for _ in range(promise.repeats):
            for turn in turns if shared else [world.rank]:
                by_rank([0.0], device)
                if turn != world.rank:
                    continue
                calls = calls or _calls(work, shared)
                seconds, spent = _repeat(work, calls, shared, sampler)
                rates.append(work.amount * calls / seconds)
                stretches.append(spent)
        best = max([best, *([median(rates)] if rates else [])])
        everybody = [row[0] for row in by_rank([best], device)]
        if len(everybody) < 2:
            break
        turns = outliers.line(everybody, promise.at_least_fraction, promise.at_most_spreads).slow
        if not turns:
            break
    return best, total(tuple(stretches))


def _alone(work: Work, promise: RankPromise, world: World, device: torch.device) -> float:
    """This rank's median while no other rank of its node works. All ranks call this."""
    rates = []
    calls = _calls(work, shared=False)
    for turn in range(world.local_size):
        by_rank([0.0], device)
        if turn == world.local_rank:
            for _ in range(promise.repeats):
                seconds, _ = _repeat(work, calls, shared=False, sampler=None)
                rates.append(work.amount * calls / seconds)
    by_rank([0.0], device)
    return median(rates)


def _calls(work: Work, shared: bool) -> int:
    """How many calls fill a repeat, by what the quickest of three takes."""
    call_s = min(_call_s(work, shared) for _ in range(3))
    return max(1, min(MOST_CALLS, ceil(REPEAT_S / max(call_s, 1e-9))))


def _call_s(work: Work, shared: bool) -> float:
    before = time.thread_time()
    seconds = elapsed_s(work.call, 1, work.on)
    # On a machine shared with others, what a call took says little of what it needs.
    return time.thread_time() - before if shared and work.on.type == "cpu" else seconds


def _repeat(
    work: Work, calls: int, shared: bool, sampler: LoadSampler | None
) -> tuple[float, Spent]:
    """Seconds that count for this rank, and what they went to."""
    before = read_waiting()
    wall, cpu = time.perf_counter(), time.thread_time()
    with sampler or contextlib.nullcontext():
        seconds = elapsed_s(work.call, calls, work.on)
    wall_s, cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
    spent = spent_between(
        before,
        read_waiting(),
        wall_s=wall_s,
        cpu_s=cpu_s,
        cpus=frozenset(os.sched_getaffinity(0)),
    )
    return (spent.own_s if shared and work.on.type == "cpu" else seconds), spent


def _share_a_machine(world: World) -> bool:
    """Whether two nodes of the world run on one kernel."""
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = world.node
    boots: list[Any] = [None] * world.size
    dist.all_gather_object(boots, (boot, world.node))
    return len({boot for boot, _ in boots}) < len({node for _, node in boots})


def _gathered(row: RankRate, world: World) -> tuple[RankRate, ...]:
    rows = [row] * world.size
    dist.all_gather_object(rows, row)
    return tuple(rows)


def _names(world: World) -> Sequence[str]:
    return [f"rank {r} on {world.nodes[r // world.local_size]}" for r in range(world.size)]


def _random(size: int, dtype: str, device: torch.device) -> torch.Tensor:
    # What is multiplied decides what power a GPU draws, and so its clock: nothing but noise.
    kind: torch.dtype = getattr(torch, dtype)
    return torch.randn(size, size, device=device).to(kind)


def _how(shared: bool, promise: RankPromise) -> str:
    how = f"median of {promise.repeats}"
    if not shared:
        return f"{how}, all ranks at once"
    return (
        f"{how}, one rank at a time, for nodes share a machine; what others of it took is left out"
    )
