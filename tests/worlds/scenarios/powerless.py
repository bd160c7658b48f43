"""A node that is switched off under a test, on the rack."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist


def test_next(rank: int, world_size: int, process_group: Any, after: str) -> None:
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))


def test_power_cut(rank: int, process_group: Any) -> None:
    dist.barrier()  # all ranks are in the test
    if rank == 0:
        Path(os.environ["SCENARIO_NOTES"], "power_cut").touch()
    for _ in range(6000):
        time.sleep(0.01)
        dist.barrier()
