"""Each way in which a resume can be wrong is found, with the rank, the step or the sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.restart.comparing import Tolerance
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.criteria.restart.judging import StoreListing, judge, judge_resume
from pytest_mnode.measurement import Verdict
from pytest_mnode.reference_job.records import (
    CheckpointRecord,
    EndRecord,
    Record,
    StartRecord,
    StepRecord,
    UnreadableRecord,
)
from tests.criteria.restart.made import (
    EXACT,
    KILL,
    KILLED,
    TERMS,
    WHOLE,
    Change,
    incarnation,
    is_right,
    only,
    resumed,
    verdicts,
)

LOST = "steps lost beyond the newest complete checkpoint"
ONCE = "steps missing or done twice"
AGAIN = "steps done again with another result"
LOSSES = "losses that differ"
BACK = "kills that the job did not come back from"
TIME = "time from the kill to the first new step"
GOOD = KILLED + resumed()


def test_a_correct_resume_passes() -> None:
    found = judge(history_of(WHOLE), history_of(GOOD), KILL, TERMS)
    assert [f.name for f in found if not is_right(f)] == []
    names = [f.name for f in found]
    assert len(names) == len(set(names)) == 10
    by_name = {f.name: f for f in found}
    assert by_name[ONCE].note == "steps 1 to 12 over 2 starts"
    assert by_name[LOST].note == "loaded the checkpoint of step 4; 2 steps done again"
    assert by_name[AGAIN].note == "2 steps were done again"
    assert by_name["time from the kill to the first new step"].value == 15.5


def late(node: int, seconds: float) -> Change:
    """The clock of a node is `by_s` ahead or behind."""

    def change(record: Record) -> Record:
        given: Any = record
        times = ("time", "began", "ended", "begun")
        moved = {n: getattr(given, n) + seconds for n in times if hasattr(given, n)}
        return replace(given, **moved) if given.rank == node else record

    return change


@pytest.mark.parametrize("seconds", [5, 40, -40])
def test_clocks_that_differ_between_nodes_cause_no_failure(seconds: float) -> None:
    change = late(1, seconds)
    cut = [*incarnation(1, 6, change=change), *resumed(change=change)]
    assert verdicts(cut, at=1010.0 + seconds) == {}


def test_a_first_step_before_the_kill_gives_no_recovery_time() -> None:
    [found] = verdicts(GOOD, at=1310.0).values()
    assert found.value is None
    assert "284 s before the kill: these clocks differ" in found.note


@pytest.mark.parametrize(
    ("moved", "began", "seen", "note"),
    [
        ((-40, -40), 1100.0, (89.0, 91.0), "give 50.5 s, the controller's 89.0 to 91.0 s"),
        ((0, 3600), 1025.0, (14.0, 16.0), "give 3.62e+03 s, the controller's 14.0 to 16.0 s"),
        ((3600, 3600), 1025.0, (14.0, 16.0), "node0's clock, or that of the controller, is wrong"),
        ((-300, -300), 1025.0, (14.0, 16.0), "give -284 s, the controller's 14.0 to 16.0 s"),
    ],
)
def test_a_wrong_clock_is_inconclusive(
    moved: tuple[int, int], began: float, seen: tuple[float, float], note: str
) -> None:
    def change(record: Record) -> Record:
        for node, seconds in enumerate(moved):
            record = late(node, seconds)(record) or record
        return record

    cut = [*incarnation(1, 6, change=change), *resumed(began=began, change=change)]
    found = verdicts(cut, clock="the controller", between_s=seen)[TIME]
    assert found.value is None
    assert note in found.note
    assert "is wrong: synchronise it" in found.note


@pytest.mark.parametrize("seen", [None, (14.0, 16.0), (0.0, 16.0), (17.0, 18.0), (8.0, 12.0)])
def test_small_clock_errors_are_accepted(seen: tuple[float, float] | None) -> None:
    assert verdicts(GOOD, between_s=seen) == {}


@pytest.mark.parametrize(("seen", "value"), [((10.0, 12.0), 12.0), ((13.0, 16.0), 15.5)])
def test_a_time_is_no_longer_than_the_controller_saw(
    seen: tuple[float, float], value: float
) -> None:
    """A node's clock that is 3 s ahead makes no return late."""
    terms, kill = replace(TERMS, within_s=15.0), replace(KILL, between_s=seen)
    found = judge(history_of(WHOLE), history_of(GOOD), kill, terms)
    [time] = [one for one in found if one.name == TIME]
    assert (time.value, time.passed) == (value, value <= 15)


@pytest.mark.parametrize(
    ("queued_s", "blamed"), [(0, "the recovery from"), (5, "the recovery from"), (9, "scheduler")]
)
def test_a_slow_scheduler_is_not_the_recoverys_fault(queued_s: float, blamed: str) -> None:
    """Of 15.5 s, 8 are promised."""
    terms, kill = replace(TERMS, within_s=8.0), replace(KILL, queued_s=queued_s)
    found = judge(history_of(WHOLE), history_of(GOOD), kill, terms)
    [time] = [one for one in found if one.name == TIME]
    assert time.verdict is Verdict.FAIL
    assert blamed in str(time.culprit)
    assert (f"started again after {queued_s} s" in time.note) is bool(queued_s)


def test_a_resume_that_could_not_be_observed_is_not_judged() -> None:
    found = verdicts([*KILLED], came_back=None, ended_how="node0: the run could not be watched")
    back = found[BACK]
    assert (back.value, back.note) == (None, "node0: the run could not be watched")


def test_a_job_preempted_in_its_last_step_had_ended() -> None:
    done = incarnation(1, 12, ends=True)
    [found] = verdicts(done, preempted=True, at=1011.2, came_back=False).values()
    assert found.value is None
    assert "the run ended before the kill" in found.note


def test_a_reference_run_that_lacks_a_ranks_steps_is_not_compared() -> None:
    def lacks(record: Record) -> bool:
        return isinstance(record, StepRecord) and record.rank == 1 and record.step > 2

    whole = [record for record in WHOLE if not lacks(record)]
    [found] = verdicts(GOOD, whole=whole).values()
    assert found.value is None
    assert "did 2 of 12 steps in 1 starts, ranks [1] do not" in found.note


def check(cut: Sequence[Record], name: str, count: int, culprit: str, **kill: Any) -> None:
    """The wrong measurement whose name begins so has this value and culprit."""
    wrong = verdicts([*KILLED, *cut], **kill)
    [found] = [one for title, one in wrong.items() if title.startswith(name)]
    assert found.value == count, str(found)
    assert (found.culprit or "").startswith(culprit), str(found)


@pytest.mark.parametrize(
    ("name", "count", "culprit", "change"),
    [
        (LOSSES, 8, "rank 0 on node0 from step 9 on", only(StepRecord, 9, loss=1.0)),
        (AGAIN, 1, "step 6: rank 1 on node1: another loss", only(StepRecord, 6, 1, loss=1.0)),
        # A difference in the last bit, which the text must show.
        (
            LOSSES,
            16,
            "rank 0 on node0 from step 5 on",
            only(StepRecord, 5, loss=lambda r: r.loss * (1 + 2**-52)),
        ),
        (
            "ranks that loaded another checkpoint than rank 0",
            1,
            "rank 1 on node1 loaded the checkpoint of step 8, rank 0 the checkpoint of step 4",
            only(StartRecord, rank=1, loaded=8),
        ),
        ("final parameters", 1, "rank 1 on node1", only(EndRecord, rank=1, parameters="q")),
    ],
)
def test_other_values_after_the_resume_are_counted_and_named(
    name: str, count: int, culprit: str, change: Change
) -> None:
    check(resumed(change=change), name, count, culprit)


@pytest.mark.parametrize(
    ("name", "count", "culprit", "cut"),
    [
        (ONCE, 2, "step 5: not done, though step 4 was loaded; step 6: not done", resumed(7)),
        (ONCE, 2, "step 3: done 2 times; step 4: done 2 times", resumed(3)),
        (
            LOST,
            4,
            "the resume: it continued from no checkpoint, and step 4 was saved",
            resumed(1, loaded=None),
        ),
        ("ranks that did not finish", 2, "rank 0; rank 1", resumed(ends=False)),
    ],
)
def test_steps_lost_or_done_twice_are_named(
    name: str, count: int, culprit: str, cut: list[Record]
) -> None:
    check(cut, name, count, culprit)


FROM_4 = "the resume: it continued from the checkpoint of step 4, and step"


@pytest.mark.parametrize(
    ("name", "count", "culprit", "kill"),
    [
        (LOST, 4, f"{FROM_4} 8 was saved", {"listing": StoreListing((8, 4))}),
        ("processes that outlived", 1, "pid 101 on node1", {"alive": ["pid 101 on node1"]}),
        ("steps lost although", 2, f"{FROM_4} 6 was finished", {"preempted": True}),
        ("nodes where the job was killed", 1, "node1", {"preempted": True, "late": ["node1"]}),
    ],
)
def test_what_a_kill_left_or_lost_is_named(
    name: str, count: int, culprit: str, kill: dict[str, Any]
) -> None:
    check(resumed(), name, count, culprit, **kill)


@pytest.mark.parametrize(
    ("cut", "culprit"),
    [
        ([], f"no rank trained again after {KILL.what}; torchrun ended with 1 on"),
        (resumed(), f"started again after {KILL.what}, and did not continue: torchrun ended"),
        # Rank 0 alone started again.
        (resumed(ends=False)[:1], f"started again after {KILL.what}, and did not continue: "),
    ],
)
def test_a_job_that_did_not_come_back(cut: list[Record], culprit: str) -> None:
    check(cut, BACK, 1, culprit, came_back=False, ended_how="torchrun ended with 1 on node0")


def test_an_incomplete_checkpoint_is_not_lost() -> None:
    listing = StoreListing((), ((4, "cut short"),))
    assert verdicts(KILLED + resumed(5), listing=listing) == {}


def test_the_largest_difference_of_losses_is_relative_to_the_larger_one() -> None:
    found = verdicts(KILLED + resumed(change=only(StepRecord, 9, loss=1.0)))[LOSSES]
    assert "by 0.74 at most, relative" in found.note  # 3.875 in step 9


def test_time_from_the_kill_to_the_first_new_step_has_a_bound() -> None:
    [(name, figure)] = verdicts(KILLED + resumed(began=1100.0)).items()
    assert (name, figure.value) == (TIME, 90.5)
    assert figure.culprit == "the recovery from SIGKILL of rank 1 on node1"


HALF = incarnation(1, 6, change=lambda r: r if getattr(r, "rank", 0) == 0 else None)


@pytest.mark.parametrize(
    ("note", "name", "kill"),
    [
        ("the checkpoints were not listed between", LOST, {"listing": None}),
        ("the processes could not be listed", "processes that outlived the kill", {"alive": None}),
        (
            "checkpoint of step 8: no unfinished checkpoint was found",
            "kills that missed the writing of a checkpoint",
            {"in_writing": 8},
        ),
        ("there was no kill", BACK, {"missed": "there was no kill: why"}),
    ],
)
def test_a_kill_of_which_something_is_unknown(note: str, name: str, kill: dict[str, Any]) -> None:
    [(title, found)] = verdicts(GOOD, **kill).items()
    assert (title, found.value) == (name, None)
    assert found.note.startswith(note), found.note


@pytest.mark.parametrize(
    ("note", "cut", "whole"),
    [
        ("the uninterrupted run wrote no records", KILLED, []),
        ("the uninterrupted run did 11 of 12 steps in 1 starts, ", KILLED, incarnation(1, 11)),
        ("the run that was killed wrote no records", [], WHOLE),
        (
            "the run that was killed wrote no records; rank0.jsonl:1: torn",
            [UnreadableRecord("rank0.jsonl", 1, "torn")],
            WHOLE,
        ),
        ("the run ended before the kill", incarnation(1, 12) + resumed(began=1100.0), WHOLE),
        ("nothing written by ranks [1]", HALF + resumed(), WHOLE),
    ],
)
def test_missing_records_are_inconclusive(
    note: str, cut: list[Record], whole: list[Record]
) -> None:
    [(title, found)] = verdicts(cut, whole=whole, at=1012.0).items()
    assert (title, found.value) == (BACK, None)
    assert found.note.startswith(note), found.note


def test_a_kill_during_a_write_is_proven() -> None:
    listing = StoreListing((4,), ((8, "no COMPLETE"),))
    killed = [r for r in incarnation(1, 8) if not (isinstance(r, CheckpointRecord) and r.step == 8)]
    assert verdicts(killed + resumed(), in_writing=8, listing=listing) == {}


def test_with_a_tolerance_losses_may_differ_by_it_and_digests_do_not_count() -> None:
    cut = KILLED + resumed(
        change=lambda r: replace(r, loss=r.loss * 1.001) if isinstance(r, StepRecord) else r
    )
    cut = [replace(r, parameters="q") if isinstance(r, EndRecord) else r for r in cut]
    near, far = Tolerance(0.01, "relative"), Tolerance(0.0001, "relative")
    assert verdicts(cut, terms=replace(TERMS, tolerance=near)) == {}
    assert list(verdicts(cut, terms=replace(TERMS, tolerance=far))) == [LOSSES, AGAIN]
    assert LOSSES in verdicts(cut)
    nothing = resumed(change=only(StepRecord, 9, loss=float("nan")))
    assert LOSSES in verdicts(KILLED + nothing, terms=replace(TERMS, tolerance=near))


@pytest.mark.parametrize("tolerance", [0.0, 1e-6, 0.01])
def test_an_infinite_loss_differs_from_any_other(tolerance: float) -> None:
    infinite, like = float("inf"), Tolerance(tolerance, "relative")
    assert not like.accepts(1.0, infinite)
    assert not like.accepts(infinite, 1.0)
    assert not like.accepts(infinite, -infinite)
    assert like.accepts(infinite, infinite)
    endless = KILLED + resumed(change=only(StepRecord, 9, loss=infinite))
    found = verdicts(endless, terms=replace(TERMS, tolerance=like))
    assert LOSSES in found
    assert (found[LOSSES].culprit or "").startswith("rank 0 on node0 from step 9 on")


@pytest.mark.parametrize("ranks", [1, 4])
def test_runs_on_other_numbers_of_ranks_are_compared_by_shared_values(ranks: int) -> None:
    like = Tolerance(0.01, "relative", same_ranks=False)
    cut = KILLED + resumed(ranks=ranks)
    assert verdicts(cut, terms=replace(TERMS, tolerance=like)) == {}
    wrong = KILLED + resumed(ranks=ranks, change=only(StepRecord, 9, loss=1.0))
    assert list(verdicts(wrong, terms=replace(TERMS, tolerance=like))) == [LOSSES]


def test_two_kills_of_one_run_are_judged_separately() -> None:
    first = [r for r in resumed(ends=False) if getattr(r, "step", 0) <= 10]
    again: dict[str, Any] = {"loaded": 8, "began": 1060.0, "number": 2, "ends": True}
    second = incarnation(9, 12, **again)
    cut = KILLED + first + second
    one = replace(KILL, incarnations=2)
    two = replace(KILL, incarnation=1, at=1050.0, listing=StoreListing((8, 4)))
    assert verdicts(cut, one) == {}
    assert verdicts(cut, two) == {}
    cut = KILLED + first + incarnation(9, 12, **again, change=only(StepRecord, loss=9.0))
    assert verdicts(cut, one) == {}
    assert LOSSES in verdicts(cut, two)
    bad = [replace(r, loss=9.0) if isinstance(r, StepRecord) else r for r in first]
    cut = KILLED + bad + second
    assert LOSSES in verdicts(cut, one)
    assert list(verdicts(cut, two)) == [AGAIN]


@pytest.mark.parametrize("noted", [(0, 1), (1,)])
def test_a_step_that_all_do_again_with_another_loss_blames_no_rank(noted: tuple[int, ...]) -> None:
    """The loss is of all ranks; of the last step before the kill, some may have noted nothing."""
    other = only(StepRecord, 6, loss=1.0)
    cut = incarnation(1, 6, change=other)
    cut = [r for r in cut if not (isinstance(r, StepRecord) and r.step == 6) or r.rank in noted]
    found = verdicts(cut + resumed())[AGAIN]
    assert found.value == len(noted)
    assert found.culprit is not None
    assert not found.culprit.nodes
    assert found.culprit.either == {frozenset()}


def test_a_failed_start_in_between_is_reported_and_does_not_count() -> None:
    between = incarnation(1, 0, loaded=4, began=1020.0, number=1)
    cut = KILLED + between + resumed(number=1, began=1040.0)
    found = judge(history_of(WHOLE), history_of(cut), KILL, TERMS)
    assert [f.name for f in found if not is_right(f)] == []
    assert "at the start number 2 after it" in found[0].note


def test_a_tolerance_of_zero_is_not_exact() -> None:
    assert EXACT.exact
    assert not Tolerance(0.0, "", same_ranks=False).exact


@pytest.mark.parametrize("step", [1, 12])
def test_a_run_that_was_resumed_is_compared_from_its_first_step_to_its_last(step: int) -> None:
    assert all(map(is_right, judge_resume(history_of(WHOLE), history_of(GOOD), TERMS)))
    cut = [
        replace(r, loss=9.0) if isinstance(r, StepRecord) and r.step == step else r for r in GOOD
    ]
    found = judge_resume(history_of(WHOLE), history_of(cut), TERMS)
    assert [one.name for one in found if not is_right(one)] == [LOSSES]
