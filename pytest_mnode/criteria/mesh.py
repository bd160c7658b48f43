"""Judges of the mesh: messages between every two ranks, and sums over all. Pure, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.measurement import HeadlineMark, Measurement, equals
from pytest_mnode.measuring.limits import CHECKED_CALLS
from pytest_mnode.measuring.naming import culprit_of

if TYPE_CHECKING:
    from pytest_mnode.measuring.messages import Exchange, Sums
    from pytest_mnode.rank.world import World

SUMMED_SIZES_BYTES = (4, (1 << 20) + 4)


def judge_exchange(met: Exchange) -> Measurement:
    """How many messages came right."""
    paths = met.world.size * (met.world.size - 1)
    return Measurement(
        "messages that came right",
        met.right,
        "",
        equals(paths),
        "one from every rank to every other",
        met.culprit,
        headline=HeadlineMark(after="paths between ranks", of=paths, right=met.right),
    )


def judge_sum(world: World, wrong: Sequence[int], senders: Sequence[int]) -> Measurement:
    """Wrong values of all-reduces, by rank."""
    return Measurement(
        "#wrong",
        sum(wrong),
        "",
        equals(0),
        "a sum of whole numbers is exact",
        culprit_of(world, [rank for rank, count in enumerate(wrong) if count], senders),
        detection=smallest_share_wrong(CHECKED_CALLS),
    )


def judge_sums(dtype: str, found: Sums) -> Measurement:
    """Wrong values of sums in a dtype that the backend has."""
    source = "a sum of small whole numbers is exact"
    return Measurement(f"#wrong {dtype}", found.wrong, "", equals(0), source, found.culprit)
