"""A gang larger than the cluster: accepted and insufficient reasons."""

from __future__ import annotations

import pytest

from pytest_mnode.gang.engine import GangRequest, Heartbeat, JobRecord, Phase, Refused
from pytest_mnode.gang.judging import judged_size
from pytest_mnode.gang.window import Gang, Window
from tests.gang.simulated import Scheduler, ran
from tests.gang.windows import (
    FAIL,
    NO_REASON,
    PROMISE,
    UNKNOWN,
    B,
    Shown,
    all_ran,
    course,
    faults,
    holds,
    over,
    verdicts,
    waits,
    watched,
)

WIDE = ("m0", "m1", "m2", "m3", "m4")


def reason_given(large: Shown, beats: tuple[Heartbeat, ...] = ()) -> tuple[str, str] | None:
    large_gang, small = (
        Gang("too large", 5, ("9",), 5.0, 100.0),
        Gang("small", 1, ("3",), 1.0, 100.2),
    )

    def shown(t: float) -> dict[str, JobRecord]:
        first = holds("3", "n3") if t < 102.5 else over("3")
        return {**large(t), **course("2", 101, 107)(t), "3": waits("3") if t < 101 else first}

    observations = watched(shown, [*all_ran("2", 101.3, 106.3), *beats], 130)
    gangs = (large_gang, B, small)
    window = Window("too large", gangs, observations, cleared_s=120.0, arena=WIDE[:4])
    return faults(judged_size(window, PROMISE)).get(NO_REASON)


def test_an_oversized_gang_may_wait_with_a_reason() -> None:
    assert reason_given(lambda t: {"9": waits("9") if t < 120 else over("9", "CANCELLED")}) is None
    bare = JobRecord("9", Phase.WAITING, (), "PENDING")
    text = reason_given(lambda t: {"9": bare if t < 120 else over("9", "CANCELLED (x)")})
    assert text is not None
    assert text[0] == FAIL


def test_a_gang_that_ran_was_not_larger_than_the_cluster() -> None:
    def runs(t: float) -> dict[str, JobRecord]:
        if t < 108:
            return {"9": waits("9")}
        return {"9": holds("9", *WIDE) if t < 115 else over("9")}

    heard = tuple(Heartbeat("9", 0, rank, node, 109.0) for rank, node in enumerate(WIDE))
    for beats in ((), heard):
        text = reason_given(runs, beats)
        assert text is not None
        assert text[0] == UNKNOWN
        assert "it ran, so it was not larger than the cluster" in text[1]
    assert reason_given(lambda t: {"9": waits("9") if t < 120 else over("9")}, heard) is not None


@pytest.mark.parametrize("words", ["FAILED (BadConstraints)", "FAILED (NonZeroExitCode)"])
def test_an_oversized_gang_that_ends_at_once(words: str) -> None:
    text = reason_given(lambda t: {"9": over("9", words)})
    assert text is not None
    assert text[0] == UNKNOWN
    assert f"over before it was cancelled: {words}" in text[1]


class RefusesAll(Scheduler):
    def submit(self, ask: GangRequest) -> tuple[str, ...]:
        raise Refused("invalid option -- 'I'")


def test_a_refusal_of_every_job_is_inconclusive() -> None:
    found = verdicts(ran("oversize", RefusesAll()))
    assert found[NO_REASON] == UNKNOWN
    assert FAIL not in found.values()
