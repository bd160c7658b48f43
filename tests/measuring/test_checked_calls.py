"""Which of the timed calls are checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.checked_calls import Spots, Timed, chosen_calls
from pytest_mnode.spec.bandwidth import Collective


@pytest.mark.parametrize(
    ("calls", "call_s", "looked_at"),
    [(1, 0.3, 0), (2, 0.2, 1), (60, 4e-3, 59), (36, 7e-3, 35), (1000, 1e-4, 50), (1000, 25e-6, 12)],
)
def test_checked_calls_cost_at_most_a_hundredth(calls: int, call_s: float, looked_at: int) -> None:
    chosen = chosen_calls(calls, call_s, seed=3)
    assert len(chosen) == looked_at
    assert chosen <= set(range(calls - 1))


def test_repeats_check_different_calls_and_ranks_the_same_ones() -> None:
    chosen = [chosen_calls(1000, 1e-4, seed) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_faults_of_any_period_are_found() -> None:
    for every in range(2, 60):
        looked_at = [chosen_calls(1000, 1e-4, turn) for turn in range(13, 18)]
        assert any(call % every == 0 for chosen in looked_at for call in chosen), every


def test_all_calls_of_a_repeat_run_and_those_chosen_are_checked() -> None:
    timed: Any = Timed.__new__(Timed)
    timed.chosen, timed.spots, timed._prepared, timed._calls = {2, 5}, Mock(), Mock(), 10
    timed()
    assert timed._prepared.run_scratch.call_count == 9
    assert timed._prepared.run.call_count == 1
    assert timed.spots.mock_calls == [
        *(call.set(0), call.keep(0), call.set(1), call.keep(1)),
        call.restore(),
    ]


def test_repeats_set_different_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    touched = []
    for turn in (0, 1):
        sent, received = torch.zeros(1, 2**20), torch.zeros(1, 2**20)
        prepared: Any = SimpleNamespace(spot_buffers=lambda both=(sent, received): both, step=1)
        spots = Spots(prepared, Collective.BROADCAST, calls=1, turn=turn)
        spots.set(0)
        touched.append(set(sent.nonzero()[:, 1].tolist()))
        spots.restore()
        assert not sent.any()
    assert touched[0]
    assert touched[1]
    assert touched[0].isdisjoint(touched[1])


@pytest.mark.parametrize("step", [1, 2])
def test_values_of_an_exchange_come_from_the_rank_that_many_before(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    buffers = [(torch.zeros(1, 64), torch.zeros(1, 64)) for _ in range(4)]
    spots = []
    for rank, both in enumerate(buffers):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        prepared: Any = SimpleNamespace(spot_buffers=lambda both=both: both, step=step)
        spots.append(Spots(prepared, Collective.SEND_RECV, calls=1, turn=0))
        spots[-1].set(0)
    wrong = []
    for rank, (_, received) in enumerate(buffers):
        received.copy_(buffers[rank - 1][0])
        spots[rank].keep(0)
        wrong.append(bool(spots[rank].wrong().any()))
    assert wrong == [step != 1] * 4
