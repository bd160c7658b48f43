"""Whose messages came wrong."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.bench.mesh import Exchange, exchange, message, wrong_messages
from pytest_mnode.world.contract import World

WORLD = World(0, 4, 0, 2, "node0", ("node0", "node1"))


def test_flags_of_receivers_become_messages() -> None:
    assert wrong_messages([[0, 0, 1], [0, 0, 1], [0, 0, 0]]) == ((2, 0), (2, 1))


@pytest.mark.parametrize(
    ("wrong", "right", "culprit"),
    [
        ((), 12, None),
        (((2, 0), (2, 1), (3, 2)), 9, "rank 2 on node1"),
        (((2, 0),), 11, "rank 2 on node1 → rank 0 on node0"),
        (
            ((0, 1), (2, 3)),
            10,
            "rank 0 on node0 → rank 1 on node0, rank 2 on node1 → rank 3 on node1",
        ),
    ],
)
def test_the_rank_in_all_wrong_messages_is_named(
    wrong: tuple[tuple[int, int], ...], right: int, culprit: str | None
) -> None:
    assert (Exchange(WORLD, wrong).right, Exchange(WORLD, wrong).culprit) == (right, culprit)


def test_one_rank_alone_does_not_pass() -> None:
    with pytest.raises(ValueError, match="one rank has nobody to meet; give two nodes or more"):
        exchange(World(0, 1, 0, 1, "node0", ("node0",)), torch.device("cpu"))


def test_no_two_messages_share_a_value() -> None:
    values = torch.cat([message(a, b, 4, torch.device("cpu")) for a in range(4) for b in range(4)])
    assert len(set(values.tolist())) == len(values)
