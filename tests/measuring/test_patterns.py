"""Values are exact whatever the number of ranks, and pieces join without a seam."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.measuring import patterns
from pytest_mnode.measuring.patterns import Copied, Pattern, Summed

CPU = torch.device("cpu")
LENGTH = 3000


@pytest.mark.parametrize("ranks", [2, 3, 509, 1021, 5000, 32000])
def test_sums_are_exact(ranks: int) -> None:
    values = Summed(ranks, LENGTH, CPU)
    total, one = torch.zeros(LENGTH, dtype=torch.float64), torch.empty(LENGTH)
    for rank in range(ranks):
        values.fill(one, rank, phase=5)
        total += one
    assert total.max() < 2**24
    assert values.wrong(total.float(), phase=5) == 0
    values.fill(one, 0, phase=5)
    assert values.wrong((total - one).float(), phase=5) == LENGTH  # rank 0 is missing
    assert values.wrong(total.float(), phase=6) == LENGTH


@pytest.mark.parametrize("ranks", [2, 8, 5000])
def test_every_rank_of_a_sum_has_a_number_of_its_own(ranks: int) -> None:
    values = Summed(ranks, 1, CPU)
    assert len({values._number(rank) for rank in range(ranks)}) == ranks


def test_no_two_messages_share_a_value() -> None:
    values = Copied(509, CPU)
    messages = torch.empty(64, 509)
    for number, message in enumerate(messages):
        values.fill(message, number)
    assert len(set(messages.flatten().tolist())) == messages.numel()
    values.fill(messages[0], 8000)
    assert messages[0].max() < 2**24


def test_pieces_are_of_one_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_PIECE", 40)
    pattern = Pattern(7, LENGTH, CPU)
    values = torch.empty(LENGTH)
    pattern.fill(values, plus=3, phase=9)
    expected = (torch.arange(LENGTH) + 9) % 7 + 3
    assert torch.equal(values, expected.float())
    assert pattern.wrong(values * 2, plus=6, times=2, phase=9) == 0
    values[-1] = 0
    values[40] = float("nan")
    assert pattern.wrong(values, plus=3, phase=9) == 2
