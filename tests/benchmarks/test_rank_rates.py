"""Simulated ranks: few false alarms at any spread, and slow devices found."""

import pytest

from benchmarks.rank_rates import measure, shares
from pytest_mnode.measuring.rank_rates import FALSE_ALARM

CERTIFICATES = {8: 400, 16: 400, 64: 250, 128: 200, 1024: 30}


@pytest.mark.parametrize("per_cent", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("ranks", CERTIFICATES)
def test_healthy_certificates_are_hardly_ever_red(ranks: int, per_cent: float) -> None:
    number = CERTIFICATES[ranks]
    found = shares(ranks, per_cent, number)
    most = FALSE_ALARM * number
    assert found.red * number <= most + 3 * most**0.5
    assert found.fast_red * number <= most + 3 * most**0.5
    assert found.open <= (1.0 if per_cent == 8.0 else 0.15), "spread that healthy ranks explain"
    if per_cent == 0.5:
        assert found.at_nine_tenths > (0.9 if ranks == 8 else 0.99)
        assert found.own_noise > (0.7 if ranks == 8 else 0.99)
    elif per_cent == 2.0:
        assert found.at_nine_tenths > {8: 0.02, 16: 0.25, 64: 0.75}.get(ranks, 0.9)
        assert found.passed < {8: 0.35, 16: 0.35}.get(ranks, 0.2)


def test_the_table_has_a_row_for_each_number_and_spread() -> None:
    lines = measure(1, sizes=(8, 9), spreads=(0.5, 1.0)).splitlines()
    rows = [line.split() for line in lines if line.startswith(("8 ", "9 "))]
    assert [row[:4] for row in rows] == [
        [n, p, "%", "100"] for n in ("8", "9") for p in ("0.5", "1")
    ]
