"""Any list of measurements as a table."""

from __future__ import annotations

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.table import measurement_table

MEASURED = [
    Measurement("busbw", 180, "Mbit/s", at_least(170), where="rank 0"),
    Measurement("busbw", 180, "Mbit/s", at_least(170), where="rank 1"),
    Measurement("busbw", 48, "Mbit/s", at_least(170), culprit=Culprit("node2 fab0", "node2")),
    Measurement.unknown("clock offset", "node1: no answer in 10 s", unit="s"),
    Measurement("latency", 3, "us"),
]


def test_equal_measurements_share_a_row_with_their_count() -> None:
    assert measurement_table(MEASURED) == [
        "measurement      measured      expected      verdict       culprit or note",
        "busbw (2 times)  180 Mbit/s    ≥ 170 Mbit/s  pass",
        "busbw            48 Mbit/s     ≥ 170 Mbit/s  FAIL          node2 fab0",
        "clock offset     not measured  = 0 s         inconclusive  node1: no answer in 10 s",
        "latency          3 us                        recorded",
    ]


def test_a_narrow_terminal_wraps_and_cuts_nothing() -> None:
    lines = measurement_table(MEASURED, 80)
    assert max(map(len, lines)) <= 80
    assert "node1: no answer in 10 s" in " ".join(" ".join(lines).split())
