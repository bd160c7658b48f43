"""One test driven through scripted ranks: which rank is waited for, and how long."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from pytest_mnode.controller import world_test as conduct
from pytest_mnode.controller.client import Client
from pytest_mnode.controller.world_test import WorldTest
from pytest_mnode.outcome.call_record import INSIDE, SEPARATOR
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.outcome.stuck import stuck_failures
from pytest_mnode.protocol.messages import (
    Call,
    Death,
    LiveOutput,
    PartLost,
    PhaseReport,
    Progress,
    RunItem,
    Shape,
    StackTexts,
    TornDown,
    WorldInfo,
)

WORLD = WorldInfo("w1", Shape(2, 1), ("node0", "node1"))
Answer = Callable[[int, Any], list[Any]]
RUN = Call(7, "run_item", (RunItem("a.py::test_a", None, True),))


def obedient(rank: int, message: Any) -> list[Any]:
    """Messages of a rank that passes its test."""
    match message:
        case Call(seq=n, method="run_item"):
            return [phase(rank, n, "setup"), phase(rank, n, "call"), body_done(rank)]
        case Call(seq=n, method="tear_down"):
            return [phase(rank, n, "teardown"), ended(rank, n)]
    return []


def phase(rank: int, ordinal: int, when: str, outcome: str = "passed", **data: Any) -> Call:
    return Call(ordinal, "report", (rank, PhaseReport(when, outcome, data)))


def body_done(rank: int) -> Call:
    return Call(7, "body_done", (rank, ()))


def ended(rank: int, ordinal: int, **fields: Any) -> Call:
    return Call(ordinal, "ended", (rank, TornDown(**fields)))


def fails(rank: int, message: Any) -> list[Any]:
    if message.method == "run_item":
        return [phase(rank, 7, "setup"), phase(rank, 7, "call", "failed"), body_done(rank)]
    return obedient(rank, message)


def silent(rank: int, message: Any) -> list[Any]:
    return []


def record(number: int, shape: str) -> str:
    """The record of a rank inside its `number`th call."""
    return SEPARATOR.join(
        (INSIDE, str(number), str(number), "", "all_reduce", "", f"of {shape} float32", "a.py:1")
    )


class Stage:
    """A client whose other end is a script."""

    name = "client"

    def __init__(self, *ranks: Answer) -> None:
        self.ranks = ranks
        self.ordinals = itertools.count(7)
        self.inbox: deque[Any] = deque()
        self.sent: list[tuple[int, Any]] = []
        self.stacks_taken = 0
        self.records: list[dict[int, str]] = []
        """Records of calls of the ranks, one per poll; the last one is repeated."""
        self.aside: list[Any] = []

    def tell_ranks(self, world: WorldInfo, message: Any) -> None:
        for rank in range(len(self.ranks)):
            self.tell_rank(world, rank, message)

    def tell_rank(self, world: WorldInfo, rank: int, message: Any) -> None:
        self.sent.append((rank, message))
        self.inbox.extend(self.ranks[rank](rank, message))

    def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
        self.stacks_taken += poll_id is None
        read = self.records.pop(0) if len(self.records) > 1 else (self.records or [{}])[0]
        for rank, node in enumerate(world.nodes):
            texts = {} if poll_id else {rank: "x"}
            calls = {rank: read[rank]} if rank in read else {}
            self.inbox.append(StackTexts(node, world.id, texts, calls=calls, poll_id=poll_id))

    def take_native_stacks(self, world: WorldInfo, node: str, ranks: tuple[int, ...]) -> None:
        native = dict.fromkeys(ranks, f"C stack on {node}")
        self.inbox.append(StackTexts(node, world.id, native=native))

    def take_deferred(self, world: str) -> list[Any]:
        return []

    def defer(self, message: Any) -> None:
        self.aside.append(message)

    def next_message(self, timeout_s: float) -> Any:
        if self.inbox:
            return self.inbox.popleft()
        time.sleep(timeout_s)
        return None


class Stopped(Stage):
    """The controller is stopped at its first wait for a rank, for longer than any limit."""

    def next_message(self, timeout_s: float) -> Any:
        if not self.inbox and not self.stacks_taken:
            time.sleep(1.0)
            self.inbox += obedient(1, RUN)
            self.ranks = (obedient, obedient)
            self.stacks_taken = 1
            return None
        return super().next_message(timeout_s)


def ran(stage: Stage, timeout_s: float = 0.1, still_s: float = math.inf) -> Outcome:
    driven = WorldTest(cast(Client, stage), WORLD, timeout_s, still_s=still_s)
    driven.begin_item(RUN.args[0])
    return driven.end_item()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("UNCLEAN_TEARDOWN_LIMIT_S", "POLL_S", "GRACE_S", "DEATH_GRACE_S", "STACKS_LIMIT_S")
    for limit in limits:
        monkeypatch.setattr(conduct, limit, 0.05)


def test_passes_of_all_ranks_are_a_pass() -> None:
    stage = Stage(obedient, obedient)
    outcome = ran(stage, timeout_s=30)
    assert outcome.clean
    assert stage.stacks_taken == 0


def test_a_rank_that_needs_no_others_ends_before_them() -> None:
    def alone(rank: int, message: Any) -> list[Any]:
        if message.method == "run_item":
            phases = (PhaseReport(when, "passed", {}) for when in ("setup", "call", "teardown"))
            return [ended(rank, 7, reports=tuple(phases))]
        return []

    stage = Stage(alone, obedient)
    assert ran(stage, timeout_s=30).clean
    assert [rank for rank, message in stage.sent if message.method == "tear_down"] == [1]
    stage = Stage(alone, alone)
    assert ran(stage, timeout_s=30).clean
    assert not [message for _, message in stage.sent if message.method == "tear_down"]


def test_a_rank_that_ended_alone_passes_no_test_that_another_fails() -> None:
    def alone(rank: int, message: Any) -> list[Any]:
        return [ended(rank, 7)] if message.method == "run_item" else []

    outcome = ran(Stage(alone, fails), timeout_s=30)
    assert not outcome.clean
    assert [rank for rank, s in outcome.states.items() if s.failed_at is not None] == [1]


@pytest.mark.parametrize(("error", "returned"), [("", True), ("ValueError: no", False)])
def test_a_function_returned_if_no_rank_failed_in_it(error: str, returned: bool) -> None:
    def answers(rank: int, message: Any) -> list[Any]:
        if message.method == "call_function":
            return [ended(rank, 7, problem=error)]
        return obedient(rank, message)

    driven = WorldTest(cast(Client, Stage(answers, answers)), WORLD, 30.0)
    outcome = driven.run_function("call_function", b"", False)
    assert outcome.returned == returned


def test_a_grace_period_is_no_loop_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Stage):
        asked = 0

        def next_message(self, timeout_s: float) -> Any:
            self.asked += 1
            return super().next_message(timeout_s)

    monkeypatch.setattr(conduct, "GRACE_S", 0.5)
    stage = Counted(fails, silent)
    assert not ran(stage, timeout_s=30).clean
    assert stage.asked < 200


def test_no_wait_for_a_message_is_longer_than_half_a_turn() -> None:
    class Watched(Stage):
        def next_message(self, timeout_s: float) -> Any:
            assert timeout_s <= 0.05
            return super().next_message(timeout_s)

    assert ran(Watched(silent, silent), timeout_s=0.5).timed_out == "call"


def test_teardown_waits_for_all_bodies() -> None:
    def late(rank: int, message: Any) -> list[Any]:
        return silent(rank, message) if message.method == "run_item" else obedient(rank, message)

    stage = Stage(obedient, late)
    outcome = ran(stage)
    assert outcome.timed_out == "call"
    assert outcome.states[1].stuck_in == "setup"
    assert outcome.states[1].stack == "x"
    assert outcome.states[1].native == "C stack on node1"  # "x" has no line of the test
    assert outcome.states[0].native == ""
    assert [rank for rank, message in stage.sent if message.method == "tear_down"] == [0]


def test_a_failure_starts_the_grace_not_the_limit() -> None:
    outcome = ran(Stage(fails, silent), timeout_s=60)
    assert (outcome.timed_out, outcome.grace_s) == ("", 0.05)
    assert outcome.states[1].stuck_in == "setup"
    assert not outcome.clean


class Busy(Stage):
    """Rank 1 runs at every poll; after `polls` polls it fails like rank 0."""

    polls = 2

    def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
        super().take_stacks(world, poll_id)
        if poll_id is not None:
            running = self.inbox.pop()
            self.inbox.append(dataclasses.replace(running, running=(1,)))
            self.polls -= 1
            if self.polls == 0:
                self.inbox += fails(1, RUN)
                self.ranks = (fails, obedient)


def test_a_running_rank_has_a_longer_grace_and_its_failure_is_reported() -> None:
    outcome = ran(Busy(fails, silent), timeout_s=60)
    assert [state.stuck_in for state in outcome.states.values()] == ["", ""]
    assert outcome.states[1].reports["call"].outcome == "failed"


def test_the_grace_of_a_running_rank_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conduct, "MOST_GRACE_S", 0.18)
    monkeypatch.setattr(Busy, "polls", 1000)
    outcome = ran(Busy(fails, silent), timeout_s=60)
    assert outcome.states[1].stuck_in == "setup"
    assert outcome.grace_s == pytest.approx(0.2)


def test_calls_that_differ_end_the_test_before_its_limit() -> None:
    stage = Stage(silent, silent)
    stage.records = [{}, {0: record(1, "[2]"), 1: record(1, "[3]")}]
    outcome = ran(stage, timeout_s=60)
    assert outcome.deadlocked
    assert not outcome.timed_out
    assert [s.stuck_in for s in outcome.states.values()] == ["setup", "setup"]


@pytest.mark.parametrize("when", ["setup", "call"])
def test_a_call_that_lacks_a_skipped_rank_ends_before_the_limit(when: str) -> None:
    def skips(rank: int, message: Any) -> list[Any]:
        if message.method != "run_item":
            return obedient(rank, message)
        passed = [phase(rank, 7, "setup")] if when == "call" else []
        return [*passed, phase(rank, 7, when, "skipped"), body_done(rank)]

    stage = Stage(skips, silent)
    stage.records = [{0: "", 1: record(1, "[2]")}]
    outcome = ran(stage, timeout_s=5)
    assert outcome.deadlocked
    assert not outcome.timed_out


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: "[2]"}, {0: "[2]", 1: "[2]"}),
        ({0: "[2]", 1: "[2]"}, {0: "[2]", 1: "[2]"}),
        ({}, {}),
    ],
)
def test_calls_that_agree_wait_for_the_limit(first: dict[int, str], second: dict[int, str]) -> None:
    stage = Stage(silent, silent)
    stage.records = [{r: record(1, s) for r, s in seen.items()} for seen in (first, second)]
    outcome = ran(stage, timeout_s=0.5)
    assert outcome.timed_out == "call"
    assert not outcome.deadlocked


def test_a_rank_that_makes_calls_is_not_hung() -> None:
    stage = Stage(silent, silent)
    stage.records = [{0: record(n, "[2]"), 1: record(n, "[3]")} for n in range(1, 100)]
    assert not ran(stage, timeout_s=0.5).deadlocked


def test_ranks_without_progress_are_hung_before_the_limit() -> None:
    stage = Stage(silent, silent)
    alike = {rank: record(9, "[2]") for rank in (0, 1)}
    stage.records = [{rank: record(8, "[2]") for rank in (0, 1)}, alike]
    outcome = ran(stage, timeout_s=60, still_s=0.6)
    assert (outcome.stalled, outcome.timed_out, outcome.limit_s) == (True, "call", 0.6)
    [failure] = stuck_failures(outcome, explained=False)
    assert failure.line.startswith("no rank called torch.distributed for 0.6 s")


@pytest.mark.parametrize(
    "records",
    [
        [{0: record(n, "[2]"), 1: record(9, "[2]")} for n in range(1, 100)],
        [{0: record(1, "[2]")}],
        [{}],
    ],
    ids=["one rank goes on", "one rank is not known", "none is known"],
)
def test_ranks_that_may_go_on_have_the_whole_limit(
    records: list[dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "POLL_S", 0.05)
    monkeypatch.setattr(conduct, "MOST_POLL_S", 0.05)
    stage = Stage(silent, silent)
    stage.records = records
    outcome = ran(stage, timeout_s=1.5, still_s=0.5)
    assert (outcome.stalled, outcome.limit_s) == (False, 1.5)


@pytest.mark.parametrize("order", [(0.2, 4.0), (4.0, 0.2)])
def test_the_earliest_of_several_limits_of_a_test_ends_it(order: tuple[float, ...]) -> None:
    """Each rank may set one, by a fixture that is not the same in all; here all hang at the end."""

    def limited(rank: int, message: Any) -> list[Any]:
        if message.method != "run_item":
            return []
        return [Call(7, "limit", (rank, order[rank], False)), *obedient(rank, message)]

    outcome = ran(Stage(limited, limited), timeout_s=5.0)
    assert (outcome.timed_out, outcome.limit_s) == ("teardown", 0.2)


def test_a_failed_test_has_less_time_for_its_end() -> None:
    def hangs_at_end(rank: int, message: Any) -> list[Any]:
        return [] if message.method == "tear_down" else fails(rank, message)

    outcome = ran(Stage(hangs_at_end, hangs_at_end), timeout_s=60)
    assert (outcome.timed_out, outcome.limit_s) == ("teardown", 0.05)


def test_c_stacks_that_never_come_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoGdb(Stage):
        def take_native_stacks(self, *_: Any) -> None: ...

    monkeypatch.setattr(conduct, "GDB_LIMIT_S", 0.05)
    outcome = ran(NoGdb(obedient, silent))
    assert (outcome.states[1].stack, outcome.states[1].native) == ("x", "")


def test_ranks_whose_handlers_of_atexit_never_end_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conduct, "EXIT_HANDLERS_LIMIT_S", 0.1)
    [line] = exit_lines(silent, silent)
    assert line.startswith("ranks 0-1 of 2")
    assert "did not end within 0.1 s" in line


@pytest.mark.parametrize(("ordinal", "named"), [(6, "a.py::test_6"), (7, "a handler of atexit")])
def test_a_rank_that_died_is_not_waited_for_at_the_end(ordinal: int, named: str) -> None:
    """Rank 1 dies after its last test, or in a handler; rank 0 answers later."""

    def dies(rank: int, message: Any) -> list[Any]:
        return [
            Death("node1", "w1", 1, 1, None, 9, ordinal=ordinal, phase="after"),
            ended(0, 7, value=pickle.dumps(["OSError: full"])),
        ]

    line, of_rank_0 = sorted(exit_lines(silent, dies), key=lambda one: "OSError" in one)
    assert named in line
    assert "rank 1" in line
    assert "SIGKILL" in line
    assert of_rank_0.startswith("rank 0 of 2")


def test_only_living_ranks_without_a_stack_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = WorldTest(cast(Client, Stage(silent, silent)), WORLD, 1.0)
    awaited: list[set[int]] = []
    monkeypatch.setattr(driven, "_wait_for", lambda ranks, *_: awaited.append(set(ranks)))
    states = list(driven.outcome.states.values())
    for stack, lost in (("File a.py", ""), (None, "the node is gone"), (None, "")):
        states[0].stack, states[0].lost = stack, lost
        driven._collect_python_stacks(states)
    assert awaited == [{1}, {1}, {0, 1}]


def exit_lines(*ranks: Answer) -> list[str]:
    stage = cast(Client, Stage(*ranks))
    return conduct.run_exit_handlers(stage, WORLD, lambda death: f"a.py::test_{death.ordinal}")


def test_the_answer_to_an_older_poll_is_ignored() -> None:
    class Late(Stage):
        def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
            super().take_stacks(world, poll_id and poll_id - 1)

    stage = Late(silent, silent)
    stage.records = [{0: record(1, "[2]"), 1: record(1, "[3]")}]
    assert not ran(stage, timeout_s=0.5).deadlocked


class NoStacks(Stage):
    """Nodes are too busy to report the stacks of their ranks."""

    def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
        self.stacks_taken += poll_id is None


@pytest.mark.parametrize(
    ("stage", "other", "phase"),
    [(NoStacks, obedient, "call"), (Stage, obedient, "setup"), (NoStacks, silent, "setup")],
)
def test_a_rank_without_an_answer_is_in_the_phase_of_the_others(
    stage: type[Stage], other: Answer, phase: str
) -> None:
    assert ran(stage(other, silent)).states[1].stuck_in == phase


def test_a_report_that_crosses_a_stack_request() -> None:
    class Crossing(Stage):
        def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
            if poll_id is None:
                place = {1: Progress(7, "call")}
                stack = StackTexts("node1", world.id, {1: "x"}, places=place)
                self.inbox.extend([phase(1, 7, "setup"), stack])

    assert ran(Crossing(obedient, silent)).states[1].stuck_in == "call"


def test_an_expected_failure_starts_the_grace() -> None:
    def fails(rank: int, message: Any) -> list[Any]:
        if message.method == "run_item":
            call = phase(rank, 7, "call", "skipped", wasxfail="known")
            return [phase(rank, 7, "setup"), call, body_done(rank)]
        return obedient(rank, message)

    outcome = ran(Stage(fails, silent), timeout_s=60)
    assert not outcome.timed_out
    assert outcome.states[1].stuck_in


def dying(ordinal: int | None, at: str, marked: str = "call") -> Answer:
    def answer(rank: int, message: Any) -> list[Any]:
        if message.method == at:
            return [Death("node1", "w1", rank, 1, 3, None, ordinal=ordinal, phase=marked)]
        return obedient(rank, message)

    return answer


def test_a_death_leaves_other_ranks_less_time_than_a_failure() -> None:
    outcome = ran(Stage(silent, dying(7, "run_item")), timeout_s=60)
    assert (outcome.timed_out, outcome.grace_s) == ("", 0.05)
    assert outcome.states[0].stuck_in


@pytest.mark.parametrize("at", ["run_item", "tear_down"])
def test_a_death_is_never_clean(at: str) -> None:
    outcome = ran(Stage(obedient, dying(7, at)), timeout_s=30)
    assert not outcome.clean
    assert outcome.states[1].death is not None
    assert not outcome.stillborn


def test_a_death_that_is_known_at_the_end_does_not_pass() -> None:
    def answer(rank: int, message: Any) -> list[Any]:
        died = Death("node1", "w1", rank, 1, 3, None, ordinal=7, phase="after")
        return obedient(rank, message) + ([died] if message.method == "tear_down" else [])

    outcome = ran(Stage(answer, obedient), timeout_s=30)
    assert not outcome.clean
    assert outcome.states[0].death is not None
    assert outcome.states[0].torn_down is not None


def test_messages_without_end_do_not_keep_a_test() -> None:
    class Chatty(Stage):
        def next_message(self, timeout_s: float) -> Any:
            return super().next_message(timeout_s) if self.inbox else LiveOutput("w1")

    assert ran(Chatty(obedient, obedient), timeout_s=30).clean


def test_a_death_that_belongs_to_the_test_before() -> None:
    outcome = ran(Stage(silent, dying(6, "run_item", "after")), timeout_s=30)
    assert [death.rank for death in outcome.stillborn] == [1]
    assert not outcome.clean
    assert outcome.stopped >= outcome.started


def test_a_death_before_any_test_belongs_to_this_one() -> None:
    assert not ran(Stage(obedient, dying(None, "run_item", ""))).stillborn


def test_messages_about_another_test_or_world_are_ignored() -> None:
    def confused(rank: int, message: Any) -> list[Any]:
        if message.method == "run_item":
            return [
                phase(rank, 6, "call", "failed"),
                Death("node1", "w0", rank, 1, 3, None),
                PartLost("node1", "w0", "gone"),
                *obedient(rank, message),
            ]
        return obedient(rank, message)

    assert ran(Stage(obedient, confused), timeout_s=30).clean


@pytest.mark.parametrize(
    "last",
    [
        {"leaks": ("thread 'x'",)},
        {"reusable": False},
        {"problem": "Exit: enough"},
        {"entered": 4},
    ],
)
def test_ranks_that_are_not_used_again(last: dict[str, Any]) -> None:
    def ends_so(rank: int, message: Any) -> list[Any]:
        if message.method == "tear_down":
            return [phase(rank, 7, "teardown"), ended(rank, 7, **last)]
        return obedient(rank, message)

    assert not ran(Stage(obedient, ends_so), timeout_s=30).clean


def test_time_in_which_the_controller_was_stopped_does_not_count() -> None:
    outcome = ran(Stopped(obedient, silent), timeout_s=0.5)
    assert not outcome.timed_out
    assert outcome.clean


def calls_of_a_test(ranks: int) -> int:
    """Number of Python function calls while a test passes in this many ranks."""
    nodes = tuple(f"node{number}" for number in range(ranks))
    world = WorldInfo("w1", Shape(ranks, 1), nodes)
    stage = Stage(*[obedient] * ranks)
    counted = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "call"

    driven = WorldTest(cast(Client, stage), world, 60.0)
    sys.setprofile(count)
    try:
        driven.begin_item(RUN.args[0])
        outcome = driven.end_item()
    finally:
        sys.setprofile(None)
    assert outcome.clean
    return counted


def test_a_test_of_more_ranks_costs_no_more_per_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "POLL_S", 60.0)  # no poll of calls, because it depends on time
    assert calls_of_a_test(512) / 512 < 1.1 * calls_of_a_test(64) / 64
