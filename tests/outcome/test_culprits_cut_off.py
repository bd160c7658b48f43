"""Ranks are named beside pytest's summary if its lines have no room for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.outcome.ranks_repr import Part, RanksRepr, RanksReprHooks, culprits_cut_off


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


class Terminal:
    """What a terminal's reporter shows, and the reports that it has."""

    def __init__(self, **reports: list[pytest.TestReport]) -> None:
        self.getreports = lambda kind: reports.get(kind, [])
        self.lines: list[str] = []
        self._tw = SimpleNamespace(fullwidth=80)

    def write_line(self, line: str, **_: bool) -> None:
        self.lines.append(line)


def shown(verbosity: int, **reports: list[pytest.TestReport]) -> list[str]:
    terminal = Terminal(**reports)
    config: Any = SimpleNamespace(get_verbosity=lambda: verbosity)
    RanksReprHooks().pytest_terminal_summary(terminal, config)
    return terminal.lines


def test_the_terminal_shows_a_few_of_them_once_and_none_if_pytest_cuts_nothing_off() -> None:
    long = [failed(f"test_{'y' * 50}{number}") for number in range(25)]
    lines = shown(0, error=long[:1], failed=long[1:2])
    assert [line[:36] for line in lines] == ["mnode: rank 1 of 4 on local1: assert"] * 2
    assert [len(line) for line in lines] == [80, 80]
    assert 2 < len(shown(0, failed=long)) < len(long)
    assert shown(2, failed=long) == []
