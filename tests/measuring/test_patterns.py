"""Patterns: exact values for any number of ranks, and pieces that join without a gap."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.measuring import patterns
from pytest_mnode.measuring.patterns import Copied, Pattern, Summed

CPU = torch.device("cpu")
LENGTH = 3000


def _total(values: Summed, ranks: int, phase: int) -> torch.Tensor:
    total, one = torch.zeros(LENGTH, dtype=torch.float64), torch.empty(LENGTH)
    for rank in range(ranks):
        values.fill(one, rank, phase=phase)
        total += one
    assert total.max() < 2**24
    return total.float()


@pytest.mark.parametrize("ranks", [2, 3, 509, 1021, 5000, 32000])
def test_sums_are_exact(ranks: int) -> None:
    values, one = Summed(ranks, LENGTH, CPU), torch.empty(LENGTH)
    total = _total(values, ranks, phase=6)
    assert values.wrong(total, 0, 6).sum() == 0
    values.fill(one, 0, phase=6)
    found = values.wrong(total - one, 0, 6)  # the value of rank 0 is missing
    assert [int(found[-1]), int(found.sum())] == [LENGTH] * 2  # the sender is unknown
    assert values.wrong(total, 0, 8).sum() == LENGTH


@pytest.mark.parametrize("ranks", [2, 3, 7, 5000])
def test_a_sum_of_values_of_single_ranks_names_the_wrong_rank(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "_PIECE", 600)
    values, one = Summed(ranks, LENGTH, CPU), torch.empty(LENGTH)
    total = _total(values, ranks, phase=5)
    assert values.wrong(total, 0, 5).sum() == 0
    values.fill(one, 1, phase=5)
    found = values.wrong(total - one, 0, 5)
    assert found.nonzero().flatten().tolist() == ([1] if (one != 0).any() else [])
    assert found[1] == (one != 0).sum()
    assert values.wrong(total, 0, 7).sum() >= LENGTH * 0.99


@pytest.mark.parametrize("ranks", [2, 8, 5000])
def test_every_rank_adds_a_different_number(ranks: int) -> None:
    values = Summed(ranks, 1, CPU)
    assert len({values._number(rank) for rank in range(ranks)}) == ranks


def test_no_two_messages_share_a_value() -> None:
    values = Copied(4, 509, CPU)
    messages = torch.empty(64, 509)
    for number, message in enumerate(messages):
        values.fill(message, number)
    assert len(set(messages.flatten().tolist())) == messages.numel()
    values.fill(messages[0], 8000)
    assert messages[0].max() < 2**24


def test_pieces_belong_to_one_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_PIECE", 40)
    pattern = Pattern(7, LENGTH, CPU)
    values = torch.empty(LENGTH)
    pattern.fill(values, plus=3, phase=9)
    expected = (torch.arange(LENGTH) + 9) % 7 + 3
    assert torch.equal(values, expected.float())
    assert not torch.cat(list(pattern.wrong(values * 2, plus=6, times=2, phase=9))).numel()
    values[-1] = 0
    values[40] = float("nan")
    assert torch.cat(list(pattern.wrong(values, plus=3, phase=9))).tolist() == [40, LENGTH - 1]
