"""Variables of torchrun in a rank, and errors for a contradictory environment."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import EnvironmentContractError
from pytest_mnode.rank.world import World

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
}
NODES = ("node0", "node1")


def test_a_world_is_read_from_torchruns_variables() -> None:
    assert World.from_env(TORCHRUN, NODES) == World(3, 4, 1, 2, "node1", NODES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "16"}, "RANK=16 is outside WORLD_SIZE=4"),
        ({"RANK": "one"}, "RANK='one' is not a number"),
        ({"RANK": "-1"}, "RANK=-1 is below 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 is below 1"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is outside LOCAL_WORLD_SIZE=2"),
        ({"GROUP_RANK": "2"}, "GROUP_RANK=2 is outside the number of nodes=2"),
        ({"RANK": "1"}, "RANK=1 with LOCAL_WORLD_SIZE=2 is not on node GROUP_RANK=1"),
    ],
)
def test_a_wrong_variable_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(EnvironmentContractError, match=message):
        World.from_env(TORCHRUN | change, NODES)


@pytest.mark.parametrize("name", sorted(TORCHRUN))
def test_an_absent_variable_is_an_error_and_not_zero(name: str) -> None:
    env = {k: v for k, v in TORCHRUN.items() if k != name}
    with pytest.raises(EnvironmentContractError, match=f"{name} is not set"):
        World.from_env(env, NODES)
