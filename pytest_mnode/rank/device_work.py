"""Wait for the work that a test began on its device."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_mnode.rank import operation_counts


def finish_device() -> None:
    """Wait until the device has finished this process's work; fail the test if that fails.

    Takes about 10 µs if the device is idle. Kernels and NCCL collectives continue after the call
    that began them has returned. Without this wait, a kernel that fails, or a collective that
    another rank never calls, would disturb the next test. `outcome.stacks` recognises a waiting
    rank by the name of this function.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    operation_counts.record()  # exact before this rank says that it has ended the body
    failed = ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        failed = str(error).partition("\n")[0]
    if failed:  # outside the handler, whose error pytest would show as well
        pytest.fail(
            f"{failed}; it came to light when the body had ended: run with CUDA_LAUNCH_BLOCKING=1, "
            "which shows the line",
            pytrace=False,
        )
