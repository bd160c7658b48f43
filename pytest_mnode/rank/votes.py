"""Votes among ranks: each gives a ballot, and all get the same answer, over the world's store.

Ballots and answers are JSON: every user of the machine can write to the store, and what it holds
must not be able to run code in a rank.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

FOREVER_S = 1e6
"""Limit of a rank that waits for the others; the test's limit ends it earlier."""


class Votes:
    """The votes of one test; every rank must create one, with the same `name`.

    store: a separate connection, because a wait would block other threads that use it.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        self._store = store
        self._name = f"mnode-votes/{name}"
        self._rank, self._size = rank, size
        self._count = 0

    def agree(
        self, ballot: Any, decide: Callable[[Sequence[Any]], Any], limit_s: float = FOREVER_S
    ) -> Any:
        """The result of `decide`, called in one rank with all ballots by rank.

        Ballots and results are values of JSON. Raises TimeoutError if not all ranks voted within
        the limit.
        """
        self._count += 1
        answer, limit = self._answer(self._count), timedelta(seconds=limit_s)
        if self._rank and self._count == 1:
            # If rank 0 has not begun this test yet, it will first count the keys in the store.
            self._wait(self._ballot(0), limit)
        self._store.set(self._ballot(self._rank), json.dumps(ballot))
        if self._store.add(f"{self._name}/count", 1) == self._size * self._count:
            ballots = self._store.multi_get([self._ballot(rank) for rank in range(self._size)])
            self._store.set(answer, json.dumps(decide([json.loads(b) for b in ballots])))
        self._wait(answer, limit)
        if self._rank == 0 and self._count > 1:  # all ranks voted again, so all have read it
            self._store.delete_key(self._answer(self._count - 1))
        return json.loads(self._store.get(answer))

    def close(self) -> None:
        """Delete all keys from the store, when no rank votes any more."""
        if self._rank == 0:
            keys = [self._ballot(rank) for rank in range(self._size)]
            with contextlib.suppress(RuntimeError):
                for key in (*keys, self._answer(self._count), f"{self._name}/count"):
                    self._store.delete_key(key)

    def _wait(self, key: str, limit: timedelta) -> None:
        try:
            self._store.wait([key], limit)
        except RuntimeError as error:
            why = f"not all ranks voted within {limit.total_seconds():.0f} s"
            raise TimeoutError(why) from error

    def _ballot(self, rank: int) -> str:
        return f"{self._name}/{rank}"

    def _answer(self, number: int) -> str:
        return f"{self._name}/answer{number}"
