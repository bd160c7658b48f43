"""Slow ranks among equals: rates in, names and one line out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent
from pytest_mnode.measuring.rank_rates import cause, peer_bound
from tests.trees import Tree


def test_one_slow_rank_is_found_and_the_line_has_its_origin() -> None:
    found = peer_bound([100, 98, 40, 101], 0.8)
    assert found.slow == (2,)
    assert found.median == 100
    assert found.limit == pytest.approx(80)
    assert found.source == "at_least_fraction 0.8 × 100, the median of 4 ranks"


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ([100, 100], ()),
        ([100, 81], ()),
        ([100, 79], (1,)),  # the median of two ranks excludes the slow one
        ([60, 100], (0,)),
        ([100, 100, 30], (2,)),
        ([100, 30, 30], (1, 2)),  # most are slow
        ([30, 100, 31, 29], (3, 0, 2)),
        ([100, 100, 50, 51], (2, 3)),  # half of them
        ([100] * 7 + [60], (7,)),
    ],
)
def test_few_ranks_and_many_slow_ones(rates: list[float], slow: tuple[int, ...]) -> None:
    assert peer_bound(rates, 0.8).slow == slow


def test_if_most_ranks_are_slow_the_line_says_so() -> None:
    found = peer_bound([30, 100, 31, 29], 0.8)
    assert found.most_are_slow
    assert found.reference == 100
    assert found.source == "at_least_fraction 0.8 × 100, the fastest rank, because most are slow"
    assert not peer_bound([100, 30, 100, 100], 0.8).most_are_slow


def test_a_narrow_spread_of_many_ranks_shows_small_losses() -> None:
    rates = [100 + i % 3 for i in range(15)] + [92.0]
    assert peer_bound(rates, 0.8).slow == ()
    found = peer_bound(rates, 0.8, spreads=5)
    assert found.slow == (15,)
    assert found.source == "median 101 less at_most_spreads 5 × 1.48"


def test_the_spread_of_few_ranks_is_not_used() -> None:
    rates = [100, 100, 100, 92]  # a median deviation of 0
    assert peer_bound(rates, 0.8, spreads=5).slow == ()


def test_tiny_differences_of_equal_ranks_are_ignored() -> None:
    rates = [100.0] * 15 + [96.0]  # a median deviation of 0, so the least scale counts
    assert peer_bound(rates, 0.8, spreads=5).slow == ()
    assert peer_bound([*rates[:-1], 94.0], 0.8, spreads=5).slow == (15,)


def test_a_wide_spread_excuses_no_slow_rank() -> None:
    rates = [100, 60, 140, 90, 110, 70, 130, 100, 100, 20]
    assert 9 in peer_bound(rates, 0.8, spreads=5).slow


def test_one_rank_is_not_compared() -> None:
    with pytest.raises(ValueError, match="1 rank cannot be compared"):
        peer_bound([100], 0.8)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=40), st.floats(0.05, 1))
def test_the_fastest_is_never_slow_and_the_slow_are_below_the_peer_bound(
    rates: list[float], fraction: float
) -> None:
    found = peer_bound(rates, fraction, 6)
    below = {*found.slow, *found.unsure}
    assert rates.index(max(rates)) not in below or len(set(rates)) == 1
    assert all((rate < found.limit) == (i in below) for i, rate in enumerate(rates))
    assert not set(found.slow) & set(found.unsure)


def test_no_rank_of_many_healthy_ones_is_accused() -> None:
    for seed in range(300):
        noise = random.Random(seed)
        rates = [noise.gauss(100, 2) for _ in range(noise.choice([2, 3, 4, 16, 256]))]
        assert peer_bound(rates, 0.85, spreads=7).slow == (), seed


COUNTS = (2, 3, 4, 5, 8, 16, 31, 64, 128, 256, 1024)
PER_CENT = (0.1, 0.5, 1.0, 2.0, 3.0)


def healthy(noise: random.Random, count: int, per_cent: float) -> list[float]:
    return [noise.gauss(100, per_cent) for _ in range(count)]


@pytest.mark.parametrize("fraction", [0.9, 0.95, 0.98])
def test_healthy_ranks_of_any_number_and_spread_are_hardly_ever_called_slow(
    fraction: float,
) -> None:
    """At most 2 of 1,000 comparisons, where 1.25 are said. Fewer than 8 ranks are taken for ranks
    that differ by 3 % at most."""
    noise = random.Random(28)
    spreads = [(n, sd) for n in COUNTS for sd in (*PER_CENT, 8.0) if n >= 8 or sd <= 3.0]
    draws = [draw for draw in spreads for _ in range(max(4, 1200 // draw[0]))]
    found = [peer_bound(healthy(noise, *draw), fraction) for draw in draws]
    alarms = sum(bool(one.slow) for one in found)
    assert alarms <= 0.002 * len(draws) + 3 * (0.002 * len(draws)) ** 0.5, (alarms, len(draws))
    many = [one for (n, sd), one in zip(draws, found, strict=True) if n >= 128 and sd <= 3.0]
    assert sum(bool(one.unsure or one.odd) for one in many) <= 0.06 * len(many)


@pytest.mark.parametrize("count", COUNTS)
def test_slow_ranks_of_any_number_are_found(count: int) -> None:
    """One, two, few, or just under half: all of them, and none of the others.

    Of 8 ranks that differ by 2 %, five do not show that three are slow.
    """
    few = {1, 2, min(5, count // 3), (count - 1) // 2}
    for per_cent in PER_CENT[: 3 if count == 8 else 4]:
        noise = random.Random(count)
        for slow in (number for number in few if 0 < number <= count / 2):
            rates = healthy(noise, count, per_cent)
            rates[:slow] = [0.75 * rate for rate in rates[:slow]]
            assert set(peer_bound(rates, 0.95).slow) == set(range(slow)), per_cent


@pytest.mark.parametrize("count", [16, 31, 64, 128, 1024])
def test_small_losses_are_found_among_ranks_with_a_narrow_spread(count: int) -> None:
    noise = random.Random(count)
    rates = [91.0, *healthy(noise, count - 1, 0.5)]
    assert peer_bound(rates, 0.95).slow == (0,)


@pytest.mark.parametrize(("per_cent", "counts"), [(0.5, (8, 16, 1024)), (2.0, (64, 128, 1024))])
def test_a_rank_that_is_a_tenth_slower_does_not_pass(
    per_cent: float, counts: tuple[int, ...]
) -> None:
    """It is named, or undecided where healthy ranks differ by as much; at 0.5 % named, of 8 too."""
    noise = random.Random(f"tenth {per_cent}")
    for count in counts:
        found = [
            peer_bound([90.0, *healthy(noise, count - 1, per_cent)], 0.95)
            for _ in range(max(20, 10_000 // count))
        ]
        passed = sum(0 not in (*one.slow, *one.unsure) for one in found)
        assert passed <= 0.05 * len(found), count
        named = sum(one.slow == (0,) for one in found)
        assert named >= (0.97 if per_cent < 1 else 0.6) * len(found), count


@pytest.mark.parametrize("count", [2, 3, 4, 8, 128, 1024])
@pytest.mark.parametrize("fast", [106.0, 112.0])
def test_one_fast_rank_makes_no_other_slow(count: int, fast: float) -> None:
    rates = [*healthy(random.Random(count), count - 1, 0.5), fast]
    found = peer_bound(rates, 0.95)
    assert found.slow == ()
    assert not found.most_are_slow
    assert not (found.unsure or found.odd) or count < 8


def test_few_ranks_that_are_far_faster_are_odd_or_most_are_slow() -> None:
    found = peer_bound([100.0] * 120 + [140.0, 141.0], 0.95)
    assert (found.slow, found.odd) == ((), (121, 120))
    assert peer_bound([100.0] * 3 + [140.0], 0.95).odd == (3,)
    assert peer_bound([100.0] * 127 + [140.0], 0.95).odd == ()
    assert peer_bound([100.0] * 127 + [240.0], 0.95).odd == (127,)
    assert peer_bound([100.0] * 29 + [140.0] * 3, 0.95).odd == (29, 30, 31)
    assert peer_bound([100.0] * 6 + [140.0], 0.95).odd == (6,)


@pytest.mark.parametrize(
    ("slow", "fast"), [(90, 38), (115, 13), (28, 4), (9, 3), (6, 2), (3680, 416)]
)
@pytest.mark.parametrize("rate", [60.0, 86.0])
def test_fast_ranks_that_a_tenth_hold_show_that_most_are_slow(
    slow: int, fast: int, rate: float
) -> None:
    """Of 8 ranks a quarter, of 16 to 40 four."""
    found = peer_bound([rate] * slow + [100.0] * fast, 0.95)
    assert found.most_are_slow
    assert found.slow == tuple(range(slow))
    assert f"the median of the {fast} fastest ranks, because most are slow" in found.source
    assert peer_bound([rate] * (slow + 1) + [100.0] * (fast - 1), 0.95).slow == () or fast > 13


def test_half_of_the_ranks_slow_is_no_spread_of_healthy_ones() -> None:
    rates = [90.0] * 64 + [100.0] * 64
    found = peer_bound(rates, 0.95)
    assert {*found.slow, *found.unsure} == set(range(64))


def test_the_spread_of_many_ranks_is_in_the_source() -> None:
    rates = [100 + 6 * (i % 21 - 10) / 10 for i in range(126)]
    found = peer_bound(rates, 0.95)
    assert (found.slow, found.unsure) == ((), ())
    assert found.limit < 94
    assert found.source == (
        "median 100 of 126 ranks less 3.98 × their spread 4.45; below at_least_fraction 0.95"
    )


@pytest.mark.parametrize(
    ("own", "base", "words"),
    [
        (3_700_000, None, ""),
        (2_600_000, None, "CPU 3 at 2.6 of 3.8 GHz"),
        (2_600_000, 2_000_000, ""),  # all cores are busy
        (1_200_000, 2_000_000, "CPU 3 at 1.2 of 3.8 GHz"),
        (None, None, ""),
    ],
)
def test_only_the_clock_of_the_cpu_that_works_slows_a_rank(
    tmp_path: Path, own: int | None, base: int | None, words: str
) -> None:
    tree = Tree(tmp_path)
    tree.write("proc/thread-self/stat", f"7 (python) {' '.join(['0'] * 36)} 3")
    for cpu, now in ((0, 800_000), (3, own)):  # CPU 0 is idle
        clocks = {"scaling_cur_freq": now, "cpuinfo_max_freq": 3_800_000, "base_frequency": base}
        for name, value in clocks.items():
            if value is not None:
                tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}", value)
    spent = Spent(wall_s=1.0, cpu_s=1.0, delayed_s=0.0, throttled_s=0.0, others_s=0.0)
    assert cause(spent, False, None, "node0", tmp_path) == words
    assert cause(spent, False, Load(1, (), None, 0.0), "node0", tmp_path) == ""


@pytest.mark.parametrize(("shared", "is_said"), [(True, True), (False, False)])
def test_a_rank_that_was_stopped_says_so_unless_it_may_wait_for_its_device(
    tmp_path: Path, shared: bool, is_said: bool
) -> None:
    spent = Spent(wall_s=1.5, cpu_s=1.0, delayed_s=0.1, throttled_s=0.0, others_s=0.0)
    why = cause(spent, shared, None, "node0", tmp_path)
    assert ("29% of its time while it was stopped" in why) is is_said
