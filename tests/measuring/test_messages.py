"""The ranks whose messages arrived wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring import checked_calls
from pytest_mnode.measuring.messages import Exchange, exchange, message, sums, wrong_messages
from pytest_mnode.measuring.naming import culprit_of_collective
from pytest_mnode.rank.world import World

WORLD = World(0, 4, 0, 2, "node0", ("node0", "node1"))


def test_flags_of_receivers_are_mapped_to_messages() -> None:
    assert wrong_messages([[0, 0, 1], [0, 0, 1], [0, 0, 0]]) == ((2, 0), (2, 1))


@pytest.mark.parametrize(
    ("wrong", "right", "culprit"),
    [
        ((), 12, None),
        (((2, 0), (2, 1), (3, 2)), 9, "rank 2 on node1"),
        (((2, 0),), 11, "rank 2 on node1 → rank 0 on node0"),
        (
            *(((0, 1), (2, 3)), 10),
            "rank 0 on node0 → rank 1 on node0, rank 2 on node1 → rank 3 on node1",
        ),
    ],
)
def test_the_rank_in_all_wrong_messages_is_named(
    wrong: tuple[tuple[int, int], ...], right: int, culprit: str | None
) -> None:
    assert (Exchange(WORLD, wrong).right, Exchange(WORLD, wrong).culprit) == (right, culprit)


@pytest.mark.parametrize(
    ("collective", "ranks", "senders", "culprit"),
    [
        ("send_recv", (3,), (2,), "rank 2 on node1 → rank 3 on node1"),
        ("send_recv", (0, 3), (2, 3), "rank 3 on node1"),
        ("send_recv", (0,), (2,), "rank 2 on node1 → rank 0 on node0"),  # by rails
        ("send_recv", (3,), (), "rank 3 on node1: wrong results there, right results on 3 other"),
        ("all_to_all", (3,), (2,), "rank 2 on node1 → rank 3 on node1"),
        ("all_to_all", (3,), (0, 1, 2), "rank 3 on node1: wrong results there"),
        ("all_to_all", (1, 3), (2,), "rank 2 on node1: the values of this rank are wrong"),
        ("broadcast", (3,), (0,), "rank 3 on node1: wrong results there"),
    ],
)
def test_an_end_of_a_message_is_blamed_only_if_others_had_the_same_values(
    collective: str, ranks: tuple[int, ...], senders: tuple[int, ...], culprit: str
) -> None:
    found = culprit_of_collective(WORLD, collective, ranks, senders)
    assert found is not None
    assert found.startswith(culprit)
    assert bool(found.nodes) is ("→" not in found)


@pytest.mark.parametrize(
    ("nodes", "senders", "sure", "either"),
    [
        (2, (0,), set(), {"node0", "node1"}),  # no third node had the same values
        (2, (0, 1), set(), {"node0", "node1"}),
        (3, (0, 1), {"node0"}, set()),
        (3, (0,), {"node0"}, set()),
    ],
)
def test_values_of_one_node_that_are_wrong_on_all_others(
    nodes: int, senders: tuple[int, ...], sure: set[str], either: set[str]
) -> None:
    world = World(0, 2 * nodes, 0, 2, "node0", tuple(f"node{i}" for i in range(nodes)))
    found = culprit_of_collective(world, "all_gather", range(2, 2 * nodes), senders)
    assert found is not None
    assert (set(found.nodes), set[str]().union(*found.either)) == (sure, either)


def test_one_rank_alone_does_not_pass() -> None:
    with pytest.raises(ValueError, match="one rank has no partner to exchange with; give two"):
        exchange(World(0, 1, 0, 1, "node0", ("node0",)), torch.device("cpu"))


def test_no_two_messages_share_a_value() -> None:
    values = torch.cat([message(a, b, 4, torch.device("cpu")) for a in range(4) for b in range(4)])
    assert len(set(values.tolist())) == len(values)


@pytest.mark.parametrize("ranks", [4, 4096])
@pytest.mark.parametrize(("positions", "one_sender"), [([], False), ([5], True), ([5, 6], False)])
def test_sums_of_many_ranks_exchange_a_few_numbers_each(
    monkeypatch: pytest.MonkeyPatch, ranks: int, positions: list[int], one_sender: bool
) -> None:
    """All ranks have the same wrong positions, caused by one sender or by several."""
    sent: list[int] = []
    turns = iter(range(100))

    def all_reduce(total: torch.Tensor) -> None:
        turn = next(turns)
        total.copy_((torch.arange(4096) + 31 * turn) % 101 + 1)
        if turn == 0:
            total[positions] += 1

    def by_rank(mine: Any, _: object) -> list[list[float]]:
        sent.append(len(mine))
        return [list(map(float, mine))] * ranks

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(checked_calls, "by_rank", by_rank)
    world = World(0, ranks, 0, 1, "node0", tuple(f"node{i}" for i in range(ranks)))
    found = sums(world, "float32", torch.device("cpu"))
    assert sent == [3]
    assert found.wrong == len(positions) * ranks
    sender = 5 % ranks
    wrong = "the values of this rank are wrong in the results of all ranks"
    named = f"rank {sender} on node{sender}: {wrong}"
    everywhere = "unknown: the results of all ranks are wrong, so any of them may send wrong values"
    assert found.culprit == (named if one_sender else everywhere if positions else None)
