"""One rank of a job that measures busbw; arguments: file for the result, seconds per collective."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

SIZE_BYTES = 8 << 20
WARM_UP = 2


def main() -> None:
    result, seconds = Path(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(SIZE_BYTES // 4)
    dist.all_reduce(x)
    assert x[0].item() == x[-1].item() == size

    def all_reduce() -> None:
        dist.all_reduce(x.fill_(1.0))

    def send() -> None:
        if rank == 0:
            dist.send(x, 1)
            dist.recv(x[:1], 1)  # a send is complete when its data has arrived
        elif rank == 1:
            dist.recv(x, 0)
            dist.send(x[:1], 0)

    busbw = {
        "all_reduce": _mbit_s(all_reduce, seconds) * 2 * (size - 1) / size,
        "send": _mbit_s(send, seconds),
    }
    if rank == 0:
        result.write_text(json.dumps(busbw))
    dist.destroy_process_group()


def _mbit_s(collective: Callable[[], None], seconds: float) -> float:
    """Median rate of the repeats within `seconds` of rank 0's clock, of at least three."""
    times: list[float] = []
    go_on = torch.ones(1)
    end = time.monotonic() + seconds
    while go_on.item():
        dist.barrier()
        start = time.perf_counter()
        collective()
        times.append(time.perf_counter() - start)
        go_on.fill_(float(time.monotonic() < end or len(times) < WARM_UP + 3))
        dist.broadcast(go_on, 0)
    return SIZE_BYTES * 8 / statistics.median(times[WARM_UP:]) / 1e6


if __name__ == "__main__":
    main()
