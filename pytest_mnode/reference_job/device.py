"""The device that a rank trains on, and the slowdown of an emulated device.

A node of the rack has its own /dev/shm. The faults `slow_device` and `slow_input` write a number
there: a job with emulated compute applies the factor, and every job applies the pause.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import EnvironmentContractError

if TYPE_CHECKING:
    import torch

COMPUTE_FACTOR = Path("/dev/shm/mnode-slow-device")
"""File with the factor by which this node's emulated compute takes longer than declared."""
INPUT_PAUSE = Path("/dev/shm/mnode-slow-input")
"""File with the additional seconds that this node's loader takes for each sample."""


def device_of(wanted: str, local_rank: int) -> torch.device:
    """This rank's device, set as the current device if it is an accelerator. wanted: of JobConfig.

    Raises EnvironmentContractError if an accelerator is wanted and torch shows none: a job on CPUs
    would say nothing about the accelerators.
    """
    import torch

    if wanted == "cpu":
        return torch.device("cpu")
    # A CUDA build of torch names cuda even if there is no device.
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        if wanted == "accelerator":
            raise EnvironmentContractError(
                f"torch {torch.__version__} shows no accelerator, and the job must train on one; "
                "check the driver, CUDA_VISIBLE_DEVICES, and whether this build of torch is only "
                "for CPUs"
            )
        return torch.device("cpu")
    # A scheduler may show each rank only its own accelerator, which is number 0 there.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    torch.get_device_module(device).set_device(device)
    return device


def _number(path: Path, healthy: float) -> float:
    try:
        value = float(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return healthy
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{path}: {value} is not a finite number of 0 or more")
    return value


compute_factor = functools.partial(_number, COMPUTE_FACTOR, 1.0)
"""Factor by which compute takes longer than declared on this node; 1 on a healthy one."""
input_pause_s = functools.partial(_number, INPUT_PAUSE, 0.0)
"""Additional seconds of this node's loader for each sample; 0 on a healthy node."""
