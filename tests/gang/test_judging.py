"""Rounds made by hand: ranks that nobody heard, clocks that are off, other users, gangs in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from pytest_mnode.gang.bereft import Lost
from pytest_mnode.gang.engine import Beat, Look, Phase, Record
from pytest_mnode.gang.judging import judged_lost, judged_rounds
from pytest_mnode.gang.terms import CLEARED, Terms, Window
from pytest_mnode.gang.timeline import Gang
from pytest_mnode.gang.turns import Round, filled_turn, race_turn
from pytest_mnode.restart.findings import Finding
from pytest_mnode.spec.gang import GangCriterion
from tests.gang.test_experiments import (
    AFTER,
    AGAIN,
    ALONE,
    FAIL,
    FATE,
    NEVER,
    NEXT,
    NOT_BACK,
    OLD,
    UNHEARD,
    UNKNOWN,
    WAITING,
    verdict,
)

TERMS = Terms(settle_s=0.0, together_s=4.0, clock_skew_s=1.0, next_within_s=60.0)
NODES = ("n0", "n1", "n2")
A, B = Gang("A", 3, ("1",), 5.0, 100.0), Gang("B", 3, ("2",), 5.0, 100.1)
Shown = Callable[[float], dict[str, Record]]


def waits(job: str, why: str = "Resources", life: int = 0) -> Record:
    return Record(job, Phase.WAITING, (), f"PENDING ({why})", life)


def holds(job: str, *nodes: str, life: int = 0) -> Record:
    return Record(job, Phase.HOLDING, nodes, "RUNNING", life)


def over(job: str, said: str = "COMPLETED", life: int = 0) -> Record:
    return Record(job, Phase.OVER, (), said, life, failed=said.startswith("FAILED"))


def course(job: str, began: float, ended: float, said: str = "COMPLETED") -> Shown:
    """A gang that waits, is whole, and is over."""

    def at(t: float) -> dict[str, Record]:
        if began <= t < ended:
            return {job: holds(job, *NODES)}
        return {job: waits(job) if t < began else over(job, said)}

    return at


def both(*some: Shown) -> Shown:
    return lambda t: {job: record for one in some for job, record in one(t).items()}


def ran(job: str, rank: int, began: float, ended: float, life: int = 0) -> list[Beat]:
    beats = [
        Beat(job, life, rank, NODES[rank], began + 0.2 * n)
        for n in range(int((ended - began) / 0.2))
    ]
    return [*beats, Beat(job, life, rank, NODES[rank], ended, "end")]


def all_ran(job: str, began: float, ended: float, life: int = 0) -> list[Beat]:
    return [beat for rank in range(3) for beat in ran(job, rank, began, ended, life)]


def watched(
    shown: Shown, beats: Iterable[Beat], until: float, off: dict[str, float] | None = None
) -> tuple[Look, ...]:
    """Looks every 0.25 s from 100.2 on. off: nodes whose clock is ahead by so much."""
    looks, t, left = [], 100.2, sorted(beats, key=lambda beat: beat.at_s)
    while t < until:
        now = [beat for beat in left if beat.at_s <= t]
        left = left[len(now) :]
        stamped = [replace(b, at_s=b.at_s + (off or {}).get(b.node, 0.0)) for b in now]
        looks.append(Look(t, t + 0.05, shown(t), tuple(stamped)))
        t += 0.25
    return tuple(looks)


def told(findings: Sequence[Finding]) -> dict[str, tuple[str, str]]:
    """What is not right: verdict, and culprit and note."""
    return {
        f.name: (found, f"{f.culprit or ''} | {f.note}")
        for f in findings
        if (found := verdict(f)) is not None
    }


def raced(looks: tuple[Look, ...], cleared: float, **more: object) -> dict[str, tuple[str, str]]:
    window = Window("race 1", (A, B), looks, notes=((cleared, CLEARED),))
    window = replace(window, **more)  # type: ignore[arg-type]
    return told(judged_rounds([Round(window, race_turn(window, ("A", "B")))], TERMS))


RACE = both(course("1", 101, 107), course("2", 108, 114))
RACED = [*all_ran("1", 101.3, 106.3), *all_ran("2", 108.3, 113.3)]


def test_a_race_as_it_should_be() -> None:
    assert raced(watched(RACE, RACED, 118), 115.0) == {}


@pytest.mark.parametrize(
    ("said", "expected"), [("COMPLETED", UNKNOWN), ("FAILED (NonZeroExitCode)", FAIL)]
)
def test_gangs_that_are_over_without_a_heartbeat(said: str, expected: str) -> None:
    shown = both(course("1", 101, 101.6, said), course("2", 102, 102.6, said))
    found = raced(watched(shown, [], 106), 103.0)
    assert found[UNHEARD][0] == expected
    assert "race 1: A: 0 of 3 ranks heard, 0 of them to their end" in found[UNHEARD][1]
    assert (said in found[UNHEARD][1]) == (expected == FAIL)
    assert found[ALONE][0] == UNKNOWN


def test_a_rank_that_did_not_run_to_its_end() -> None:
    beats = [b for b in RACED if (b.job, b.rank, b.what) != ("2", 1, "end")]
    found = raced(watched(RACE, beats, 118), 115.0)
    assert found == {UNHEARD: (UNKNOWN, " | race 1: B: 3 of 3 ranks heard, 2 of them to their end")}


def test_a_gang_that_clearing_up_ended_owes_no_end() -> None:
    shown = both(course("1", 101, 107), course("2", 108, 110.3, "CANCELLED"))
    beats = [b for b in RACED if b.job == "1" or b.at_s < 110.2]
    assert raced(watched(shown, beats, 118), 110.2) == {}


def test_ranks_one_after_another() -> None:
    shown = both(course("1", 101, 117), course("2", 118, 134))
    beats = [
        beat
        for job, began in (("1", 101.3), ("2", 118.3))
        for rank in range(3)
        for beat in ran(job, rank, began + 5.1 * rank, began + 5.1 * rank + 5)
    ]
    found = raced(watched(shown, beats, 138), 135.0)
    assert found[UNHEARD][0] == FAIL
    assert "race 1: A: its 3 ranks never ran at once" in found[UNHEARD][1]


@pytest.mark.parametrize(("by", "said"), [(30.0, "+29."), (-3.0, "-1.7 s or more")])
def test_a_clock_that_is_off_is_not_the_schedulers_fault(by: float, said: str) -> None:
    found = raced(watched(RACE, RACED, 118, off={"n2": by}), 115.0)
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert {ALONE, UNHEARD} <= found.keys() & {WAITING, AFTER, ALONE, UNHEARD}
    assert f"n2's clock is off by {said}" in found[ALONE][1]


def test_ranks_of_other_nodes_are_blamed_all_the_same() -> None:
    early = [Beat("2", 0, 0, "n0", 103.0 + 0.2 * n) for n in range(5)]
    found = raced(watched(RACE, [*RACED, *early], 118, off={"n2": 30.0}), 115.0)
    assert found[WAITING] == (
        FAIL,
        "race 1: B: rank 0 on n0, 5 heartbeats while it was waiting | ",
    )


def test_nodes_that_somebody_else_took() -> None:
    shown = both(
        course("1", 101, 107),
        lambda t: {"2": waits("2") if t < 185 else over("2", "CANCELLED")},
    )
    looks = watched(shown, all_ran("1", 101.3, 106.3), 190)
    alone = raced(looks, 184.0, not_free=("n2",))
    assert [alone[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [FAIL, FAIL, FAIL]
    who = ("n2: job 17 of bob",)
    found = raced(looks, 184.0, taken=who, others=who)
    assert [found[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [UNKNOWN] * 3
    assert all("n2: job 17 of bob" in found[name][1] for name in (NEVER, NEXT, NOT_BACK))
    # A node that nobody else has is missed all the same.
    assert raced(looks, 184.0, not_free=("n1",), taken=who)[NOT_BACK][0] == FAIL


def filled(second: Shown, small: Shown, beats: list[Beat], cleared: float) -> dict[str, str]:
    """A filler has n3 until 135 s; B and a small job are submitted at 105 s."""
    gangs = (
        Gang("filler 1", 1, ("1",), 500.0, 100.0),
        Gang("B", 3, ("2",), 5.0, 105.0),
        Gang("small", 1, ("3",), 1.0, 105.2),
    )

    def shown(t: float) -> dict[str, Record]:
        first = {"1": holds("1", "n3") if t < 135 else over("1", "CANCELLED")}
        return first if t < 105.2 else {**first, **second(t), **small(t)}

    looks = watched(shown, beats, cleared + 2)
    window = Window("filled 1", gangs, looks, notes=((cleared, CLEARED),))
    turn = filled_turn(window, "B", ["filler 1"], ("filler 1", "small"))
    return {n: v for n, (v, _) in told(judged_rounds([Round(window, turn)], TERMS)).items()}


def small_at(began: float, ended: float) -> Shown:
    def at(t: float) -> dict[str, Record]:
        return {
            "3": waits("3") if t < began else holds("3", "n0") if t < ended else over("3"),
        }

    return at


def test_room_is_there_when_the_filler_is_gone_where_the_small_job_waited_too() -> None:
    late = course("2", 209, 215)
    beats = all_ran("2", 209.3, 214.3)
    assert filled(late, small_at(215.5, 217), beats, 218.0) == {NEXT: FAIL}
    # One that ran before it took room until it was over.
    assert filled(late, small_at(106, 208), beats, 218.0) == {}
    soon = course("2", 136, 142)
    assert filled(soon, small_at(142.5, 144), all_ran("2", 136.3, 141.3), 145.0) == {}


def test_neither_ever_starts_though_there_is_room() -> None:
    def never(job: str) -> Shown:
        return lambda t: {job: waits(job) if t < 211 else over(job, "CANCELLED")}

    assert filled(never("2"), never("3"), [], 211.0) == {NEVER: FAIL, NEXT: FAIL}


def lost(
    beats: list[Beat], again: Shown | None = None, off: dict[str, float] | None = None
) -> dict[str, tuple[str, str]]:
    """n2 dies at 110 s; the gang is requeued, whole by the records from 130 to 200 s."""
    gang = Gang("B", 3, ("1",), 240.0, 100.0)

    def shown(t: float) -> dict[str, Record]:
        if t < 125:
            return course("1", 101, 125)(t)
        if t < 130:
            return {"1": waits("1", "BeginTime", 1)}
        if again is not None:
            return again(t)
        return {"1": holds("1", *NODES, life=1) if t < 200 else over("1", "CANCELLED", 1)}

    before = [b for r in range(3) for b in ran("1", r, 101.5, 110 if r == 2 else 124.5)]
    looks = watched(shown, [b for b in before if b.what == "beat"] + beats, 204, off)
    window = Window("loss", (gang,), looks, notes=((200.0, CLEARED),))
    page = {"node_loss": "requeued", "lost_within": "60 s", "together": "4 s", "runs": "5 s"}
    promise = GangCriterion.model_validate(page)
    return told(judged_lost(Lost(window, "n2", 110.0), promise, TERMS))


def test_a_gang_that_is_requeued_runs_again_with_every_rank() -> None:
    assert lost(all_ran("1", 130.5, 199, 1)) == {}


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_a_start_that_is_whole_by_the_records_only(ranks: int) -> None:
    found = lost([b for r in range(ranks) for b in ran("1", r, 130.5, 199, 1)])
    assert {name: found[name][0] for name in (FATE, AGAIN, ALONE)} == dict.fromkeys(
        (FATE, AGAIN, ALONE), UNKNOWN
    )
    assert f"requeued, and {ranks} of 3 ranks heard of that start" in found[FATE][1]


def test_ranks_of_the_next_start_come_together() -> None:
    beats = [b for r in range(3) for b in ran("1", r, 180.5 if r == 2 else 130.5, 199, 1)]
    found = lost(beats)
    assert found[ALONE][0] == FAIL
    assert "loss: B: 2 of 3 ranks (0 on n0, 1 on n1) for 50.0 s" in found[ALONE][1]


def test_a_start_that_fails_at_once() -> None:
    def again(t: float) -> dict[str, Record]:
        dead = over("1", "FAILED (NonZeroExitCode)", 1)
        return {"1": holds("1", *NODES, life=1) if t < 130.6 else dead}

    found = lost([], again)
    assert found[FATE][0] == FAIL
    assert "requeued and then over, FAILED (NonZeroExitCode)" in found[FATE][1]
    assert found[AGAIN][0] == UNKNOWN
    assert found[UNHEARD][0] == FAIL


def test_ranks_that_run_on_and_those_whose_clock_is_off() -> None:
    again = all_ran("1", 130.5, 199, 1)
    found = lost([*again, Beat("1", 0, 0, "n0", 140.0)])
    assert found[OLD] == (FAIL, "loss: B: rank 0 on n0 | ")
    found = lost(again, off={"n0": 30.0})
    assert found[OLD][0] == UNKNOWN
    assert "n0's clock is off by +29." in found[OLD][1]


def test_a_gang_that_waits_for_what_others_took() -> None:
    gang = Gang("B", 3, ("1",), 240.0, 100.0)

    def shown(t: float) -> dict[str, Record]:
        return course("1", 101, 125)(t) if t < 125 else {"1": waits("1", life=1)}

    beats = [b for b in all_ran("1", 101.5, 109.5) if b.what == "beat"]
    window = Window("loss", (gang,), watched(shown, beats, 204), notes=((200.0, CLEARED),))
    page = {"node_loss": "either", "lost_within": "60 s"}
    promise = GangCriterion.model_validate(page)

    def fate(window: Window) -> list[str]:
        found = told(judged_lost(Lost(window, "n2", 110.0), promise, TERMS))
        return [found[name][0] for name in (FATE, AGAIN)]

    assert fate(window) == [FAIL, FAIL]
    assert fate(replace(window, others=("n1: job 17 of bob",))) == [UNKNOWN, UNKNOWN]
