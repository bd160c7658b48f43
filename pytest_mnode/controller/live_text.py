"""The text of the live line: what is being done, how far it is, how long, who is waited for. Pure.

It is ASCII: it is written to terminals of any encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

_BAR_CELLS = 10
_LEAST_TEXT = 16
"""A bar is left out rather than have fewer characters of what is being done."""
_CUT = "..."


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the test that runs.

    question: the criterion or the test; empty where `doing` says it. expected_s: how long an
    earlier run took. limit_s: when it is ended. awaited: the ranks that are waited for, in words.
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
    """One line of `width` characters at most; what is being done gives way first, then the end."""
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
