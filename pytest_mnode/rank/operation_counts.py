"""Records how many operations the process groups of a rank have begun.

`recorder` sees the collectives that Python calls. DistributedDataParallel and functional
collectives begin theirs in C++, and on a device the call returns at once, so that no stack shows in
which one a rank waits. The backend counts them all.
"""

from __future__ import annotations

import contextlib
import threading
from time import sleep  # a test may replace time.sleep
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_mnode.rank.recorder import Recorder

OPERATION_COUNTS = "mnode-operation-counts"
"""Name of the thread."""
_PERIOD_S = 0.25


def start() -> None:
    """Record the counts from now on, in a thread: the main thread may wait for its device."""
    if all(thread.name != OPERATION_COUNTS for thread in threading.enumerate()):
        threading.Thread(target=_record_for_ever, name=OPERATION_COUNTS, daemon=True).start()


def record() -> None:
    """Record the counts once."""
    recorder = Recorder.current
    if recorder is None or not dist.is_initialized():
        return
    groups: list[Any] = list(distributed_c10d._world.pg_map)
    for group in groups:
        # Not every backend counts, and the group may be destroyed meanwhile.
        with contextlib.suppress(RuntimeError, ValueError, KeyError):
            recorder.count(group, group._get_sequence_number_for_group())


def _record_for_ever() -> None:
    while True:
        sleep(_PERIOD_S)
        record()
