"""What most ranks have, so that the one that is unlike them is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def usual(values: Iterable[T]) -> T | None:
    """What is there most often; None where nothing is, or two are equally often."""
    counted = Counter(values).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]
