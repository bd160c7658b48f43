"""Who is slow among equals: by the median, and by the spread around it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_high

NORMAL = 1.4826
"""Median deviations in a standard deviation, where values scatter normally."""
LEAST_SCALE = 0.01
"""Of the median: a spread below it says that few were measured, or that clocks are coarse."""
ENOUGH = 8
"""From here on the spread of ranks says what is usual. The median deviation of two is half of what
they differ by, and of three the lesser of two gaps: it would excuse, or accuse, by chance."""


@dataclass(frozen=True, slots=True)
class Line:
    """What each rank has to reach.

    reference: the median; or the fastest rank where most ranks are slow. source: how `limit` came
    about, in words. slow: those below it, slowest first.
    """

    median: float
    reference: float
    most_are_slow: bool
    limit: float
    source: str
    slow: tuple[int, ...]


def line(rates: Sequence[float], fraction: float, spreads: float | None = None) -> Line:
    """Draw the line for the rates of two ranks or more; higher is better.

    A rank is slow below `fraction` of the reference, which needs no guess at what is usual, finds
    one slow rank of two, and is not blinded by the spread that the slow ones make themselves. The
    reference is the median, of an even number the upper of the middle two: of two ranks the slow
    one has no part in it. But if even the median is below `fraction` of the fastest rank, then most
    ranks are slow, for nothing makes one of equals that much faster: then it is the fastest. Where
    ranks are many, they also may be no further than `spreads` × 1.4826 × median
    deviation below the median: a narrow spread shows a rank that is slow by a little.
    """
    if len(rates) < 2:
        raise ValueError(f"{len(rates)} rank cannot be compared; give two or more")
    middle, fastest = median_high(rates), max(rates)
    most_are_slow = middle < fraction * fastest
    reference = fastest if most_are_slow else middle
    limit = fraction * reference
    name = "fastest rank, for most are slow" if most_are_slow else f"median of {len(rates)} ranks"
    source = f"at_least_fraction {fraction:g} × {reference:.4g}, the {name}"
    if spreads is not None and len(rates) >= ENOUGH and not most_are_slow:
        deviation = median(abs(rate - middle) for rate in rates)
        scale = max(NORMAL * deviation, LEAST_SCALE * middle)
        if middle - spreads * scale > limit:
            limit = middle - spreads * scale
            source = f"median {middle:.4g} less at_most_spreads {spreads:g} × {scale:.3g}"
    slow = sorted((i for i, rate in enumerate(rates) if rate < limit), key=lambda i: rates[i])
    return Line(middle, reference, most_are_slow, limit, source, tuple(slow))
