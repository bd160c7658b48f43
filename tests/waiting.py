"""Waits for what another process or thread does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

SOON_S = 20.0
"""Far above what a wait with a short limit takes on a busy machine, and less than the minute that
silent peers sleep."""


def until(
    condition: Callable[[], object],
    what: str | Callable[[], object] = "",
    limit_s: float = 30.0,
) -> None:
    """Wait until a condition holds; the test fails after the limit, with `what` as its message.

    What takes long to find out, such as all processes, is looked at less often.
    """
    end = time.monotonic() + limit_s
    began = time.thread_time()
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(max(0.01, 4 * (time.thread_time() - began)))
        began = time.thread_time()


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Fails if what is done here ends only with a peer that sleeps, and not by a short limit."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S, "it was waited for"
