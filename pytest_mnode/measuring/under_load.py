"""All devices at work for a while, and what each shows of itself at the end of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.load_readings import (
    Reader,
    Sampler,
    Steady,
    cpu_reading,
    reader_of_gpu,
    steady,
)
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.numa import address_of
from pytest_mnode.measuring.ranks import barrier, finish, gathered
from pytest_mnode.rank import binding
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import LoadPromise

_SAMPLES = 60
"""Of a load at most; a sample takes NVML a millisecond, and nvidia-smi up to a second."""
_LEAST_EVERY_S = 0.05
_CALLS = 10


@dataclass(frozen=True, slots=True)
class RankLoad:
    """A rank's device under load. seen: None if nothing shows it, for the reason in `why`.

    place: number of the rank on its node; devices at one place are cooled alike.
    """

    name: Culprit
    place: int
    seen: Steady | None
    why: str = ""


def devices_under_load(
    promise: LoadPromise, world: World, device: torch.device
) -> tuple[RankLoad, ...]:
    """Matrix products on all devices at once, sampled meanwhile; by rank, the same on all.

    All ranks call this.
    """
    by, read, why = _reader(world, device)
    name, seen = rank_name(world, world.rank), None
    every_s = max(_LEAST_EVERY_S, promise.duration_s / _SAMPLES)
    barrier(device)
    try:
        if read is None:
            _work(promise, device)
        else:
            with Sampler(read, every_s) as sampler:
                _work(promise, device)
            seen = steady(by, sampler.samples) if sampler.samples else None
            why = "" if sampler.samples else f"{by} was not read once"
    except (RuntimeError, MemoryError) as error:
        seen, why = None, str(error).partition("\n")[0]
    return gathered(RankLoad(name, world.local_rank, seen, why))


def _reader(world: World, device: torch.device) -> tuple[str, Reader | None, str]:
    """Who shows this rank's device, how to read it, and why nobody does."""
    if device.type == "cpu":
        cpus = os.sched_getaffinity(0)
        if cpu_reading(cpus) is None:
            return "", None, "/sys shows no temperature, clock or throttling of processors"
        return "/sys", lambda: cpu_reading(cpus, Path("/")), ""
    address = address_of(world, device, binding.of_this_rank().shown)
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    by, read = reader_of_gpu(uuid, address, amd=torch.version.hip is not None)
    return by, read, by if read is None else ""


def _work(promise: LoadPromise, device: torch.device) -> None:
    kind: torch.dtype = getattr(torch, promise.dtype)
    a, b = (torch.randn(promise.size, promise.size, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)
    started = time.perf_counter()
    while time.perf_counter() - started < promise.duration_s:
        for _ in range(_CALLS):
            torch.mm(a, b, out=out)
        finish(device)
