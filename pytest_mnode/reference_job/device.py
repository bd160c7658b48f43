"""What a rank trains on: what its config says, and never something else instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.errors import EnvironmentContractError

if TYPE_CHECKING:
    import torch

    from pytest_mnode.reference_job.config import JobConfig


def device_of(config: JobConfig, local_rank: int) -> torch.device:
    """This rank's device, set as the current one where it is an accelerator.

    Raises EnvironmentContractError where an accelerator is asked for and torch shows none: a job
    that computes on CPUs instead says nothing of the accelerators.
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
