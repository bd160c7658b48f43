"""Tests of ranks on real GPUs. They are skipped where torch sees none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
