"""The device that a rank trains on."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.errors import EnvironmentContractError
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.device import device_of


@pytest.fixture(autouse=True, params=[None, torch.device("cuda")], ids=["CPU build", "CUDA build"])
def _none(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: request.param)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_cpu_if_it_is_allowed(device: str) -> None:
    assert device_of(JobConfig("run", device=device), 1).type == "cpu"


def test_the_cpu_never_replaces_an_accelerator() -> None:
    with pytest.raises(EnvironmentContractError, match="shows no accelerator, and the job must"):
        device_of(JobConfig("run", device="accelerator"), 0)
