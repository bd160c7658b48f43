"""Ranks that agree by votes, over a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from pytest_mnode.rank.votes import Votes


def test_ranks_agree_and_leave_nothing() -> None:
    store = HashStore()
    ranks = [Votes(store, "test", rank, 3) for rank in range(3)]

    def agree_often(votes: Votes) -> list[int]:
        return [votes.agree(votes._rank + number, max, 60) for number in range(20)]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(agree_often, ranks))
    assert found == [[number + 2 for number in range(20)]] * 3
    for votes in ranks:
        votes.close()
    assert store.num_keys() == 0


def test_the_store_is_empty_before_rank_0_votes() -> None:
    """Rank 0 counts the keys before its test begins."""
    store = HashStore()
    with pytest.raises(TimeoutError, match="not all ranks voted within 0 s"):
        Votes(store, "test", 1, 2).agree(1, max, 0.05)
    assert store.num_keys() == 0
