"""Times of whole commands: which runs count, and the written section."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import guard, wall_clock
from benchmarks.peers import Ran, Stamp
from benchmarks.wall_clock import HEADING, Times, section, times, without_section


def ran(seconds: float, tests: int, *, code: int = 0) -> Ran:
    stamps = tuple(Stamp("end", 0, 42, 100.0) for _ in range(tests))
    return Ran(guard.Finished(code, 100.0, 100.0 + seconds, "", ()), stamps, ())


def peer(name: str, *runs: Ran, missing: str = "") -> Any:
    left = iter(runs)
    return SimpleNamespace(name=name, missing=missing, run=lambda *_, **__: next(left))


def measured(monkeypatch: pytest.MonkeyPatch, tests: int, peers: Sequence[Any]) -> list[Times]:
    monkeypatch.setattr(wall_clock, "PEERS", peers)
    monkeypatch.setattr(wall_clock, "TESTS", (tests,))
    return times(2)


def test_a_run_counts_if_all_its_tests_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [
        peer("first is left out", ran(99, 3), ran(2, 3), ran(4, 3)),
        peer("fewer ran", ran(9, 3), ran(1, 2), ran(5, 3)),
        peer("failed", ran(9, 3), ran(5, 3), ran(1, 3, code=1)),
        peer("absent", missing="expecttest"),
    ]
    assert measured(monkeypatch, 3, peers) == [
        Times(3, "first is left out", (2.0, 4.0)),
        Times(3, "fewer ran", (5.0,), "not counted: 2 of 3 tests ended, the command with 0"),
        Times(3, "failed", (5.0,), "not counted: 3 of 3 tests ended, the command with 1"),
        Times(3, "absent", (), "not installed: expecttest"),
    ]


def test_the_page_has_one_section(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(
        monkeypatch,
        1,
        [peer("ours", *[ran(2, 1)] * 3), peer("theirs", ran(9, 1), ran(4, 1), ran(6, 1))],
    )
    text = section(found, "2 cores")
    assert "2 cores." in text
    assert "| 1 | theirs | 5.0 | 4.0 – 6.0 | 2.50 × | 2 |" in text
    assert without_section(f"before\n\n{text}") == ("before\n\n", text)
    assert without_section("before\n") == ("before\n", "")
    assert text.startswith(HEADING)
