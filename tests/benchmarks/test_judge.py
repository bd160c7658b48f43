"""The outcome of a peer's run is read from its records."""

from typing import Any

import pytest

from benchmarks import guard, judge, table
from benchmarks.peers import Ran, Stamp


def ran(*records: dict[str, Any], code: int | None = 1, left: tuple[str, ...] = ()) -> Ran:
    stamps = (Stamp("fault", 1, 42, 100.0),)
    return Ran(guard.Finished(code, 90.0, 120.0, "", left), stamps, records)


def report(
    test: str, outcome: str, *, when: str = "call", text: str = "", time: float = 101.5
) -> dict[str, Any]:
    return {"test": test, "when": when, "outcome": outcome, "text": text, "time": time}


def test_one_failed_report_among_passed_ones_fails() -> None:
    cell = judge.cell(
        ran(
            report("test_0000_faulty", "passed", when="setup"),
            report("test_0000_faulty", "passed"),
            report("test_0000_faulty", "failed", text="rank 1 on node2 exited with 3"),
            report("test_0001_following", "passed"),
        ),
        60.0,
    )
    assert (cell.outcome, cell.seconds, cell.named, cell.following) == ("failed", 1.5, 1, "passed")
    assert cell.text == "**failed** in 1.5 s; names rank 1; next test passed; exit 1"


def test_a_passed_setup_is_no_outcome() -> None:
    cell = judge.cell(ran(report("test_0000_faulty", "passed", when="setup"), code=None), 60.0)
    assert (cell.outcome, cell.seconds) == ("no report", None)
    assert cell.text == "**no report**; next test not run; run never ended (killed after 60 s)"


def test_remaining_processes_are_counted() -> None:
    cell = judge.cell(ran(report("test_0000_faulty", "passed"), code=0, left=("sleep 3600",)), 60.0)
    assert cell.text.endswith("exit 0; 1 left running")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("RuntimeError: Process 1 exited with error code 3", 1),
        ("ranks 0-1 of 2: stuck", 0),
        ("[rank1]: boom", 1),
        ("rank = 1, size = 2\n    def body(rank, size):", None),
        ("    raise RuntimeError('rank 1')", None),
        ("gone.py:3: rank 1", None),
        ("Connection closed by peer [127.0.0.1]:1234", None),
    ],
)
def test_a_rank_is_named_in_prose_only(text: str, named: int | None) -> None:
    cell = judge.cell(ran(report("test_0000_faulty", "failed", text=text)), 60.0)
    assert cell.named == named


def test_tables() -> None:
    text = table.terminal("Title", ("way", "ms"), [("a", "1.0"), ("bcd", "12.0")])
    assert text.splitlines() == ["Title", "", "way    ms", "---  ----", "a     1.0", "bcd  12.0"]
    assert table.markdown(("a", "b"), [("1|2", "3")]).splitlines()[-1] == "| 1\\|2 | 3 |"
    assert table.ratio([2.0, 4.0, 9.0], [2.0]) == "2.00 ×"
    assert table.ms([]) == table.ratio([], [1.0]) == "-"
