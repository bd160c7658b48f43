"""Ranks that agree by votes, over a store."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


class _Writes:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("key", ["0", "answer"])
def test_what_others_wrote_into_the_store_runs_nothing(tmp_path: Path, key: str) -> None:
    """Every user of the machine can connect to a TCPStore."""
    store, written = HashStore(), tmp_path / "ran"
    votes = Votes(store, "test", 0, 1 if key == "answer" else 2)
    keys = {"0": votes._ballot(1), "answer": votes._answer(1)}
    real: Any = store.set

    class Spoiled:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def set(self, name: str, value: Any) -> None:
            real(name, pickle.dumps(_Writes(written)) if name == keys[key] else value)

    votes._store = Spoiled()
    if key == "0":
        store.add("mnode-votes/test/count", 1)
        real(keys[key], pickle.dumps(_Writes(written)))
    with pytest.raises(ValueError, match=r"codec|Expecting"):
        votes.agree(1, max, 5)
    assert not written.exists()
