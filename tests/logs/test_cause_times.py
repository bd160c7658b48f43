"""Dates of log lines, with and without a year."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.causes.times import elapsed_s, time_of

DATED = "2026-12-31 23:59:00 step 9"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[Fri Jan  1 00:00:30 2027] mlx5_core: Link down", 90),
        ("[rank3]:[E0101 00:00:30.123456 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog", 90),
        ("E1231 23:58:00.1 torch/distributed/run.py:7] failed", -60),
        ("Jan  1 00:00:30 elm4 kernel: mlx5_core: Link down", 90),
    ],
)
def test_dates_of_all_kinds_are_compared(line: str, expected: float) -> None:
    first, second = time_of(DATED), time_of(line)
    assert first is not None
    assert second is not None
    assert (elapsed_s(first, second), elapsed_s(second, first)) == (expected, -expected)


@pytest.mark.parametrize("line", ["step 1129 10:20:00", "E1341 10:20:00 x", "[81.2] NVRM: Xid"])
def test_a_line_without_a_date(line: str) -> None:
    assert time_of(line) is None
