"""The buyer's own job, judged by what it printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria import workload
from pytest_mnode.criteria.goodput import PARTS, Ledger, RankNotes, ledger
from pytest_mnode.criteria.workload import (
    Ran,
    cause_on,
    counted,
    judge_end,
    judge_goodput,
    judge_loss,
    judge_rates,
    judge_resume,
    resumed,
)
from pytest_mnode.errors import SpecError
from pytest_mnode.jobs.job import Job, JobResult
from pytest_mnode.jobs.torchrun import before_restart
from pytest_mnode.logs.aftermath import Left, answer
from pytest_mnode.logs.causes import Cause
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
    cause = answer(Left.of_nodes({"node2": output})).cause
    said = read_progress(["\n".join(lines)], OWN)
    return Ran(names, nodes * 8, ended, why, said, cause.cause if cause else None, 9.0)


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
        ({"parameters": 8e9, "dtype": "float16"}, 6 * 8e9 * 1001 / 2e14),
        ({"parameters": 8e9}, None),
        ({"peak_tflops": 100}, None),
        ({}, None),
    ],
)
def test_mfu(keys: Mapping[str, Any], value: float | None) -> None:
    peaks: Mapping[Any, float] = {"float16": 200.0}
    one = only(judge_rates([ran()], promise(mfu_at_least=0.2, **keys), "an accelerator", peaks))
    assert one.value == (None if value is None else pytest.approx(value, rel=0.01))
    assert one.verdict == ("inconclusive" if value is None else "pass")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"peak_tflops": 40}, "1.2 of a peak of 40 TFLOP/s is more than all: "),  # of the whole job
        ({}, "no peak is known for bfloat16: give criteria.workload.peak_tflops"),
    ],
)
def test_mfu_that_cannot_be(keys: Mapping[str, Any], why: str) -> None:
    asked = promise(mfu_at_least=0.2, parameters=8e9, **keys)
    one = only(judge_rates([ran()], asked, "an accelerator"))
    assert one.verdict == "inconclusive"
    assert one.note.startswith(why)


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


def test_the_rank_that_made_a_job_restart_is_named_though_its_log_goes_on() -> None:
    """Rank 0 prints the steps, also those after the restart; the other one only saw its end."""
    torchrun = "1130 14:35:52.456000 3 torch/distributed/elastic/multiprocessing/api.py:1002] "
    steps = [f"step {number} loss 0.5" for number in range(1, 41)]
    of_0 = [
        *steps[:24],
        "[rank0]: RuntimeError: CUDA error: device-side assert triggered",
        f"E{torchrun}failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python",
        *steps[20:],
    ]
    of_1 = [
        "[rank1]: RuntimeError: gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5",
        f"W{torchrun}Sending process 5 closing signal SIGTERM",
    ]
    output = {node: "\n".join([*lines, ""]) for node, lines in (("a", of_0), ("b", of_1))}
    logs = {node: before_restart(text) for node, text in output.items()}
    found = cause_on(tuple(logs), answer(Left.of_nodes(logs, {}, {0: "a", 1: "b"})))
    assert found is not None
    assert (found.host, found.ranks) == ("a", (0,))


def test_an_efficiency_of_a_job_that_prints_no_time() -> None:
    asked = promise(nodes=[1, 4], efficiency_at_least=0.9)
    said = read_progress(["Epoch 1 | Batch 5/9 | Loss: 1.5"])
    parts = dict.fromkeys(PARTS, 0.0)
    small, large = (
        replace(ran(n), said=said, ledger=Ledger(9.0, parts, steps=8, took=(9.0, *[s] * 7)))
        for n, s in ((1, 0.5), (4, 0.625))
    )
    one = only(judge_rates([small, large], asked, "an accelerator"))
    assert one.value == pytest.approx(0.8)
    assert one.verdict == "fail"
    assert "as its ranks noted them" in one.note
    one = only(judge_rates([small, replace(large, ledger=None)], asked, "an accelerator"))
    assert one.verdict == "inconclusive"


def test_an_efficiency_against_nothing_is_inconclusive() -> None:
    asked = promise(nodes=[1, 4], efficiency_at_least=0.9)
    assert verdicts(judge_rates([ran(1)], asked, "a rank")) == {"efficiency": "inconclusive"}


def test_a_log_that_is_not_understood_is_shown() -> None:
    one = replace(ran(), said=read_progress(["Epoch one\n\nfoo"]))
    found = only(judge_rates([one], promise(tokens_per_s_at_least=1), "a rank"))
    assert (found.verdict, "'Epoch one'; 'foo'" in found.note) == ("inconclusive", True)


@pytest.mark.parametrize("rate", ["tok/s 12.3K", "'tokens_per_sec': 12300.5"])
def test_a_rate_of_nobody_is_inconclusive(rate: str) -> None:
    said = read_progress(["\n".join(f"step {n} | loss 3 | {rate}" for n in range(1, 9))])
    found = only(
        judge_rates([replace(ran(), said=said)], promise(tokens_per_s_at_least=1), "a rank")
    )
    assert found.verdict == "inconclusive"
    assert "its lines say tokens/s without saying whether of a rank" in found.note


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


@pytest.mark.parametrize(
    ("losses", "first"),
    [("3 2 nan nan", 3), ("nan nan", 1), ("nan 3 2", None), ("3 inf", 2), ("3 nan 2", None)],
)
def test_a_loss_that_ends_as_no_number(losses: str, first: int | None) -> None:
    lines = (f"step {number} loss {loss}" for number, loss in enumerate(losses.split(), 1))
    one = replace(ran(), said=read_progress(["\n".join(lines)]))
    asked = promise(loss={"curve": [(99, 5.0)], "within": 0.05})
    found = verdicts(judge_loss(one, asked))
    assert found.get("steps at the end without a finite loss") == (first and "fail")
    assert (f"infinite from step {first} on" in only(judge_end([one])).note) is (first is not None)


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
    traced = {rank: (0.1 - rank / 1000, 0.02) for rank in range(10)}
    book = Ledger(100.0, parts, slow_link=frozenset(ends), steps=16, traces=2, traced=traced)
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
    assert "ms a step: rank 9 91+20, rank 8 92+20, rank 7 93+20, rank 6 94+20, rank 3" in one.note


@pytest.mark.parametrize(
    ("kill", "steps", "killed"), [(True, 5, [3]), (True, 4, []), (False, 5, [])]
)
def test_the_last_rank_is_killed_once(kill: bool, steps: int, killed: list[int]) -> None:
    done: list[int] = []

    def kill_rank(*, rank: int) -> None:
        done.append(rank)

    running = SimpleNamespace(kill=kill_rank, close=lambda: None)

    def wait(*given: Any) -> JobResult:
        for _ in range(2):
            given[-1]()
        return JobResult({"n0": 0, "n1": 0}, {"n0": "", "n1": ""})

    notes = SimpleNamespace(steps=lambda: steps, wait=wait, files=dict)
    cluster = SimpleNamespace(launch=lambda _: running)
    resume = {"after_step": 5, "within": "9 s", "lost_steps_at_most": 1}
    asked = promise(resume=resume, restarts=1)
    job: Any = Job(asked.command, nodes=("n0", "n1"), procs_per_node=2)
    found = workload._run(cluster, asked, job, notes, "", kill=kill, keep=None)  # type: ignore[arg-type]
    assert done == killed
    assert (found.killed_s is not None) is bool(killed)


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


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4123"


@pytest.mark.parametrize(
    ("output", "suspects", "nodes", "either"),
    [
        ({"node0": CLOSED, "node1": ""}, (), set(), {"node0", "node1"}),
        ({"node0": CLOSED, "node1": ""}, (1,), set(), {"node1"}),
        ({"node0": CLOSED, "node1": "Signal 9 (SIGKILL) received by PID 12"}, (), {"node1"}, set()),
        ({"node0": "[rank1]: CUDA error: out of memory", "node1": ""}, (), {"node1"}, set()),
    ],
)
def test_who_saw_the_end_of_another_rank_is_not_to_blame(
    output: Mapping[str, str], suspects: tuple[int, ...], nodes: set[str], either: set[str]
) -> None:
    places = {0: "node0", 1: "node1"}
    found = answer(Left.of_nodes(output, places=places)).cause
    assert found is not None
    codes = {"node0": 1, "node1": 1}
    one = only(judge_end([observed(codes=codes, cause=found.cause, suspects=suspects)]))
    assert one.culprit is not None
    assert one.verdict == "fail"
    assert one.culprit.nodes == nodes
    assert either in one.culprit.either or (nodes and not one.culprit.either)


@pytest.mark.parametrize("everywhere", [True, False])
def test_what_all_nodes_say_is_nobodys_own(everywhere: bool) -> None:
    said = "[rank{}]: ModuleNotFoundError: No module named 'flash_attn'"
    output = {f"node{n}": said.format(n) if everywhere or n else "" for n in range(2)}
    cause = cause_on(output, answer(Left.of_nodes(output)))
    one = only(judge_end([observed(codes={"node0": 1, "node1": 1}, cause=cause)]))
    assert one.culprit is not None
    assert one.culprit.nodes == (set() if everywhere else {"node1"})
    assert "flash_attn" in one.note
    alone = cause_on(["node1"], answer(Left.of_nodes({"node1": output["node1"]})))
    assert alone is not None
    assert alone.host == "node1"


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


def test_what_an_earlier_run_kept_is_not_kept(tmp_path: Path) -> None:
    folder = tmp_path / "workload-4"
    folder.mkdir()
    (folder / "node9.log").touch()
    assert workload._keep(folder, {"node0": "x"}, {}) == f"what it left is kept in {folder}"
    assert [path.name for path in folder.iterdir()] == ["node0.log"]
