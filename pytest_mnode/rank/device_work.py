"""The end of what a test began on its device."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest


class DeviceWork:
    """pytest plugin of a rank."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """A body that passed ends with its device's work."""
        __tracebackhide__ = True
        result = yield
        finish_device()
        return result


def finish_device() -> None:
    """Wait until the device has done all that this process began on it; fails the test where an
    error comes to light. About 10 µs where nothing is left to do.

    Kernels and collectives of NCCL go on after the call that began them has returned. One that
    fails, or waits for a rank that never calls it, would else do so in the next test.

    Its name stands in `outcome.stacks`, which knows by it that a rank waits here.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    failed = ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        failed = str(error).partition("\n")[0]
    if failed:  # outside of the handler, whose error would be shown once more
        pytest.fail(
            f"{failed}; it came to light when the body had ended: run with CUDA_LAUNCH_BLOCKING=1, "
            "which shows the line",
            pytrace=False,
        )
