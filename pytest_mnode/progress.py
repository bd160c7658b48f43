"""How far long work is, for the user who watches: reported where it is done, here or in a rank.

Whoever shows it gives a listener; without one nothing happens. What rank 0 of a world reports is
reported again in the controller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

Listener = Callable[[str, int | None, int | None], None]
_listeners: list[Listener] = []


def progress(text: str, done: int | None = None, total: int | None = None) -> None:
    """Say what is being done now, such as "all_reduce 8 MiB"; "" for nothing in particular.

    done, total: how many parts of the whole are over. Without them it is a detail of the part that
    was reported last; a total of 0 is not known.
    """
    for listener in _listeners:
        listener(text, done, total)


def listen(listener: Listener) -> None:
    """From now on in this process, call this one too."""
    _listeners.append(listener)


def ignore(listener: Listener) -> None:
    """Call it no more; nothing to do where it is not called."""
    with contextlib.suppress(ValueError):
        _listeners.remove(listener)
