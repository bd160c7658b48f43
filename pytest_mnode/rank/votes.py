"""Ranks that agree: each gives its ballot, and all get the same answer, over the world's store."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from pytest_mnode.rank.process_group import connection
from pytest_mnode.rank.world import World

FOREVER_S = 1e6
"""A rank that waits for the others is ended with its test."""


class Votes:
    """The votes of one test; every rank must make one, with the same `name`.

    store: a connection of its own, for other threads that use it would wait as long.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        self._store = store
        self._name = f"mnode-votes/{name}"
        self._rank, self._size = rank, size
        self._count = 0

    def agree(
        self, ballot: Any, decide: Callable[[Sequence[Any]], Any], limit_s: float = FOREVER_S
    ) -> Any:
        """What one rank decides from the ballots of all, by rank; ballots are pickled.

        Raises TimeoutError where not all voted within the limit.
        """
        self._count += 1
        answer, limit = self._answer(self._count), timedelta(seconds=limit_s)
        if self._rank and self._count == 1:
            # Rank 0 may not have begun this test, and then counts the keys that are in the store.
            self._wait(self._ballot(0), limit)
        self._store.set(self._ballot(self._rank), pickle.dumps(ballot))
        if self._store.add(f"{self._name}/count", 1) == self._size * self._count:
            ballots = self._store.multi_get([self._ballot(rank) for rank in range(self._size)])
            self._store.set(answer, pickle.dumps(decide([pickle.loads(b) for b in ballots])))
        self._wait(answer, limit)
        if self._rank == 0 and self._count > 1:  # all have read it: they are here
            self._store.delete_key(self._answer(self._count - 1))
        return pickle.loads(self._store.get(answer))

    def close(self) -> None:
        """Leave nothing in the store, when no rank votes any more."""
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


class VotesOfTests:
    """pytest plugin of a rank: makes the votes of each test, and closes them with its body."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store: Any = None
        self._test = ""
        self._open: dict[str, Votes] = {}

    def begin(self, test: str) -> None:
        """test: a name that all ranks give it, and no other one."""
        self._test = test

    def on(self, subject: str) -> Votes:
        """The votes of the test that runs, on this subject."""
        if subject not in self._open:
            self._store = self._store or connection()
            name = f"{self._test}/{subject}"
            self._open[subject] = Votes(self._store, name, self._world.rank, self._world.size)
        return self._open[subject]

    @pytest.hookimpl
    def pytest_runtest_teardown(self) -> None:
        """All ranks have ended the body."""
        for votes in self._open.values():
            votes.close()
        self._open.clear()


class Kind(StrEnum):
    """What became of an example in a rank, or what a rank does in its place."""

    PASSED = "passed"
    FAILED = "failed"
    REJECTED = "rejected"
    STOPPED = "stopped"
    FETCHES = "fetches"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's.

    drawn: digest of what the example consists of; for a fetch of the key. origin: type and place
    of the error. values: what rank 0 found in the database, or its seed. well: it ended the test
    without an error.
    """

    kind: Kind
    drawn: str = ""
    origin: str = ""
    values: tuple[bytes, ...] = ()
    well: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do. differ: ranks drew different examples; the test cannot go on.

    failed: ranks in which the example failed. origin: what tells this failure from others.
    ended: ranks that have ended the test. well: none of these with an error.
    """

    kind: Kind
    differ: bool = False
    failed: tuple[int, ...] = ()
    origin: str = ""
    values: tuple[bytes, ...] = ()
    ended: tuple[int, ...] = ()
    well: bool = True


def decide(ballots: Sequence[Ballot]) -> Decision:
    """One decision from the ballots, by rank: an example fails where it failed in any rank."""
    failed = tuple(rank for rank, one in enumerate(ballots) if one.kind is Kind.FAILED)
    ended = tuple(rank for rank, one in enumerate(ballots) if one.kind is Kind.ENDED)
    kinds = {one.kind for one in ballots}
    apart = {Kind.STOPPED, Kind.FETCHES, Kind.ENDED} & kinds and len(kinds) > 1
    return Decision(
        kind=next(kind for kind in _STRONGEST if kind in kinds),
        differ=bool(apart) or len({one.drawn for one in ballots}) > 1,
        failed=failed,
        origin=" ".join(f"{rank}: {ballots[rank].origin}" for rank in failed),
        values=ballots[0].values,
        ended=ended,
        well=all(ballots[rank].well for rank in ended),
    )


_STRONGEST = (*(Kind.ENDED, Kind.FAILED, Kind.REJECTED, Kind.STOPPED, Kind.FETCHES, Kind.PASSED),)
