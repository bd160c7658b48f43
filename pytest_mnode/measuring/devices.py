"""Rates at which each rank computes and copies by itself, and why a rank is slower than others.

Nodes that share one machine, such as those of the rack, would slow each other. There ranks take
turns, one at a time and with one thread, and the time that a rank waits for a CPU counts only if
the cause is in its own node: the quota of its control group, or other processes of the node. Waits
caused by other users of the machine are left out. If every node is a machine of its own, all ranks
work at once and wall time counts. A rank that seems slow is measured twice more, and is slow only
if it was slow every time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

import torch

from pytest_mnode.detection import noise_share
from pytest_mnode.machine.load_readings import Sampler, load_of, nvml_reader
from pytest_mnode.machine.waiting import Spent, read_waiting, spent_between, total
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.rank_rates import (
    COMPARISONS,
    FALSE_ALARM,
    Comparison,
    RankRate,
    cause,
    peer_bound,
)
from pytest_mnode.measuring.ranks import (
    barrier,
    by_rank,
    elapsed_s,
    finish,
    gathered,
    share_a_machine,
)
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise, RankPromise

ROUNDS = 3
REPEAT_S = 0.1
"""Duration of a repeat: longer than the period of a CPU quota and than a clock's resolution."""
MOST_CALLS = 10_000
_SAMPLE_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Work:
    """A call to time. amount: work per call, in GFLOP or GB. on: the device whose time counts."""

    amount: float
    call: Callable[[], object]
    on: torch.device


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of work that ranks are compared by.

    make: creates the work in each rank. floor: as in `Comparison`. from_host: whether the work
    copies between host and device. comparisons: number of comparisons of the certificate, which
    share the chance of a false alarm.
    """

    name: str
    unit: str
    promise: RankPromise
    floor: float | None
    make: Callable[[], Work]
    from_host: bool = False
    comparisons: int = COMPARISONS

    @property
    def false_alarm(self) -> float:
        """Of one comparison; see `rank_rates.peer_bound`."""
        return FALSE_ALARM / self.comparisons

    def compared(self, rows: tuple[RankRate, ...], how: str, *, shared: bool) -> Comparison:
        """The comparison of these rates."""
        names = self.name, self.unit, self.promise, self.floor
        return Comparison(*names, rows, how, shared, self.false_alarm)


def compare_matmul(
    promise: MatmulPromise,
    dtype: str,
    world: World,
    device: torch.device,
    *,
    comparisons: int = COMPARISONS,
) -> Comparison:
    """Compare matrix products on each rank's device. All ranks call this.

    comparisons: number of comparisons of the certificate, see `Task`.
    """
    floor_tflops = promise.at_least_tflops.get(dtype)  # type: ignore[call-overload]

    def make() -> Work:
        a, b = (_random(promise.size, dtype, device) for _ in range(2))
        out = torch.empty_like(a)
        flops = 2.0 * promise.size**3
        return Work(flops / 1e9, lambda: torch.mm(a, b, out=out), device)

    floor = None if floor_tflops is None else floor_tflops * 1e3
    name = f"matmul {dtype}"
    task = Task(name, "GFLOP/s", promise, floor, make, comparisons=comparisons)
    return _compare(task, world, device)


def compare_copy(
    kind: str,
    promise: CopyPromise,
    world: World,
    device: torch.device,
    *,
    comparisons: int = COMPARISONS,
) -> Comparison:
    """Compare copies: memory_copy, device_copy, host_to_device, device_to_host. All call this.

    comparisons: number of comparisons of the certificate, see `Task`.
    """
    task = Task(
        kind.replace("_", " "),
        "GB/s",
        promise,
        promise.at_least_gbytes_s,
        lambda: _copying(kind, promise.size_bytes, device),
        from_host="host" in kind,
        comparisons=comparisons,
    )
    return _compare(task, world, device)


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


def _compare(task: Task, world: World, device: torch.device) -> Comparison:
    """Measure in rounds until no rank seems slow, three at most."""
    promise, rank = task.promise, rank_name(world, world.rank)
    shared = share_a_machine(world)
    threads = torch.get_num_threads()
    try:
        if shared:
            torch.set_num_threads(1)
        work, why = _first_call(task)
        if not all(has for [has] in by_rank([float(work is not None)], device)):
            why = why or "not measured, because another rank could not be measured"
            row = RankRate(rank, None, why)
            return task.compared(gathered(row), "", shared=shared)
        assert work is not None
        sampler = _sampler(work.on)
        rates, spent = _rounds(task, work, world, device, shared=shared, sampler=sampler)
    finally:
        torch.set_num_threads(threads)
    rate, alone = median(rates), None
    if isinstance(promise, CopyPromise) and (promise.alone_at_least_gbytes_s or task.from_host):
        # If nodes share a machine, each rank was already measured alone.
        alone = rate if shared else _alone(work, promise, world, device)
    load = load_of(sampler.samples) if sampler is not None else None
    row = RankRate(rank, rate, cause(spent, shared, load, world.node), alone, load, tuple(rates))
    rows = gathered(row)
    how = f"median of {max(len(one.repeats) for one in rows)}"
    if shared:
        how += ", one rank at a time, because nodes share a machine; time that others took is "
    how += "left out" if shared else ", all ranks at once"
    return task.compared(rows, how, shared=shared)


def _first_call(task: Task) -> tuple[Work | None, str]:
    """The work after its first call, and ""; or None, and why this rank cannot do it."""
    try:
        work = task.make()
        work.call()
        finish(work.on)
    except (RuntimeError, MemoryError) as error:
        return None, str(error).partition("\n")[0]
    return work, ""


def _sampler(on: torch.device) -> Sampler | None:
    """Samples this GPU; None for a CPU, and for AMD's, which NVML does not know."""
    if on.type != "cuda" or torch.version.hip is not None:
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(on), "uuid", ""))
    return Sampler(nvml_reader(uuid), _SAMPLE_EVERY_S)


def _rounds(
    task: Task,
    work: Work,
    world: World,
    device: torch.device,
    *,
    shared: bool,
    sampler: Sampler | None,
) -> tuple[list[float], Spent]:
    """Rates of the repeats of this rank's best round, and how the time of all rounds was spent.

    If nodes do not share a machine and the noise of a rank would hide a loss larger than the bound
    tolerates, the first round has four times as many repeats.
    """
    promise = task.promise
    best: list[float] = []
    stretches: list[Spent] = []
    calls = 0
    turns: Sequence[int] = range(world.size)

    def repeated(times: int) -> list[float]:
        nonlocal calls
        rates = []
        for _ in range(times):
            for turn in turns if shared else [world.rank]:
                barrier(device)
                if turn != world.rank:
                    continue
                calls = calls or calls_to_fill(work, shared)
                seconds, spent = repeat_s(work, calls, shared, sampler)
                rates.append(work.amount * calls / seconds)
                stretches.append(spent)
        return rates

    for number in range(ROUNDS):
        rates = repeated(promise.repeats)
        noisy = (
            not shared
            and (noise_share(rates, rounds_of_three=True) or 0) > 1 - promise.at_least_fraction
        )
        if number == 0 and any(one for [one] in by_rank([float(noisy)], device)):
            rates += repeated(3 * promise.repeats)
        best = max([best, rates], key=lambda some: median(some) if some else 0.0)
        everybody = [row[0] for row in by_rank([median(best)], device)]
        if len(everybody) < 2:
            break
        bound = peer_bound(
            everybody, promise.at_least_fraction, promise.at_most_spreads, task.false_alarm
        )
        turns = (*bound.slow, *bound.unsure)
        if not turns:
            break
    return best, total(tuple(stretches))


def _alone(work: Work, promise: RankPromise, world: World, device: torch.device) -> float:
    """This rank's median rate while no other rank of its node works. All ranks call this."""
    rates = []
    calls = calls_to_fill(work, shared=False)
    for turn in range(world.local_size):
        barrier(device)
        if turn == world.local_rank:
            for _ in range(promise.repeats):
                seconds, _ = repeat_s(work, calls, shared=False, sampler=None)
                rates.append(work.amount * calls / seconds)
    barrier(device)
    return median(rates)


def calls_to_fill(work: Work, shared: bool) -> int:
    """Number of calls that fill a repeat, by the fastest of three calls."""
    call_s = min(_call_s(work, shared) for _ in range(3))
    return max(1, min(MOST_CALLS, ceil(REPEAT_S / max(call_s, 1e-9))))


def _call_s(work: Work, shared: bool) -> float:
    before = time.thread_time()
    seconds = elapsed_s(work.call, 1, work.on)
    # On a shared machine, wall time includes the work of other processes.
    return time.thread_time() - before if shared and work.on.type == "cpu" else seconds


def repeat_s(work: Work, calls: int, shared: bool, sampler: Sampler | None) -> tuple[float, Spent]:
    """Seconds that count for this rank, and how they were spent."""
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


def _random(size: int, dtype: str, device: torch.device) -> torch.Tensor:
    # A GPU's power draw, and so its clock, depends on the values, so all of them are random.
    kind: torch.dtype = getattr(torch, dtype)
    return torch.randn(size, size, device=device).to(kind)
