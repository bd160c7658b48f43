"""A row's numbers follow from its times, and read as nccl-tests prints them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.bench.agree import by_rank
from pytest_mnode.bench.collectives import ALL_REDUCE
from pytest_mnode.bench.sweep import MOST_CALLS, REPEAT_S, Row, Sweep, calls_of_a_repeat, sweep

ROW = Row("all_reduce", 4, 4_000_000, 3, (0.25, 0.20, 0.90), 0)


def test_bandwidth_is_of_the_median_repeat() -> None:
    assert ROW.median_s == 0.25  # neither the best nor the mean, 0.45
    assert ROW.algbw_gbytes_s == pytest.approx(0.016)
    assert ROW.busbw_gbytes_s == pytest.approx(0.024)  # 2(4-1)/4 of it
    assert ROW.timed_bytes == 4_000_000 * 3 * 3


def test_table_has_the_columns_of_nccl_tests() -> None:
    head, row = Sweep((ROW,)).table().splitlines()
    assert head.split("  ")[-1].strip() == "#wrong"
    assert row.split() == [
        *("4000000", "3"),
        *("200000.0", "250000.0", "900000.0"),
        *("0.016", "0.024", "0"),
    ]
    assert len(head) == len(row)


@pytest.mark.parametrize(
    ("call_s", "calls"),
    [(REPEAT_S / 10, 10), (REPEAT_S * 4, 1), (REPEAT_S / 2.5, 3), (1e-9, MOST_CALLS)],
)
def test_short_calls_are_repeated_until_they_fill_the_time(call_s: float, calls: int) -> None:
    assert calls_of_a_repeat(call_s) == calls


def test_one_rank_alone_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    with pytest.raises(ValueError, match="all_reduce over one rank moves nothing; give two nodes"):
        sweep(ALL_REDUCE, [1024], warmup=1, repeats=1, device=torch.device("cpu"))


def test_an_exchange_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks that exchange nothing do not wait"):
        by_rank([], torch.device("cpu"))
