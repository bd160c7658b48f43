"""Progress of long work, reported where the work is done: in the controller or in a rank.

Code that shows progress adds a listener; without one a report has no effect. Reports of rank 0 of a
world are repeated in the controller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

Listener = Callable[[str, int | None, int | None], None]
_listeners: list[Listener] = []


def progress(text: str, done: int | None = None, total: int | None = None) -> None:
    """Report the current work, such as "all_reduce 8 MiB"; "" for nothing in particular.

    done, total: finished parts and all parts. Without them the text is a detail of the part that
    was reported last; a total of 0 is unknown.
    """
    for listener in _listeners:
        listener(text, done, total)


def listen(listener: Listener) -> None:
    """Call `listener` for every later report in this process."""
    _listeners.append(listener)


def ignore(listener: Listener) -> None:
    """Stop calling `listener`; no effect if it is not registered."""
    with contextlib.suppress(ValueError):
        _listeners.remove(listener)
