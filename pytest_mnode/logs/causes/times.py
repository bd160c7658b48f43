"""When a line was written, by the date that it prints. Pure."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime

_DATES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"), "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\b[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}"), "%b %d %H:%M:%S %Y"),
)
_WITHOUT_YEAR = re.compile(r"(?:^|[\[\s:])[EWIF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\b")
"""glog's, which torch prints."""
NO_YEAR = 2000
"""Of dates without a year: a leap year, so that all days are valid."""


def time_of(line: str) -> float | None:
    """In seconds since 1970, to compare lines of one job; None without a date."""
    for pattern, form in _DATES:
        if found := pattern.search(line):
            with suppress(ValueError):
                return datetime.strptime(found[0].replace("T", " ", 1), form).timestamp()
    if found := _WITHOUT_YEAR.search(line):
        with suppress(ValueError):
            text = f"{NO_YEAR}-{found[1]}-{found[2]} {found[3]}"
            return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").timestamp()
    return None


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
