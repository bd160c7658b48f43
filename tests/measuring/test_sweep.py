"""A row's values follow from its times, and print like nccl-tests."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.certificate.results import charts_from_json, charts_to_json
from pytest_mnode.criteria.fabric import sweep_table
from pytest_mnode.measuring.collectives import ALL_REDUCE, COLLECTIVES
from pytest_mnode.measuring.limits import REPEAT_S
from pytest_mnode.measuring.ranks import by_rank
from pytest_mnode.measuring.sweep import (
    MOST_CALLS,
    Row,
    Sweep,
    Unmeasured,
    calls_of_a_repeat,
    sweep,
    too_large,
)

ROW = Row("all_reduce", 4, 4_000_000, 4_000_000, 1_000_000, 3, ((0.25, 0.20, 0.90),), 0)
UNEVEN = Row("all_gather", 3, 1 << 20, 1048572, 87381, 2, ((0.5, 0.5, 0.5),), 2)


def test_bandwidth_is_of_the_median_repeat() -> None:
    assert ROW.median_s == 0.25  # neither the best nor the mean, 0.45
    assert ROW.point.algbw_gbytes_s == pytest.approx(0.016)
    assert ROW.busbw_gbytes_s == pytest.approx(0.024)  # 2(4-1)/4 of it
    assert ROW.timed_bytes == 4_000_000 * 3 * 3


def test_bandwidth_counts_the_moved_bytes() -> None:
    assert UNEVEN.point.algbw_gbytes_s == pytest.approx(1048572 / 0.5 / 1e9)
    assert UNEVEN.busbw_gbytes_s == pytest.approx(1048572 / 0.5 / 1e9 * 2 / 3)
    assert UNEVEN.timed_bytes == 1048572 * 2 * 3


@pytest.mark.parametrize(("repeats", "p99_s"), [(1, 1), (5, 5), (99, 99), (100, 99), (200, 198)])
def test_p99_is_exceeded_by_one_repeat_in_a_hundred(repeats: int, p99_s: float) -> None:
    times_s = tuple(float(t) for t in range(repeats, 0, -1))
    row = Row("all_reduce", 4, 4, 4, 1, 1, (times_s[:2], times_s[2:]), 0)
    assert row.p99_s == p99_s


def test_bandwidth_is_the_mean_of_communicators_each_by_its_median() -> None:
    times_s = ((0.5, 0.1, 0.2), (0.2, 0.2, 0.9), (0.9, 0.2, 0.1))
    row = Row("all_reduce", 4, 4_000_000, 4_000_000, 1_000_000, 3, times_s, 0)
    assert row.busbw_gbytes_s == pytest.approx(0.03)  # of 0.2 s each
    assert row.timed_bytes == 4_000_000 * 3 * 9
    assert row.estimate is not None
    assert row.estimate.interval == pytest.approx((0.03, 0.03))
    assert row.point.repeats == 9
    assert row.point.algbw_gbytes_s == pytest.approx(0.02)
    assert row.point.times_us[2] == pytest.approx((900_000, 200_000, 100_000))
    assert ROW.estimate is None


def test_a_curve_has_every_row() -> None:
    found = Sweep(COLLECTIVES["all_reduce"], 4, (ROW,), (Unmeasured(1 << 40, "no room"),))
    curve = found.curve("ring", "gloo")
    named = (curve.collective, curve.algorithm, curve.backend, curve.ranks)
    assert named == ("all_reduce", "ring", "gloo", 4)
    [point] = curve.points
    assert point.busbw_gbytes_s == pytest.approx(0.024)
    assert (point.time_median_us, point.time_p99_us) == (250_000, 900_000)
    assert (point.time_min_us, point.time_max_us, point.repeats) == (200_000, 900_000, 3)
    assert charts_from_json(charts_to_json([curve])) == (curve,)


def test_table_has_the_columns_of_nccl_tests() -> None:
    text = sweep_table(Sweep(COLLECTIVES["all_reduce"], 4, (ROW,)))
    title, place, head, units, row = text.splitlines()
    assert title == "# all_reduce over 4 ranks"
    assert place.split() == ["#", "in-place", "repeats"]
    assert head.split()[1:10] == [
        *("size", "count", "type", "redop", "root"),
        *("time", "algbw", "busbw", "#wrong"),
    ]
    assert row.split() == [
        *("4000000", "1000000", "float", "sum", "-1"),
        *("250000", "0.016", "0.024", "0"),
        *("200000", "900000", "900000", "3×3"),
    ]
    assert len(head) == len(row)
    for end in (units.index("(us)") + 4, head.index("busbw") + 5, head.index("calls") + 5):
        assert row[end - 1] != " "
        assert row[end : end + 1] in {"", " "}


def test_table_has_moved_bytes_and_unmeasured_sizes() -> None:
    found = Sweep(COLLECTIVES["all_gather"], 3, (UNEVEN,), (Unmeasured(1 << 40, "no room for it"),))
    _, place, *_, row, left_out = sweep_table(found).splitlines()
    assert place.split() == ["#", "out-of-place", "repeats"]
    assert row.split()[:5] == ["1048572", "87381", "float", "none", "-1"]
    assert row.split()[8] == "2"
    assert left_out == "# 1099511627776 not measured: no room for it"


def test_a_size_is_skipped_if_one_rank_lacks_memory() -> None:
    gib = 1 << 30
    assert too_large(16 * gib, [20.0 * gib, 16.0 * gib]) is None
    assert too_large(32 * gib, [40.0 * gib, 20.0 * gib]) == (
        "needs 32 GiB on every rank, but rank 1 may allocate only 20 GiB"
    )


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
