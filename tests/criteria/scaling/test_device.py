"""The device that ranks of the job train on."""

from __future__ import annotations

import pytest

from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.errors import EnvironmentContractError
from pytest_mnode.rank.world import World
from tests.criteria.scaling import made


@pytest.mark.parametrize(("per_node", "device"), [(8, "accelerator"), (0, "cpu")])
def test_ranks_get_the_device_to_train_on(per_node: int, device: str) -> None:
    plan = Plan(("node0", "node1"), 1, per_node, made.promise())
    assert plan.training["device"] == device


def test_ranks_refuse_to_train_on_cpus_in_place_of_accelerators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from pytest_mnode.criteria.scaling.program import train

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    world = World(0, 2, 0, 1, "node0", ("node0", "node1"))
    plan = Plan(("node0", "node1"), 1, 8, made.promise())
    with pytest.raises(EnvironmentContractError, match="shows no accelerator"):
        train(plan, world)
