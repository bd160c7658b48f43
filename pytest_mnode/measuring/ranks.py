"""Exchange between the ranks of a world: values, times, shared machines, free memory.

All ranks call these functions together, except where a docstring says otherwise.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from pytest_mnode.logs.kineto import Traced, read_trace
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cgroup import read_memory_rooms
from pytest_mnode.rank.world import World

T = TypeVar("T")
_MOST_CALLS = 200
_SHARE = 0.9
"""Share of the free memory that ranks may take."""


def by_rank(numbers: Sequence[float], device: torch.device) -> list[list[float]]:
    """The `numbers` of each rank, by rank; the same on every rank.

    All ranks give equally many numbers, at least one. Returns after every rank has called it, so it
    is also a barrier. Integers are exact up to 2^53.
    """
    if not numbers:
        raise ValueError("no numbers: ranks that exchange nothing do not wait for each other")
    mine = torch.tensor(list(numbers), dtype=torch.float64, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [of_rank.tolist() for of_rank in every]


def gathered(value: T, group: Any = None) -> tuple[T, ...]:
    """The value of each rank of the group, by rank, the same on all. It must be picklable."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, value, group=group)
    return tuple(every)


def of_first_rank(value: T) -> T:
    """The value of the first rank, on all. It must be picklable. Uses the default process group."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def barrier(device: torch.device) -> None:
    """Return after every rank has called this."""
    by_rank([0.0], device)


def send_and_receive(
    sent: torch.Tensor, receiver: int, received: torch.Tensor, sender: int, group: Any = None
) -> None:
    """Send to one rank while receiving from one; a group's ranks call this for each other.

    The receive goes first: gloo announces a receive on the connection that carries the data. It
    would wait behind the data, and the two directions would take turns.
    """
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received, sender, group=group),
            dist.P2POp(dist.isend, sent, receiver, group=group),
        ]
    ):
        work.wait()


def backend_on(device: torch.device) -> str:
    """The default group's backend for tensors on `device`: a group may have one per device type."""
    group: Any = dist.group.WORLD
    try:
        return str(group._get_backend(device).name()).lower()
    except (RuntimeError, AttributeError):
        return str(dist.get_backend()).lower()


def boot_id() -> str:
    """Boot id of the running kernel, "" if unknown. Any rank may call this alone."""
    return sysfs.boot_id() or ""


def share_a_machine(world: World) -> bool:
    """Whether two nodes of the world run on one kernel."""
    boots = gathered((boot_id() or world.node, world.node))
    return len({boot for boot, _ in boots}) < len({node for _, node in boots})


def finish(device: torch.device) -> None:
    """Wait until the device has finished all work. Any rank may call this alone."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def elapsed_s(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds from before the first to after the last of `calls` calls in a row, on this rank.

    On a GPU the time is between two events of the current stream, which collectives join;
    elsewhere it is wall time, with the device's work finished at both ends.
    """
    finish(device)
    if device.type == "cuda":
        new_event: Any = torch.cuda.Event
        begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000
    started = time.perf_counter()
    for _ in range(calls):
        call()
    finish(device)
    return time.perf_counter() - started


def slowest_call_s(
    call: Callable[[], object],
    fill_s: float,
    device: torch.device,
    *,
    repeats: int = 1,
    group: Any = None,
) -> float:
    """Seconds of a call by the slowest rank of the group, over as many as fill `fill_s`: the median
    of repeats."""

    def slowest_s(calls: int) -> float:
        mine = torch.tensor([elapsed_s(call, calls, device) / calls], device=device)
        dist.all_reduce(mine, dist.ReduceOp.MAX, group=group)  # a barrier as well
        return float(mine)

    slowest_s(1)
    calls = max(2, min(_MOST_CALLS, math.ceil(fill_s / max(slowest_s(2), 1e-6))))
    return statistics.median(slowest_s(calls) for _ in range(repeats))


def traced(
    step: Callable[[], object],
    steps: int,
    device: torch.device,
    directory: str,
    *,
    shapes: bool = False,
) -> Traced | None:
    """What torch's profiler sees in these steps, on this rank; None as of `read_trace`.

    shapes: whether `calls` is asked for, which makes the trace larger. directory: for its file,
    which is removed; of the run, as a killed rank removes nothing.
    """
    kinds = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    with torch.profiler.profile(activities=kinds, record_shapes=shapes) as profile:
        for _ in range(steps):
            step()
        finish(device)
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        return read_trace(Path(file.name).read_bytes())


def free_bytes_by_rank(device: torch.device) -> list[float]:
    """Bytes that each rank may allocate, by rank, the same on all.

    This is nine tenths of the free memory of the rank's device, divided by the ranks that share it:
    ranks on one GPU, or ranks of nodes that share one machine.
    """
    free, place = _free(device)
    every = by_rank([free, place], device)
    places = [place for _, place in every]
    return [_SHARE * free / places.count(place) for free, place in every]


def ranks_on_my_memory(device: torch.device) -> int:
    """Number of ranks, this one too, whose memory is that of this rank's device."""
    _, mine = _free(device)
    return [place for [place] in by_rank([mine], device)].count(mine)


def _free(device: torch.device) -> tuple[float, float]:
    """Free bytes of this rank's memory, and a number that identifies that memory."""
    boot = boot_id() or os.uname().nodename
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        properties = torch.cuda.get_device_properties(device)
        uuid = getattr(properties, "uuid", device.index)
        return float(free + reusable), _number(f"{boot} {uuid}")
    rooms = [psutil.virtual_memory().available, *read_memory_rooms()]
    return float(min(rooms)), _number(boot)


def _number(text: str) -> float:
    """A 48-bit hash of `text`, which a float holds exactly."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]))
