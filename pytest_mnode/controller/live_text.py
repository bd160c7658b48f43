"""The text of the live line: current action, progress, elapsed time, awaited ranks. Pure.

It is ASCII because it is written to terminals of any encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

_BAR_CELLS = 10
_LEAST_TEXT = 16
"""Least characters of the current action; the bar is left out if it leaves fewer."""
_CUT = "..."


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the running test.

    question: the criterion or the test; "" if `doing` names it. expected_s: duration in an earlier
    run. limit_s: duration at which the test is ended. awaited: the awaited ranks, as text.
    """

    question: str
    doing: str
    elapsed_s: float
    done: int | None = None
    total: int | None = None
    expected_s: float | None = None
    limit_s: float | None = None
    awaited: str = ""


def live_text(facts: Facts, width: int) -> str:
    """One line of at most `width` characters; `doing` is shortened first, then the end is cut."""
    head = f"{facts.question}: " if facts.question else ""
    tail = f", {_time(facts)}" + (f", waiting for {facts.awaited}" if facts.awaited else "")
    doing = "".join(c if c.isascii() and c.isprintable() else "?" for c in facts.doing)
    counted = bar = ""
    if facts.done is not None and facts.total:
        done = min(facts.done, facts.total)
        full = _BAR_CELLS * done // facts.total
        counted = f" {done} of {facts.total}"
        bar = f" [{'#' * full}{'.' * (_BAR_CELLS - full)}]"
    room = width - len(head) - len(tail)
    if room < min(len(doing), _LEAST_TEXT) + len(counted) + len(bar):
        bar = ""
    room -= len(counted) + len(bar)
    if len(doing) > room:
        doing = doing[: max(0, room - len(_CUT))] + _CUT
    return f"{head}{doing}{bar}{counted}{tail}"[:width]


def _time(facts: Facts) -> str:
    if facts.expected_s is not None:
        return f"{_clock(facts.elapsed_s)} of about {_clock(facts.expected_s)}"
    limit = "" if facts.limit_s is None else f", limit {_clock(facts.limit_s)}"
    return f"{_clock(facts.elapsed_s)}{limit}"


def _clock(seconds: float) -> str:
    """ "0:07", "12:34" or "1:02:03"."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
