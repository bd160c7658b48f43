"""Rates from a receiver's arrival times, and the ranks that represent each NIC."""

from __future__ import annotations

import pytest

from pytest_mnode.measuring.locating.pairs import Rails, chunk_bytes, payload_mbits_s
from pytest_mnode.measuring.locating.rounds import Flow, Round
from pytest_mnode.rank.world import World


def _world(rank: int, nodes: int, local_size: int) -> World:
    names = tuple(f"node{i}" for i in range(nodes))
    node = names[rank // local_size]
    return World(rank, nodes * local_size, rank % local_size, local_size, node, names)


def test_a_burst_at_the_start_does_not_count() -> None:
    steady = [0.1 * i for i in range(12)]
    assert payload_mbits_s(steady, 125_000) == pytest.approx(10)
    burst = [0.0, 0.0, 0.0, 0.0, *(0.1 * i for i in range(1, 9))]
    assert payload_mbits_s(burst, 125_000) == pytest.approx(10)


def test_a_connection_made_first_does_not_count() -> None:
    assert payload_mbits_s([5.0, 5.1, 5.2, 5.3], 125_000) == pytest.approx(10)


@pytest.mark.parametrize("arrived_s", [[], [1.0], [1.0, 1.0]])
def test_arrivals_that_cannot_be_timed_have_no_rate(arrived_s: list[float]) -> None:
    assert payload_mbits_s(arrived_s, 1000) == 0.0


@pytest.mark.parametrize(
    ("line_mbits_s", "size_bytes"), [(200, 125_000), (1, 64 << 10), (800_000, 256 << 20)]
)
def test_chunks_fit_the_line_and_memory(line_mbits_s: float, size_bytes: int) -> None:
    assert chunk_bytes(line_mbits_s) == size_bytes


@pytest.mark.parametrize(
    ("nics", "local_size", "ranks"),
    [(1, 1, [1]), (1, 8, [8]), (8, 8, [8, 9, 10, 11, 12, 13, 14, 15]), (4, 8, [8, 10, 12, 14]),
     (8, 2, [2, 3]), (3, 8, [8])],
)  # fmt: skip
def test_ranks_beside_the_nics(nics: int, local_size: int, ranks: list[int]) -> None:
    rails = Rails.of(_world(0, 2, local_size), nics)
    assert [rails.rank(1, rail) for rail in range(rails.count)] == ranks


@pytest.mark.parametrize(
    ("rank", "peers"), [(0, (4, None)), (4, (None, 0)), (1, (None, None)), (3, (None, None))]
)
def test_a_rank_sends_or_receives_for_its_own_rail(
    rank: int, peers: tuple[int | None, int | None]
) -> None:
    rails = Rails.of(_world(rank, 4, 2), 2)
    assert rails.peers(Round((Flow(0, 2, (0,)),), 1, "alone")) == peers
