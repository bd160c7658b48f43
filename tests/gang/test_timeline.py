"""The states of a gang by observation, with the shortest and longest possible duration of each."""

from __future__ import annotations

import pytest

from pytest_mnode.gang.engine import JobRecord, Observation, Phase
from pytest_mnode.gang.window import (
    Gang,
    State,
    blind_gaps,
    by_state,
    longest_unseen_s,
    sightings,
    stretches,
)

H, W, E, O = Phase.HOLDING, Phase.WAITING, Phase.ENDING, Phase.OVER  # noqa: E741


def observation(at: float, *records: JobRecord) -> Observation:
    """Requested at `at`, answered 0.1 s later."""
    return Observation(at, at + 0.1, {record.job: record for record in records})


def one(phase: Phase, nodes: int = 0, text: str = "", restarts: int = 0) -> JobRecord:
    return JobRecord("1", phase, tuple(f"node{n}" for n in range(nodes)), text, restarts)


GANG = Gang("B", 3, ("1",), 5.0, submitted_s=0.5)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([one(W)], ["waiting"]),
        ([one(W), one(H, 3), one(E, 2), one(O)], ["waiting", "whole", "ending", "over"]),
        ([one(H, 2)], ["a part"]),
        # A job that was whole and lost nodes is no longer whole, and is not ending.
        ([one(H, 3), one(H, 2)], ["whole", "a part"]),
        ([one(H, 3), one(W, restarts=1), one(H, 3, restarts=1)], ["whole", "waiting", "whole"]),
        ([one(H, 0)], ["waiting"]),
    ],
)
def test_states_of_one_job(records: list[JobRecord], expected: list[str]) -> None:
    observations = [observation(1.0 + at, record) for at, record in enumerate(records)]
    assert [found.state.value for found in sightings(GANG, observations)] == expected


def test_states_of_a_gang_made_of_several_jobs() -> None:
    gang = Gang("B", 2, ("1", "2"), 5.0, submitted_s=0.5)

    def states(*observations: tuple[JobRecord, ...]) -> list[str]:
        found = [observation(1.0 + at, *records) for at, records in enumerate(observations)]
        return [one.state.value for one in sightings(gang, found)]

    a, b = JobRecord("1", H, ("node0",)), JobRecord("2", H, ("node1",))
    waits = JobRecord("2", W)
    assert states((a, waits), (a, b), (JobRecord("1", O), b), ()) == [
        *("a part", "whole", "ending", "over")
    ]
    # A job that never was whole cannot be ending while a part of it waits.
    assert states((JobRecord("1", E), waits)) == ["waiting"]
    assert states((a, JobRecord("2", O))) == ["a part"]


def test_observations_without_an_answer_are_ignored() -> None:
    observations = [
        Observation(0.0, 0.1, {}),
        Observation(1.0, 21.0, None, why="no answer"),
        observation(22.0, one(W)),
    ]
    assert [found.state for found in sightings(GANG, observations)] == [State.WAITING]
    assert longest_unseen_s(observations, 0.0) == pytest.approx(22.1)
    assert longest_unseen_s(observations[:2], 0.0) is None
    assert blind_gaps(observations, 0.0) == [(0.0, 22.1)]
    assert blind_gaps([observation(1.0), observation(5.8)], 1.0) == []


def test_shortest_and_longest_duration_of_a_state() -> None:
    observations = [
        observation(1.0, one(W, text="PENDING (Priority)")),
        observation(2.0, one(W, text="PENDING (Resources)")),
        observation(3.0, one(W, text="PENDING (Resources)")),
        observation(4.0, one(H, 3)),
        observation(5.0, one(O)),
    ]
    found = stretches(sightings(GANG, observations), GANG.submitted_s)
    assert [(s.state.value, s.status) for s in found] == [
        ("waiting", "PENDING (Priority)"),
        ("waiting", "PENDING (Resources)"),
        *(("whole", ""), ("over", "")),
    ]
    waited = found[1]
    assert waited.at_least_s == pytest.approx(3.0 - 2.1)
    assert waited.at_most_s == pytest.approx(4.1 - 1.0)
    by_itself = stretches(sightings(GANG, observations), GANG.submitted_s, by_state)
    assert [s.state.value for s in by_itself] == ["waiting", "whole", "over"]
    assert by_itself[0].before_s == GANG.submitted_s
    # Seen once: at least no time, at most from the observation before to the one after.
    whole = by_itself[1]
    assert whole.at_least_s == 0.0
    assert whole.at_most_s == pytest.approx(5.1 - 3.0)
    assert (whole.before_s, whole.latest_s) == (3.0, 5.1)
    unconsidered = [observation(0.5, one(W, text="PENDING")), *observations]
    waiting, *_ = stretches(sightings(GANG, unconsidered), GANG.submitted_s, by_state)
    assert waiting.status == "PENDING (Priority)"
    # A state at the last observation has not ended.
    assert by_itself[2].after_s is None
