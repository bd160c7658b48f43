"""What a rank says of one example of hypothesis, and what all ranks make of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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
