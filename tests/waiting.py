"""Waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    what: str | Callable[[], object] = "",
    limit_s: float = 30.0,
) -> None:
    """Wait until a condition holds; the test fails after the limit, with `what` as its message."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.01)
