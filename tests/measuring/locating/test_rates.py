"""What single readings of links change in the rates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.rounds import Reading


def readings(nodes: int, *of_rails: float) -> Iterator[Reading]:
    """Of all links alone; all links of a rail are equally fast."""
    for a, b in itertools.permutations(range(nodes), 2):
        for rail, mbits_s in enumerate(of_rails):
            yield Reading(a, b, rail, mbits_s, alone=True)


def test_a_path_that_changed_data_once_stays_wrong() -> None:
    rates = Rates(2, 1, 80)
    rates.add([Reading(0, 1, 0, 90, alone=True, wrong=True), Reading(0, 1, 0, 90, alone=True)])
    assert rates.wrong.tolist() == [[False, True], [False, False]]


def test_a_link_that_answers_later_is_not_silent() -> None:
    rates = Rates(2, 1, 80)
    rates.add(Reading(a, b, 0, 0.0, alone=True) for a, b in ((0, 1), (1, 0)))
    rates.add([Reading(1, 0, 0, 90, alone=True)])
    assert rates.silent[0].tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("bound", "threshold"),
    [(98, 95), (100, 95), (101, 80), (90, 90)],  # of a rail that misses its bound, by the outliers
)
def test_equal_links_are_slow_below_the_bound_or_a_share_of_their_rate(
    bound: float, threshold: float
) -> None:
    rates = Rates(6, 1, bound)
    rates.add(readings(6, 100))
    assert rates.threshold.tolist() == pytest.approx([threshold])


def test_the_loss_that_is_found_on_any_rail() -> None:
    rates = Rates(6, 2, 80)
    rates.add(readings(6, 100, 90))
    assert rates.detectable_loss == pytest.approx(0.2)
    rates.crowded[0, 0, 1] = True
    assert rates.detectable_loss is None
