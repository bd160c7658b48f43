"""Reports of ranks merged into one: which rank began, which lost a peer, and what never passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.machine.tcp import TcpState
from pytest_mnode.outcome import failures as failures_module
from pytest_mnode.outcome.call_record import INSIDE, LIMITED, RAISED, Call
from pytest_mnode.outcome.calls import Difference
from pytest_mnode.outcome.failures import different_calls, raised_in, sorted_failures
from pytest_mnode.outcome.merge import _fine, merge
from pytest_mnode.outcome.outcome import Failure, Outcome, RankState, collected, signature
from pytest_mnode.outcome.ranks_repr import RanksRepr
from pytest_mnode.protocol.messages import Death, PhaseReport, Shape, TornDown, WorldInfo
from pytest_mnode.protocol.rank_files import NCCL_SECTION, nccl_causes, size
from pytest_mnode.rank.reports import plain

LOST = "RuntimeError: Connection closed by peer"
NODES = ("node0", "node1", "node2", "node3")
PASSED = ("setup", "call", "teardown")


def report(when: str, outcome: str, longrepr: Any = None, wasxfail: str | None = None) -> Any:
    made = pytest.TestReport(
        "a.py::test_a",
        ("a.py", 1, "test_a"),
        {},
        outcome,  # type: ignore[arg-type]
        longrepr,
        when,  # type: ignore[arg-type]
        duration=0.5,
    )
    if wasxfail is not None:
        made.wasxfail = wasxfail
    return made


@pytest.mark.parametrize("style", ["long", "short"])
def test_a_victim_has_its_line_in_every_style(style: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(LOST)
    made = report("call", "failed", caught.getrepr(style=style))
    [failure] = raised_in("call", {0: made}, {0: 0.0})
    assert failure.text.partition("\n")[0].endswith(": raise RuntimeError(LOST)")


class Ranks:
    """Reports of four ranks; all pass unless a test changes them."""

    def __init__(self) -> None:
        world = WorldInfo("w1", Shape(4, 1), NODES)
        self.states = {rank: RankState(rank, NODES[rank]) for rank in range(4)}
        self.outcome = Outcome(world, self.states, 10.0, started=100.0, stopped=103.0)
        self.reports: dict[int, dict[str, pytest.TestReport]] = {rank: {} for rank in range(4)}
        for rank, state in self.states.items():
            for when in PASSED:
                self.say(rank, report(when, "passed"), 0.0)
            state.body_done, state.torn_down = True, TornDown()

    def say(self, rank: int, made: Any, at: float) -> None:
        self.reports[rank][made.when] = made
        data = {"wasxfail": made.wasxfail} if hasattr(made, "wasxfail") else {}
        state = self.states[rank]
        state.reports[made.when] = PhaseReport(made.when, made.outcome, data)
        state.at[made.when] = at
        if made.failed:
            state.failed_at = at

    def forget(self, rank: int, *phases: str) -> None:
        for when in phases:
            self.reports[rank].pop(when, None)
            self.states[rank].reports.pop(when, None)
        self.states[rank].torn_down = None

    def stick(self, rank: int, stack: str | None) -> None:
        self.forget(rank, "call", "teardown")
        self.states[rank].stuck_in, self.states[rank].stack = "call", stack

    def die(self, rank: int, at: float, *, phase: str = "call", **facts: Any) -> None:
        self.forget(rank, *{"call": ("call", "teardown"), "after": ()}[phase])
        ended = {"code": 3, "signal": None, **facts}
        self.states[rank].death = Death(NODES[rank], "w1", rank, 1, **ended, ordinal=1, phase=phase)
        self.states[rank].failed_at = at

    def merged(self) -> dict[str, pytest.TestReport]:
        made = merge(self.outcome, self.reports, "a.py::test_a", ("a.py", 1, "test_a"), {})
        return {str(r.when): r for r in made}

    def failure(self, when: str = "call") -> str:
        made = self.merged()[when]
        assert made.outcome == "failed"
        assert isinstance(made.longrepr, RanksRepr)
        return str(made.longrepr)


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_a_test_passes_if_all_ranks_passed(ranks: Ranks) -> None:
    merged = ranks.merged()
    assert {when: r.outcome for when, r in merged.items()} == dict.fromkeys(PASSED, "passed")
    assert dict(merged["call"].user_properties)["mnode.nodes"] == "node0,node1,node2,node3"


def test_victims_come_after_the_culprit_even_if_they_reported_first(ranks: Ranks) -> None:
    for rank in (0, 2, 3):
        ranks.say(rank, report("call", "failed", f"{LOST} [10.0.0.{rank}]:99"), at=1.0)
    ranks.die(1, at=2.0)
    text = ranks.failure()
    assert text.startswith("[rank 1 of 4 on node1: first]\nexited with code 3, in the test")
    assert text.index("caused by the first failure]") > text.index("rank 1")


WAITS = """Thread 0x1 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce
  File "/work/test_a.py", line 9 in test_a
"""
SLEEPS = """Thread 0x1 (most recent call first):
  File "/work/test_a.py", line 5 in test_a
"""


def test_a_rank_that_waits_for_a_failed_rank_is_no_culprit_with_any_error(
    ranks: Ranks,
) -> None:
    ranks.outcome.grace_s = 5.0
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    ranks.say(2, report("call", "failed", refused), at=1.0)
    for rank in (0, 1, 3):
        ranks.stick(rank, WAITS)
    text = ranks.failure()
    assert text.startswith("[rank 2 of 4 on node2")
    assert "[ranks 0-1,3 of 4 on node0,node1,node3: caused by the first failure]" in text


def test_a_rank_that_reports_missing_ranks_is_no_culprit(ranks: Ranks) -> None:
    ranks.outcome.grace_s = 5.0
    missed = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms"
    ranks.say(0, report("call", "failed", missed), at=1.0)
    ranks.stick(1, SLEEPS)
    text = ranks.failure()
    assert text.startswith("[rank 1 of 4 on node1")
    assert "it is at test_a.py:5" in text.partition("[rank 0 of 4")[0]
    assert "[rank 0 of 4 on node0: caused by the first failure]" in text


def test_the_phase_is_that_of_the_culprit_even_if_victims_had_not_reached_it(ranks: Ranks) -> None:
    ranks.die(1, at=2.0)
    ranks.outcome.grace_s = 0.3
    for rank in (0, 2, 3):
        ranks.forget(rank, *PASSED)
        ranks.states[rank].body_done = False
        ranks.states[rank].stuck_in, ranks.states[rank].stack = "setup", None
    assert ranks.merged()["setup"].outcome == "passed"
    assert ranks.failure("call").startswith("[rank 1 of 4 on node1: first]")


def test_among_victims_alone_the_first_in_time_is_the_culprit(ranks: Ranks) -> None:
    for rank, at in ((0, 3.0), (1, 2.0), (2, 1.0), (3, 4.0)):
        ranks.say(rank, report("call", "failed", f"{LOST} number {rank}"), at=at)
    assert ranks.failure().startswith("[rank 2 of 4 on node2: first]\nRuntimeError")


@pytest.mark.parametrize(
    ("lost", "peer"),
    [(f"{LOST} [10.0.0.4]:99", "its peer 10.0.0.4"), (LOST, "a peer")],
)
def test_a_peer_whose_loss_nothing_explains_may_be_the_culprit(
    ranks: Ranks, lost: str, peer: str
) -> None:
    ranks.say(0, report("call", "failed", lost), at=1.0)
    assert vars(ranks.merged()["call"])["mnode_culprit"] == {
        "culprit": f"rank 0 of 4 on node0 or {peer}",
        "culprit_nodes": (),
        "culprit_either": ((),),  # nobody knows which of the nodes is the peer
        "culprit_parts": _ranks(0),
    }


@pytest.mark.parametrize(
    ("losers", "words", "nodes"),
    [
        ((0,), "rank 0 of 4 on node0 or its peer 10.0.0.2 on node1", ("node0", "node1")),
        ((0, 2), "10.0.0.2 on node1, the peer that ranks 0,2 of 4 on node0,node2 lost", ("node1",)),
    ],
)
def test_a_lost_peer_is_one_of_two_nodes_or_what_several_lost(
    ranks: Ranks, losers: tuple[int, ...], words: str, nodes: tuple[str, ...]
) -> None:
    ranks.outcome.grace_s = 0.3
    for rank in range(4):
        if rank in losers:
            ranks.say(rank, report("call", "failed", f"{LOST} [10.0.0.2]:99"), at=1.0)
        else:
            ranks.stick(rank, WAITS)
            ranks.states[rank].tcp = TcpState((), (f"10.0.0.{rank + 1}",))
    culprit = vars(ranks.merged()["call"])["mnode_culprit"]
    assert culprit["culprit"] == words
    assert {*culprit["culprit_either"][0]} == {*nodes}


def _ranks(*ranks: int) -> dict[str, tuple[object, ...]]:
    return {"devices": (), "paths": (), "ranks": ranks, "settings": ()}


def test_ranks_that_fail_of_causes_of_their_own_are_all_in_the_culprit(ranks: Ranks) -> None:
    ranks.say(3, report("call", "failed", "ValueError: late"), at=9.0)
    ranks.say(1, report("call", "failed", "KeyError: early"), at=1.0)
    assert vars(ranks.merged()["call"])["mnode_culprit"] == {
        "culprit": "rank 1 of 4 on node1",
        "culprit_nodes": ("node1",),
        "culprit_either": (("node3",),),
        "culprit_parts": _ranks(1, 3),
    }
    for rank in (0, 2):
        ranks.say(rank, report("call", "failed", f"IndexError: {'ab'[rank // 2]}"), at=2.0)
    assert not hasattr(ranks.merged()["call"], "mnode_culprit")


def test_failures_are_in_order_of_time(ranks: Ranks) -> None:
    ranks.say(3, report("call", "failed", "ValueError: late"), at=9.0)
    ranks.say(1, report("call", "failed", "KeyError: early"), at=1.0)
    text = ranks.failure()
    assert text.index("KeyError: early") < text.index("ValueError: late")


def test_equal_errors_of_ranks_that_are_not_neighbours_are_one(ranks: Ranks) -> None:
    for rank in range(4):
        word = "odd" if rank % 2 else "even"
        ranks.say(rank, report("call", "failed", f"OverflowError: {word}"), at=1.0)
    text = ranks.failure()
    assert "[ranks 0,2 of 4 on node0,node2: first]\nOverflowError: even" in text
    assert "[ranks 1,3 of 4 on node1,node3]\nOverflowError: odd" in text
    assert text.count("Error: ") == 2


def test_the_summary_line_has_an_error_and_not_where_torch_was_built(ranks: Ranks) -> None:
    what = "ifa != nullptr. Unable to find address for: fab9"
    line = f"RuntimeError: [enforce fail at /__w/pytorch/third_party/gloo/device.cc:84] {what}"
    for rank in range(4):
        ranks.say(rank, report("call", "failed", line), 1.0)
    shown = ranks.merged()["call"].longrepr
    assert isinstance(shown, RanksRepr)
    assert shown.reprcrash.message.endswith(f": RuntimeError: {what}")
    assert line in str(shown)


def test_an_abort_after_a_lost_peer_is_a_victim(ranks: Ranks) -> None:
    ranks.die(0, 1.0, code=None, signal=6, log="[rank0] NCCL watchdog: ncclRemoteError")
    ranks.die(2, 2.0, code=None, signal=11)
    text = ranks.failure()
    assert text.startswith("[rank 2 of 4 on node2: first]\nkilled by SIGSEGV")
    assert "[rank 0 of 4 on node0: caused by the first failure]\nkilled by SIGABRT" in text


def test_an_abort_that_shows_no_lost_peer_is_the_culprit(ranks: Ranks) -> None:
    ranks.say(0, report("call", "failed", LOST), at=1.0)
    ranks.die(1, 2.0, code=None, signal=6, log="terminate called after throwing an instance of 'E'")
    assert ranks.failure().startswith("[rank 1 of 4 on node1: first]\nkilled by SIGABRT")


def test_a_death_names_its_cause_with_the_line_that_shows_it(ranks: Ranks) -> None:
    warned = "elm4:7:8 [0] a.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    ranks.die(1, 1.0, code=None, signal=6, log=f"{warned}ncclRemoteError: A call failed\n")
    ranks.die(2, 2.0, code=None, signal=6, log="ncclRemoteError: A call failed\n")
    text = ranks.failure()
    assert text.startswith(
        "[rank 1 of 4 on node1: first]\n"
        "killed by SIGABRT, in the test: port went down (mlx5_3:1, port error)\n"
        f"{warned.strip()!r}; look at the cable"
    )
    assert (
        "[rank 2 of 4 on node2: caused by the first failure]\nkilled by SIGABRT, in the test\n"
        in text
    )


def test_a_cause_that_only_repeats_how_a_rank_ended_is_left_out(ranks: Ranks) -> None:
    ranks.die(1, 1.0, code=None, signal=11, log="Segmentation fault (core dumped)\n")
    assert "killed by SIGSEGV, in the test\n" in ranks.failure()


def test_a_rank_that_raised_names_the_cause_in_its_nccl_log(ranks: Ranks) -> None:
    where = "elm4:7:8 [0] a.cc:93 NCCL WARN NET/IB : "
    down = f"{where}mlx5_3:1 Got async event : port error"
    silent = f"{where}Got completion from peer 10.7.0.9<4> with status=12 opcode=1 len=0"
    for rank, log in enumerate(("", silent, down, f"{silent}\n{down}")):
        made = report("call", "failed", "DistBackendError: ncclRemoteError: A call failed")
        made.sections = [(NCCL_SECTION, f"{log}\n")] if log else []
        ranks.say(rank, made, 1.0 + rank)
    text = ranks.failure()
    assert text.startswith(
        "[ranks 2-3 of 4 on node2,node3: first]\nDistBackendError: ncclRemoteError: A call failed: "
        f"port went down (mlx5_3:1, port error)\n{down!r}; look at the cable"
    )
    assert "[rank 1 of 4 on node1: caused by the first failure]" in text
    assert f"{silent!r}; check the link" in text
    assert "[rank 0 of 4 on node0: caused by the first failure]" in text


def test_nccl_s_log_of_earlier_tests_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "rank0.nccl.log"
    assert (size(log), nccl_causes(log, size(log))) == (0, "")
    log.write_text("elm4:7:8 [0] a.cc:93 NCCL WARN NET/IB : Got async event : port error\n")
    assert nccl_causes(log)
    assert nccl_causes(log, size(log)) == ""


def test_a_death_after_the_last_report_does_not_pass(ranks: Ranks) -> None:
    ranks.die(1, 1.0, phase="after")
    assert "exited with code 3, in teardown, after its last report" in ranks.failure("call")
    assert ranks.merged()["teardown"].outcome == "passed"


@pytest.mark.parametrize(
    ("reported", "torn_down", "quits", "words"),
    [
        (True, TornDown(), False, "passed"),
        (False, TornDown(), False, "ended the test"),
        (False, TornDown(), True, "ended the test"),
        (True, None, False, "ended the test"),
        (True, None, True, "stopped before it ended the test"),
        (True, TornDown(absent=True), False, "does not have this test"),
    ],
)
def test_ranks_beside_a_failure(
    ranks: Ranks, reported: bool, torn_down: TornDown | None, quits: bool, words: str
) -> None:
    if not reported:
        ranks.forget(1, "call", "teardown")
    ranks.states[1].torn_down, ranks.outcome.quit = torn_down, quits
    assert _fine(ranks.outcome, 1) == words


def test_a_silent_rank_does_not_pass(ranks: Ranks) -> None:
    ranks.states[3].torn_down = None
    assert "[rank 3 of 4 on node3]\ndid not report the end of the test" in ranks.failure()


def test_a_rank_that_did_not_run_the_body_does_not_pass(ranks: Ranks) -> None:
    ranks.reports[2].pop("call")
    ranks.states[2].reports.pop("call")
    assert "[rank 2 of 4 on node2]\ndid not run the test, but other ranks did" in ranks.failure()


@pytest.mark.parametrize("stack", [None, "", "no dump at all"])
def test_a_rank_that_gave_no_stack(ranks: Ranks, stack: str | None) -> None:
    ranks.stick(1, stack)
    ranks.states[1].state = "its process is stopped (SIGSTOP)"
    ranks.outcome.timed_out, ranks.outcome.limit_s = "call", 10.0
    text = ranks.failure()
    assert text.startswith("[rank 1 of 4 on node1]\nno end within 10 s")
    if not stack:
        assert "no stack could be read: its process is stopped (SIGSTOP)" in text


def test_a_failure_of_several_ranks_has_the_time_of_its_first() -> None:
    found = [(0, "timeout", 4.0), (1, "OSError", 3.0), (2, "timeout", 2.0), (3, "timeout", 5.0)]
    texts = {rank: text for rank, text, _ in found}
    failures = collected(found, lambda rank: Failure([], "call", texts[rank]))
    ordered = [(one.line, one.time, one.ranks) for one in sorted_failures(failures)]
    assert ordered == [("timeout", 2.0, [0, 2, 3]), ("OSError", 3.0, [1])]


def test_different_calls_are_of_the_earliest_phase_that_failed(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    differ = Difference([1], "called barrier", "called barrier")
    monkeypatch.setattr(failures_module, "difference", lambda *_, **__: differ)
    others = [
        Failure([2], "teardown", "OSError", in_phase=True),
        Failure([0], "call", "RuntimeError"),
        Failure([3], "teardown", "OSError", in_phase=True),
    ]
    [found] = different_calls(ranks.outcome, others)
    assert (found.when, found.in_phase, found.ranks) == ("call", False, [1])
    assert different_calls(ranks.outcome, []) == [], "nobody failed or is stuck"


def call(number: int, state: str) -> Call:
    return Call(number, number, "", "barrier", "", "a.py:1", state)


def test_a_victim_that_raised_in_a_call_waited_in_it(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, inside, raised = call(1, RAISED), call(2, INSIDE), call(2, RAISED)
    calls = {0: [before, raised], 1: [before, inside], 2: [], 3: [raised]}
    compared: list[Any] = []
    monkeypatch.setattr(Outcome, "calls", property(lambda _: dict(calls)))
    monkeypatch.setattr(
        failures_module, "difference", lambda calls, *_, **__: compared.append(calls)
    )
    others = [Failure([0, 1, 2], "call", LOST, victim=True), Failure([3], "call", "OSError")]
    assert different_calls(ranks.outcome, others) == []
    assert compared == [calls | {0: [before, call(2, LIMITED)]}]


def test_failures_in_calls_that_differ_are_their_victims(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {0: [call(1, RAISED)], 1: [call(1, RAISED)], 2: [call(1, INSIDE)]}
    monkeypatch.setattr(Outcome, "calls", property(lambda _: dict(calls)))
    differ = Difference([1], "called barrier", "called barrier")
    monkeypatch.setattr(failures_module, "difference", lambda *_, **__: differ)
    others = [
        Failure([0, 1], "call", "RuntimeError"),
        Failure([0, 2], "call", "OSError"),
        Failure([3], "call", LOST, victim=True),
    ]
    different_calls(ranks.outcome, others)
    assert [one.victim for one in others] == [True, False, True]


@pytest.mark.parametrize(
    ("lost", "victim", "later"),
    [([], False, False), ([2], False, True), ([2], True, False), ([0], False, False)],
)
def test_a_rank_that_is_gone_for_another_cause_explains_later_calls(
    ranks: Ranks, lost: list[int], victim: bool, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    differ = Difference([1], "called barrier", "called barrier")
    monkeypatch.setattr(failures_module, "difference", lambda *_, **__: differ)
    for rank in lost:
        ranks.states[rank].lost = "the node is gone"
    [found] = different_calls(ranks.outcome, [Failure([2, 3], "call", "OSError", victim=victim)])
    assert found.time == (math.inf if later else -math.inf)


def test_calls_that_differ_are_a_failure_if_a_rank_is_stuck(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    differ = Difference([1], "called barrier", "called barrier")
    monkeypatch.setattr(failures_module, "difference", lambda *_, **__: differ)
    ranks.stick(3, "")
    [found] = different_calls(ranks.outcome, [])
    assert (found.when, found.in_phase, found.ranks) == ("call", False, [1])


@pytest.mark.parametrize("stuck", [3, 4])
def test_time_that_no_rank_reported_belongs_to_the_failed_phase(ranks: Ranks, stuck: int) -> None:
    for rank in range(stuck):
        ranks.stick(rank, "")
    ranks.outcome.timed_out, ranks.outcome.limit_s = "call", 2.0
    assert sum(r.duration for r in ranks.merged().values()) == pytest.approx(3.0)


def test_a_skip_on_some_ranks_while_another_died(ranks: Ranks) -> None:
    ranks.say(0, report("call", "skipped", ("a.py", 1, "Skipped: no device")), at=5.0)
    ranks.die(1, 1.0)
    text = ranks.failure()
    assert text.startswith("[rank 1 of 4 on node1: first]\nexited with code 3")
    assert "skipped (no device), but ranks 2-3 did not; " in text


def test_a_death_after_a_skip_on_all_is_no_skip(ranks: Ranks) -> None:
    for rank in range(4):
        ranks.say(rank, report("setup", "skipped", ("a.py", 1, "Skipped: no device")), at=5.0)
        ranks.reports[rank].pop("call")
        ranks.states[rank].reports.pop("call")
    ranks.die(1, 9.0, phase="after")
    assert "exited with code 3" in ranks.failure("call")
    assert all(r.outcome != "skipped" for r in ranks.merged().values())


def test_an_expected_failure_with_a_hang_at_the_limit_is_a_failure(ranks: Ranks) -> None:
    ranks.say(1, report("call", "skipped", "known", wasxfail="known"), at=1.0)
    ranks.stick(0, "")
    assert ranks.merged()["call"].outcome == "skipped"
    ranks.outcome.timed_out = "call"
    assert "[rank 1 of 4 on node1: failed as expected]" in ranks.failure()


def test_an_expected_failure_that_cannot_tear_down_stays_expected(ranks: Ranks) -> None:
    ranks.say(1, report("call", "skipped", "known", wasxfail="known"), at=1.0)
    ranks.say(2, report("teardown", "failed", "OSError: busy"), at=2.0)
    assert ranks.merged()["call"].wasxfail == "known"
    assert "OSError: busy" in ranks.failure("teardown")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("<ProcessGroup at 0x7f01>", "<ProcessGroup at 0x7f02>", True),
        ("World(rank=1, size=4, node='a')", "World(rank=2, size=4, node='b')", True),
        ("/tmp/x/rank0/file", "/tmp/x/rank3/file", True),
        ("assert 4 == 5", "assert 3 == 5", False),
    ],
)
def test_signatures_ignore_rank_specific_text(one: str, other: str, equal: bool) -> None:
    assert (signature(one) == signature(other)) is equal


class Odd(int):
    def __repr__(self) -> str:
        raise RuntimeError


class Mute:
    def __str__(self) -> str:
        raise RuntimeError


def test_plain_values_only() -> None:
    given = {"a": (1, Odd(2)), 3: [True, None, 2.5, "x"], "m": Mute(), "p": Ranks}
    made = plain(given)
    assert made == {
        "a": (1, 2), "3": [True, None, 2.5, "x"], "m": "<Mute>", "p": str(Ranks)
    }  # fmt: skip
    assert type(made["a"][1]) is int


def test_a_lost_peer_in_teardown_is_an_error_of_teardown(ranks: Ranks) -> None:
    ranks.say(2, report("teardown", "failed", f"{LOST} of node1"), at=1.0)
    assert ranks.merged()["call"].outcome == "passed"
    assert "[rank 2 of 4 on node2]\nRuntimeError" in ranks.failure("teardown")


@pytest.mark.parametrize(
    ("by_rank", "outcomes"),
    [
        ({0: ["a+"], 1: ["a+"], 2: ["a+"], 3: ["a+"]}, ["passed"]),
        ({0: ["a+", "b+"], 3: ["a+", "b-"]}, ["passed", "failed"]),
        ({0: ["a+", "a-"], 1: ["a+", "a+", "a+"]}, ["passed", "failed", "passed"]),
        ({1: ["a-"], 2: ["b-"]}, ["failed", "failed"]),
        ({}, []),
    ],
)
def test_subtests_of_ranks_are_merged_one_by_one(
    ranks: Ranks, by_rank: dict[int, list[str]], outcomes: list[str]
) -> None:
    partial: dict[int, list[pytest.TestReport]] = {rank: [] for rank in range(4)}
    for rank, names in by_rank.items():
        for name in names:
            failed = name[1] == "-"
            one = report("call", "failed" if failed else "passed", "wrong" if failed else None)
            one.context = name[0]
            partial[rank].append(one)
            ranks.states[rank].partial.append((1.0, PhaseReport("call", one.outcome, {})))
    made = merge(ranks.outcome, ranks.reports, "a.py::t", ("a.py", 1, "t"), {}, partial=partial)
    assert [r.outcome for r in made if hasattr(r, "context")] == outcomes
    [body] = [r for r in made if r.when == "call" and not hasattr(r, "context")]
    assert body.outcome == ("failed" if "failed" in outcomes else "passed")
    assert [r.when for r in made if not hasattr(r, "context")] == list(PASSED)
