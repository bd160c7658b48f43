"""Ranks are named beside pytest's summary if its lines have no room for them."""

from __future__ import annotations

import pytest

from pytest_mnode.outcome.ranks_repr import Part, RanksRepr, culprits_cut_off


def failed(name: str) -> pytest.TestReport:
    parts = (Part("rank 1 of 4 on local1: first", None, ""),)
    longrepr = RanksRepr(parts, "rank 1 of 4 on local1: assert 1 != 1\n  more", "", 0)
    where = ("test_a.py", 1, name)
    return pytest.TestReport(f"test_a.py::{name}", where, {}, "failed", longrepr, "call")  # type: ignore[arg-type]


def test_only_where_the_line_is_too_long() -> None:
    short, long = failed("test_x"), failed(f"test_{'y' * 50}")
    plain = pytest.TestReport("t.py::x", ("t.py", 1, "x"), {}, "failed", "text", "call")
    line = f"rank 1 of 4 on local1: assert 1 != 1 (test_{'y' * 50})"
    assert culprits_cut_off([short, long, plain], 80) == [line]
    assert culprits_cut_off([short, long, plain], 200) == []
