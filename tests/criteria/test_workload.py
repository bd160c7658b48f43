"""The buyer's own job, judged by what it printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.goodput import PARTS, Ledger, RankNotes, ledger
from pytest_mnode.criteria.workload import (
    Ran,
    counted,
    judge_end,
    judge_goodput,
    judge_loss,
    judge_rates,
    judge_resume,
    resumed,
)
from pytest_mnode.errors import SpecError
from pytest_mnode.logs.causes import Cause, first_cause
from pytest_mnode.logs.causes.table import known_cause
from pytest_mnode.logs.nccl_inspector import Calls
from pytest_mnode.logs.training import Progress, Step, read_progress
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import doubts
from pytest_mnode.spec.workload import WorkloadCriterion
from tests.spec.conftest import changed

TIME = "time from the kill to a new step"
OWN = {"own": r"^step (?P<step>\d+) .*?(?:tok/s (?P<tokens_per_s>\S+))?$"}
NODES = ("node0", "node1", "node2", "node3")


def promise(**keys: Any) -> WorkloadCriterion:
    return WorkloadCriterion.model_validate({"command": ["train.py"], "warmup": 2} | keys)


def ran(
    nodes: int = 4,
    tokens: float | None = 1000,
    *,
    codes: Mapping[str, int] | None = None,
    why: str = "",
    output: str = "",
    seconds: float = 0.5,
) -> Ran:
    """Twelve steps; the first two at a tenth of the rate."""
    names = NODES[:nodes]
    lines = []
    for n in range(1, 13):
        slow = 10 if n <= 2 else 1
        rate = "" if tokens is None else f" tok/s {tokens / slow + n % 3:.1f}"
        lines.append(f"step {n} loss {8 - n / 10} time {seconds * slow:.3f} s{rate}")
    ended = {} if why else dict.fromkeys(names, 0) | dict(codes or {})
    cause = first_cause({"node2": output}) if output else None
    return Ran(names, nodes * 8, ended, why, read_progress(["\n".join(lines)], OWN), cause, 9.0)


def verdicts(found: Any) -> dict[str, str | None]:
    return {one.name: one.verdict and one.verdict.value for one in found}


def only(found: Any) -> Measurement:
    [one] = found
    assert isinstance(one, Measurement)
    return one


@pytest.mark.parametrize(
    ("limit", "verdict"), [(990, "pass"), (1010, "fail"), (1001, "inconclusive")]
)
def test_tokens_per_second_without_the_warm_up(limit: float, verdict: str) -> None:
    one = only(judge_rates([ran()], promise(tokens_per_s_at_least=limit), "an accelerator"))
    assert one.value == pytest.approx(1001, abs=1)
    assert one.verdict == verdict


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ({"peak_tflops": 100, "parameters": 8e9}, 6 * 8e9 * 1001 / 1e14),
        ({"peak_tflops": 100}, None),
        ({}, None),
    ],
)
def test_mfu(keys: Mapping[str, float], value: float | None) -> None:
    one = only(judge_rates([ran()], promise(mfu_at_least=0.4, **keys), "an accelerator"))
    assert one.value == (None if value is None else pytest.approx(value, rel=0.01))
    assert one.verdict == ("inconclusive" if value is None else "pass")


@pytest.mark.parametrize(
    ("small", "large", "value"),
    [
        (ran(1), ran(4, 800), 0.8),
        (ran(1, None), ran(4, None, seconds=0.625), 0.8),
        (ran(1), ran(4, None, why="still runs"), None),
    ],
)
def test_efficiency(small: Ran, large: Ran, value: float | None) -> None:
    asked = promise(nodes=[1, 4], efficiency_at_least=0.9)
    one = only(judge_rates([small, large], asked, "an accelerator"))
    assert one.name == "efficiency on 4 nodes"
    if not large.why:
        assert one.value == pytest.approx(value, rel=0.01)
        assert one.verdict == "fail"


def test_an_efficiency_against_nothing_is_inconclusive() -> None:
    asked = promise(nodes=[1, 4], efficiency_at_least=0.9)
    assert verdicts(judge_rates([ran(1)], asked, "a rank")) == {"efficiency": "inconclusive"}


def test_a_log_that_is_not_understood_is_shown() -> None:
    one = replace(ran(), said=read_progress(["Epoch one\n\nfoo"]))
    found = only(judge_rates([one], promise(tokens_per_s_at_least=1), "a rank"))
    assert (found.verdict, "'Epoch one'; 'foo'" in found.note) == ("inconclusive", True)


def test_a_log_without_a_rate_is_inconclusive() -> None:
    one = only(judge_rates([ran(tokens=None)], promise(tokens_per_s_at_least=1), "a rank"))
    assert one.verdict == "inconclusive"
    assert "criteria.workload.reads" in one.note


@pytest.mark.parametrize(
    ("one", "verdict", "nodes"),
    [
        (ran(), "pass", ()),
        (
            ran(codes={"node2": 1}, output="torch.OutOfMemoryError: CUDA out of memory."),
            "fail",
            ("node2",),
        ),
        (ran(codes={"node1": 1, "node2": 1}), "fail", ()),
        (ran(why="the job still runs on node0 after 60 s"), "inconclusive", ()),
    ],
)
def test_the_end(one: Ran, verdict: str, nodes: tuple[str, ...]) -> None:
    found = only(judge_end([one]))
    assert found.verdict == verdict
    assert tuple(found.culprit.nodes if found.culprit else ()) == nodes


def test_loss() -> None:
    asked = promise(loss={"curve": [(4, 7.61), (8, 6.0), (99, 5.0)], "within": 0.05})
    assert verdicts(judge_loss(ran(), asked)) == {
        "loss of step 4": "pass",
        "loss of step 8": "fail",
        "loss of step 99": "inconclusive",
    }
    lines = ("step 4 loss nan", "step 4 loss 7.6", "step 4 loss 7.6")
    broken = replace(ran(), said=read_progress(["\n".join(lines)]))
    assert verdicts(judge_loss(broken, asked))["loss of step 4: no number"] == "fail"


def observed(**changes: Any) -> Ran:
    """A run of 100 s on two nodes, that made 16 steps, four of them twice."""
    parts = dict.fromkeys(PARTS, 0.0) | {"stepping": 70.0, "input": 25.0, "ending": 5.0}
    book = Ledger(100.0, parts, {"input": 1}, 2, 0.02, steps=16, lost=4, starts=2, ranks=2)
    places = {0: "node0", 1: "node1"}
    return replace(ran(2), **{"ledger": book, "places": places, **changes})


@pytest.mark.parametrize(
    ("ends", "nodes", "either"),
    [({"node1"}, {"node1"}, set()), ({"node0", "node1"}, set(), {frozenset({"node0", "node1"})})],
)
def test_a_slow_link_is_named_for_communicating(
    ends: set[str], nodes: set[str], either: set[frozenset[str]]
) -> None:
    parts = dict.fromkeys(PARTS, 0.0) | {"stepping": 50.0, "communicating": 50.0}
    book = Ledger(100.0, parts, slow_link=frozenset(ends), steps=16, starts=1, ranks=2, traces=2)
    calls = [Calls("AllReduce", 64_000_000, 16, 812, 38.04, "node1")]
    judged = judge_goodput(
        observed(ledger=book, calls=calls), promise(at_most={"communicating": 0.2})
    )
    one = next(one for one in judged if one.name == "communicating, of the wall time")
    assert one.verdict == "fail"
    assert one.culprit is not None
    assert one.culprit.nodes == nodes
    assert one.culprit.either == either
    assert "AllReduce of 64 MB over 16 ranks at 38 GB/s, median of 812, node1 comes" in one.note
    assert "by 2 traces of two steps" in one.note


KILLED = {"killed_s": 50.0, "resumed_s": 80.0}


def every(apart: int, last: int = 12) -> Progress:
    """A log of some of the steps from 1 to the last."""
    return Progress("plain", tuple(Step(one) for one in range(apart, last + 1, apart)))


def test_goodput_names_the_rank_that_waits_for_input() -> None:
    asked = promise(goodput_at_least=0.8, at_most={"input": 0.2, "stalled": 0.1})
    found = {one.name: one for one in judge_goodput(observed(), asked)}
    assert found["goodput"].value == pytest.approx(0.7)
    assert {name: one.verdict for name, one in found.items() if one.expected} == {
        "goodput": "fail",
        "input, of the wall time": "fail",
        "stalled, of the wall time": "pass",
    }
    culprit = found["input, of the wall time"].culprit
    assert culprit is not None
    assert culprit.nodes == {"node1"}
    assert culprit.parts.ranks == (1,)


def test_what_was_not_seen_is_not_zero() -> None:
    unseen: Mapping[Any, str] = {"checkpointing": "none was noted", "slow rank": "no trace"}
    parts = dict.fromkeys(PARTS, 0.0) | {"stepping": 70.0, "ending": 30.0}
    book = Ledger(100.0, parts, steps=12, starts=1, ranks=2, missing=unseen)
    asked = promise(at_most={"checkpointing": 0.1, "slow rank": 0.1, "stalled": 0.1})
    found = verdicts(judge_goodput(observed(ledger=book), asked))
    assert {name.partition(",")[0]: one for name, one in found.items() if one} == {
        "checkpointing": "inconclusive",
        "slow rank": "inconclusive",
        "stalled": "pass",
    }


@pytest.mark.parametrize("book", [None, ledger([], 0.0, 9.0)])
def test_what_no_rank_noted_is_inconclusive(book: Ledger | None) -> None:
    asked = promise(goodput_at_least=0.8, at_most={"input": 0.2})
    found = judge_goodput(observed(ledger=book, unobserved="no folder"), asked)
    assert {one.verdict for one in found} == {"inconclusive"}


def test_a_job_that_hangs_fails_and_names_who_did_not_come() -> None:
    cause = Cause(known_cause("rank did not join"), "all_reduce", (1,))
    found = only(judge_end([observed(codes={}, why="no step for 5 s", hung=True, cause=cause)]))
    assert found.verdict == "fail"
    assert found.culprit is not None
    assert found.culprit.nodes == {"node1"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (KILLED, {TIME: "pass", "steps lost": "pass"}),
        (KILLED | {"resumed_s": 99.0}, {TIME: "fail", "steps lost": "pass"}),
        (KILLED | {"codes": {"node1": 1}}, {"jobs that did not resume": "fail"}),
        (KILLED | {"hung": True, "why": "no step"}, {"jobs that did not resume": "fail"}),
        (KILLED | {"why": "it still runs"}, {TIME: "inconclusive"}),
        (KILLED | {"resumed_s": 30.0}, {TIME: "inconclusive"}),
        (KILLED | {"said": every(2, 11)}, {TIME: "pass", "steps lost": "inconclusive"}),
        (KILLED | {"said": every(16)}, {TIME: "pass", "steps lost": "inconclusive"}),
        (KILLED | {"said": every(1, 20)}, {TIME: "pass", "steps lost": "inconclusive"}),
        ({"codes": {"node1": 1}, "killed_s": 50.0}, {"jobs that did not resume": "fail"}),
        ({}, {TIME: "inconclusive"}),
        ({"why": "it still runs", "killed_s": 50.0}, {TIME: "inconclusive"}),
    ],
)
def test_resuming(changes: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    page = {"after_step": 5, "within": "40 s", "lost_steps_at_most": 4}
    found = judge_resume(observed(**changes), promise(restarts=1, resume=page))
    assert verdicts(found) == expected


def test_only_a_start_after_the_kill_resumes() -> None:
    starts = [
        [RankNotes(rank, began=began, steps=steps) for rank, steps in enumerate(some)]
        for began, some in ((10.0, ([20.0], [21.0])), (30.0, ([40.0], [41.0])), (60.0, ([], [])))
    ]
    assert [resumed(starts, killed_s) for killed_s in (5, 25, 50)] == [21, 41, None]
    assert resumed([*starts, [RankNotes(0, began=70, steps=[80.0])]], 50) == 80


@pytest.mark.parametrize(
    ("numbers", "steps"),
    [
        (range(1, 101), (100, 100)),
        (range(100), (100, 100)),
        (range(10, 101, 10), (100, 110)),
        (range(0, 100, 10), (91, 100)),
        ([1, *range(10, 101, 10)], (100, 110)),
        (range(510, 601, 10), (91, 110)),
        ([7], None),
        ([], None),
    ],
)
def test_steps_by_a_log_of_some(numbers: Iterable[int], steps: tuple[int, int] | None) -> None:
    assert counted(Progress("plain", tuple(map(Step, numbers)))) == steps


@pytest.mark.parametrize(
    ("apart", "goodput", "lost"),
    [
        (1, "fail", "fail"),
        (3, "inconclusive", "inconclusive"),
        (12, "inconclusive", "inconclusive"),
    ],
)
def test_steps_that_may_be_lost(apart: int, goodput: str, lost: str) -> None:
    parts = dict.fromkeys(PARTS, 0.0) | {"stepping": 60.0, "lost steps": 10.0}
    book = Ledger(100.0, parts, steps=16, lost=4, starts=2, ranks=2)
    asked = promise(goodput_at_least=0.62, at_most={"lost steps": 0.08})
    found = verdicts(judge_goodput(observed(said=every(apart), ledger=book), asked))
    assert found["goodput"] == goodput
    assert found["lost steps, of the wall time"] == lost


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("{}", "command: missing"),
        ("{command: []}", "command: []; accepted: a list of 1 or more"),
        ("{command: [a], reads: 'S(\\d+)'}", "has no group step; accepted: auto, torchtitan"),
        ("{command: [a], reads: '(?P<step>x)(?P<los>y)'}", "group los is not known"),
        ("{command: [a], reads: '(?P<step>'}", "is no regular expression"),
        ("{command: [a], reads: '(?P<step>x)(?P<minutes>y)'}", "minutes and rest, or neither"),
        ("{command: [a], efficiency_at_least: 0.9}", "needs nodes: two or more numbers"),
        (
            "{command: [a], resume: {after_step: 5, within: 9 s, lost_steps_at_most: 1}}",
            "resume needs restarts: 1 or more",
        ),
        ("{command: [a], at_most: {inputs: 0.1}}", "inputs"),
        ("{command: [a], nodes: [4, 1]}", "[4, 1] does not rise"),
    ],
)
def test_promises_that_are_refused(page: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        changed(tmp_path, {"criteria.workload": page})
    assert message in str(refused.value)


def test_a_workload_without_a_rate_is_doubtful(tmp_path: Path) -> None:
    spec = changed(tmp_path, {"criteria.workload": "{command: [train.py]}"})
    assert [line for line in doubts(spec) if "no rate is promised" in line]
