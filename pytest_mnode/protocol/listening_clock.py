"""The clock of every heartbeat: how long a process has listened without hearing its peer.

Imports only the standard library, because this file's source is sent to nodes with remote_exec's.
"""

from __future__ import annotations

import time


class ListeningClock:
    """Seconds in which this process could listen; `now` has to be called once per `turn_s`.

    A longer gap between two calls counts as `turn_s`: a process that was stopped or had no core
    must first read what arrived in the gap, before it calls its peer silent.
    """

    def __init__(self, turn_s: float = 1.0) -> None:
        self._turn_s = turn_s
        self._read = time.monotonic()
        self._seconds = 0.0

    def now(self) -> float:
        """Seconds since the clock was created, without the gaps."""
        before, self._read = self._read, time.monotonic()
        self._seconds += min(self._read - before, self._turn_s)
        return self._seconds

    def skip(self) -> None:
        """Do not count the time since `now` was last called."""
        self._read = time.monotonic()
