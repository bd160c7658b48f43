"""What a rank trains on, and how slow an emulated device is.

A node of the rack has /dev/shm to itself. The faults `slow_device` and `slow_input` leave a number
there, which a job with emulated computing obeys; on real accelerators these files are not read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import EnvironmentContractError

if TYPE_CHECKING:
    import torch

    from pytest_mnode.reference_job.config import JobConfig

COMPUTE_FACTOR = Path("/dev/shm/mnode-slow-device")
"""How many times as long as declared this node's emulated computing takes."""
INPUT_PAUSE = Path("/dev/shm/mnode-slow-input")
"""How many seconds longer this node's loader takes for each sample."""


def device_of(config: JobConfig, local_rank: int) -> torch.device:
    """This rank's device, set as the current one where it is an accelerator.

    Raises EnvironmentContractError where the config wants an accelerator and torch shows none: a
    job on CPUs would say nothing about the accelerators.
    """
    import torch

    if config.device == "cpu":
        return torch.device("cpu")
    # A build of torch for CUDA names cuda where there is no device.
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        if config.device == "accelerator":
            raise EnvironmentContractError(
                f"torch {torch.__version__} shows no accelerator, and the job is to train on one; "
                "look at the driver, at CUDA_VISIBLE_DEVICES, and whether this build of torch is "
                "one for CPUs"
            )
        return torch.device("cpu")
    device = torch.device(accelerator.type, local_rank)
    torch.get_device_module(device).set_device(device)
    return device


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
