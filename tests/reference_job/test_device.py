"""The device that a rank trains on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytest_mnode.errors import EnvironmentContractError
from pytest_mnode.reference_job.device import device_of


@pytest.fixture(autouse=True, params=[None, torch.device("cuda")], ids=["CPU build", "CUDA build"])
def _none(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: request.param)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_cpu_if_it_is_allowed(device: str) -> None:
    assert device_of(device, 1).type == "cpu"


def test_the_cpu_never_replaces_an_accelerator() -> None:
    with pytest.raises(EnvironmentContractError, match="shows no accelerator, and the job must"):
        device_of("accelerator", 0)


@pytest.mark.parametrize(("count", "number"), [(8, 3), (1, 0)])
def test_the_only_accelerator_that_a_rank_is_shown_is_its_own(
    monkeypatch: pytest.MonkeyPatch, count: int, number: int
) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(
        torch, "get_device_module", lambda _: SimpleNamespace(set_device=chosen.append)
    )
    assert device_of("auto", 3) == torch.device("cuda", number)
    assert chosen == [torch.device("cuda", number)]
