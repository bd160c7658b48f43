"""The ring and the tree of our own sum over any number of ranks, which are threads here."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_mnode.criteria.tuning import in_ranks

LIMIT_S = 20.0


@pytest.mark.parametrize("values", [1, 7, 64])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("how", ["ring", "tree"])
def test_every_rank_has_the_sum(
    how: str, ranks: int, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()
    mail: dict[tuple[int, int], SimpleQueue[torch.Tensor]] = defaultdict(SimpleQueue)

    def send(data: torch.Tensor, to: int, group: Any = None) -> None:
        mail[here.rank, to].put(data.clone())

    def receive(data: torch.Tensor, sender: int, group: Any = None) -> None:
        data.copy_(mail[sender, here.rank].get(timeout=LIMIT_S))

    def both(sent: Any, receiver: int, received: Any, sender: int, group: Any) -> None:
        send(sent, receiver)
        receive(received, sender)

    fake = SimpleNamespace(
        get_world_size=lambda: ranks, get_rank=lambda: here.rank, send=send, recv=receive
    )
    monkeypatch.setattr(in_ranks, "dist", fake)
    monkeypatch.setattr(in_ranks, "send_and_receive", both)
    for a in range(ranks):
        for b in range(ranks):
            assert mail[a, b].empty()  # made before the threads

    def run(rank: int) -> torch.Tensor:
        here.rank = rank
        mine = torch.arange(values, dtype=torch.float32) + 100 * rank
        getattr(in_ranks, how)(mine)
        return mine

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(run, range(ranks)))
    expected = ranks * torch.arange(values) + 100 * sum(range(ranks))
    for mine in found:
        assert torch.equal(mine, expected.float())
    assert all(one.empty() for one in mail.values())
