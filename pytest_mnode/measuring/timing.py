"""How long calls take on this rank: by the device's own events where it has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def finish(device: torch.device) -> None:
    """Wait for all work of the device; on a CPU there is none outstanding."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def elapsed_s(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds from before the first to after the last of `calls` calls in a row.

    On a GPU between two events of the current stream, which collectives join; elsewhere by the
    clock, with the device's work finished at both ends.
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
