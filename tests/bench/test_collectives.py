"""Each check is shown right data and data that is wrong in the ways collectives go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.bench.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST, elements, pattern

CPU = torch.device("cpu")
LENGTH = 2048
RANKS = 4


@pytest.fixture(autouse=True)
def _rank_1_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: RANKS)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)


def _held_by(rank: int) -> torch.Tensor:
    return pattern(LENGTH, CPU) + rank + 1


def _sum(ranks: list[int]) -> torch.Tensor:
    return torch.stack([_held_by(rank) for rank in ranks]).sum(0)


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        (_sum([0, 1, 2, 3]), 0),
        (_sum([3, 1, 0, 2]), 0),
        (_sum([0, 1, 3, 3]), LENGTH),  # rank 3 counted twice, rank 2 never
        (_held_by(1), LENGTH),  # nothing happened
        (_sum([0, 1, 2, 3]).roll(1024), LENGTH),  # chunks landed elsewhere
        (torch.full((LENGTH,), float("nan")), LENGTH),
        (_sum([0, 1, 2, 3]).index_fill(0, torch.tensor([7]), 0.0), 1),
    ],
)
def test_all_reduce(result: torch.Tensor, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda buffer: buffer.copy_(result))
    prepared = ALL_REDUCE.prepare(LENGTH * 4, CPU)
    prepared.fill()
    prepared.run()
    assert prepared.wrong() == wrong


@pytest.mark.parametrize(("sender", "wrong"), [(0, 0), (2, LENGTH)])
def test_broadcast(sender: int, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast", lambda buffer, src: buffer.copy_(_held_by(sender)))
    prepared = BROADCAST.prepare(LENGTH * 4, CPU)
    prepared.fill()
    prepared.run()
    assert prepared.wrong() == wrong


@pytest.mark.parametrize(
    ("source_of", "wrong"),
    [(lambda rank: rank, 0), (lambda rank: 0, 3 * LENGTH), (lambda rank: rank ^ 1, 4 * LENGTH)],
)
def test_all_gather(
    source_of: Callable[[int], int], wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_gather(parts: list[torch.Tensor], part: torch.Tensor) -> None:
        assert torch.equal(part, _held_by(1))
        for rank, into in enumerate(parts):
            into.copy_(_held_by(source_of(rank)))

    monkeypatch.setattr(dist, "all_gather", all_gather)
    prepared = ALL_GATHER.prepare(LENGTH * 4 * RANKS, CPU)  # the size is the total of the parts
    prepared.fill()
    prepared.run()
    assert prepared.wrong() == wrong


def test_sums_of_5000_ranks_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 5000)
    exact = pattern(LENGTH, CPU).double() * 5000 + 5000 * 5001 / 2
    monkeypatch.setattr(dist, "all_reduce", lambda buffer: buffer.copy_(exact))
    prepared = ALL_REDUCE.prepare(LENGTH * 4, CPU)
    prepared.fill()
    prepared.run()
    assert prepared.wrong() == 0
    assert exact.max() < 2**24


def test_a_size_below_one_value_is_refused() -> None:
    with pytest.raises(ValueError, match=r"size_bytes=3 holds no torch.float32 of 4 bytes"):
        elements(3)
