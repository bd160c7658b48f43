"""What is wrong with a node's emulated accelerator and loader, as the rack's faults leave it.

A node of the rack has /dev/shm to itself. The faults `slow_device` and `slow_input` leave a number
there, and a job whose compute is emulated heeds it; on real accelerators nobody reads these files.
"""

from __future__ import annotations

import math
from pathlib import Path

COMPUTE_FACTOR = Path("/dev/shm/mnode-slow-device")
"""Holds how many times as long as declared this node's emulated compute takes."""
INPUT_PAUSE = Path("/dev/shm/mnode-slow-input")
"""Holds how many seconds this node's loader takes longer for each sample."""


def compute_factor() -> float:
    """How many times as long as declared compute takes on this node; 1 on a healthy one."""
    return _number(COMPUTE_FACTOR, 1.0)


def input_pause_s() -> float:
    """Seconds that this node's loader takes longer for each sample; 0 on a healthy one."""
    return _number(INPUT_PAUSE, 0.0)


def _number(path: Path, healthy: float) -> float:
    try:
        value = float(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return healthy
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{path}: {value} is not a finite number of 0 or more")
    return value
