"""Comparisons of simulated ranks: false alarms of healthy ones, and slow devices found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks import table
from pytest_mnode.measuring.rank_rates import FALSE_ALARM, PeerBound, peer_bound

RANKS = (8, 16, 64, 128, 512, 1024, 4096)
PER_CENT = (0.5, 1.0, 1.5, 2.0, 3.0, 8.0)
"""Standard deviations of the rates of healthy devices."""
COMPARISONS = 4
"""Of a certificate, as by the profiles with GPUs: products, and three kinds of copies."""
FRACTION = 0.95
SLOWER = 0.9


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of simulated certificates, or of slow devices.

    red: certificates of healthy ranks that call a rank slow. open: those that call none slow, and
    are inconclusive. at_nine_tenths: devices with exactly 0.9 of the healthy mean that are found,
    and nobody else. passed: those of them that pass. own_noise: found, of devices with 0.9 of the
    rate that they had before. fast_red: comparisons with one device 6 % faster that call one slow.
    """

    ranks: int
    per_cent: float
    red: float
    open: float
    at_nine_tenths: float
    passed: float
    own_noise: float
    fast_red: float


def shares(ranks: int, per_cent: float, certificates: int, seed: int = 30) -> Shares:
    """Simulate this many certificates, and as many slow devices, each with normal rates."""
    chance = np.random.default_rng([seed, ranks, round(10 * per_cent)])

    def rates() -> list[float]:
        found: list[float] = (100 * (1 + per_cent / 100 * chance.normal(size=ranks))).tolist()
        return found

    def bound(rates: list[float]) -> PeerBound:
        return peer_bound(rates, FRACTION, false_alarm=FALSE_ALARM / COMPARISONS)

    red = still_open = found = passed = found_own = fast = 0
    for _ in range(certificates):
        every = [bound(rates()) for _ in range(COMPARISONS)]
        alarm = any(one.slow for one in every)
        red += alarm
        still_open += not alarm and any(one.unsure or one.odd for one in every)
        drawn = rates()
        slower = bound([100 * SLOWER, *drawn[1:]])
        found += slower.slow == (0,)
        passed += not (slower.slow or slower.unsure or slower.odd)
        found_own += bound([drawn[0] * SLOWER, *drawn[1:]]).slow == (0,)
        fast += bool(bound([drawn[0] * 1.06, *drawn[1:]]).slow)
    counts = red, still_open, found, passed, found_own, fast
    return Shares(ranks, per_cent, *(number / certificates for number in counts))


def measure(
    certificates: int, sizes: Iterable[int] = RANKS, spreads: Iterable[float] = PER_CENT
) -> str:
    """The table. certificates: number of up to 128 ranks; fewer of more ranks, 100 at least."""
    spreads = tuple(spreads)
    rows = []
    for ranks in sizes:
        number = max(100, certificates * 128 // max(128, ranks))
        for per_cent in spreads:
            one = shares(ranks, per_cent, number)
            cells = (
                *(one.red, one.open, one.at_nine_tenths, one.passed),
                *(one.own_noise, one.fast_red),
            )
            rows.append(
                (str(ranks), f"{per_cent:g} %", str(number), *(f"{100 * c:.2f} %" for c in cells))
            )
    head = (
        *("ranks", "spread", "certificates", "false alarms", "inconclusive"),
        *("at 0.9 found", "passed", "0.9 of its own", "red by one +6 %"),
    )
    title = (
        f"Ranks compared, at_least_fraction {FRACTION:g}, {COMPARISONS} comparisons a certificate"
    )
    return table.terminal(title, head, rows)
