"""What the judges of checks share: counts of which none is accepted, and who has what in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from pytest_mnode.measurement import Measurement

T = TypeVar("T", bound=Hashable)
_SHOWN = 4


def none_wrong(
    name: str,
    culprits: Iterable[str],
    source: str,
    *,
    count: int | None = None,
    unsure: str = "",
    note: str = "",
) -> Measurement:
    """A count that must be zero: of the culprits, or `count`.

    unsure: why it may be more; then zero is inconclusive.
    """
    named = list(culprits)
    notes = "; ".join(filter(None, [unsure, note]))
    if unsure and not (count or named):
        return Measurement.unknown(name, notes, source=source)
    return Measurement.none_allowed(name, named, source, count=count, note=notes)


def texts_by_who(given: Iterable[tuple[object, str]], ranks: int) -> list[str]:
    """Equal texts together, such as "all 8 ranks: 3 of 4".

    given: (who, text), where each who is one of so many ranks.
    """
    together: dict[str, dict[str, None]] = {}
    for who, text in given:
        together.setdefault(text, {}).setdefault(str(who))
    return [f"{_names(list(who), ranks)}: {text}" for text, who in together.items()]


def _names(who: list[str], ranks: int) -> str:
    if 1 < len(who) == ranks:
        return f"all {ranks} ranks"
    more = f" and {len(who) - _SHOWN} more" if len(who) > _SHOWN else ""
    return ", ".join(who[:_SHOWN]) + more


def most_common(values: Iterable[T]) -> T | None:
    """The value that most have; None where there is none, or two are equally frequent."""
    counted = Counter(values).most_common(2)
    if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]
