"""When a line was written, by the date that it prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

_DATES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"), "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\b[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}"), "%b %d %H:%M:%S %Y"),
    # Without a year: glog's, which torch prints, and syslog's.
    (re.compile(r"(?:^|[\[\s:])[EWIF](\d{4} \d\d:\d\d:\d\d)\b"), "%Y %m%d %H:%M:%S"),
    (re.compile(r"^(?:<\d+>)?([A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d)\b"), "%Y %b %d %H:%M:%S"),
)
NO_YEAR = 2000
"""Of dates without a year: a leap year, so that all days are valid."""


def time_of(line: str) -> float | None:
    """In seconds since 1970, to compare lines of one job; None without a date."""
    for pattern, form in _DATES:
        if found := pattern.search(line):
            text = f"{NO_YEAR} {found[1]}" if found.lastindex else found[0].replace("T", " ", 1)
            with suppress(ValueError):
                return datetime.strptime(text, form).timestamp()
    return None


def first_and_last(times: Iterable[float | None]) -> tuple[float, float] | None:
    """Of times by `time_of`, those with a year if there are any; None without any time."""
    known = sorted(at for at in times if at is not None)
    dated = [at for at in known if datetime.fromtimestamp(at).year != NO_YEAR] or known
    return (dated[0], dated[-1]) if dated else None


def elapsed_s(earlier: float, later: float) -> float:
    """From one time to another, both of `time_of`; without a year, it is the nearest one."""
    first, second = datetime.fromtimestamp(earlier), datetime.fromtimestamp(later)
    if (first.year == NO_YEAR) == (second.year == NO_YEAR):
        return later - earlier
    apart = []
    for years in (-1, 0, 1):
        with suppress(ValueError):  # 29 February
            if first.year == NO_YEAR:
                apart.append((second - first.replace(year=second.year + years)).total_seconds())
            else:
                apart.append((second.replace(year=first.year + years) - first).total_seconds())
    return min(apart, key=abs, default=0.0)
