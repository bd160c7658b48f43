"""Locations of ranks, in few lines."""

from __future__ import annotations

from torch.distributed import distributed_c10d

from pytest_mnode.machine.tcp import TcpState
from pytest_mnode.outcome.call_record import PENDING, SEPARATOR
from pytest_mnode.outcome.describe import MOST_SHOWN
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.outcome.stuck import awaited, stacks_of, stuck_failures, whereabouts
from pytest_mnode.protocol.messages import Shape, TornDown, WorldInfo

TORCH = f'  File "{distributed_c10d.__file__}", line 1 in barrier'
RECV = TORCH.replace("barrier", "recv")
NO_ANSWER = "gets no TCP acknowledgement from"


def stack(line: int, ident: int = 1) -> str:
    return f'Current thread 0x{ident:x} (most recent call first):\n  File "/t.py", line {line} in f'


def outcome(size: int, **states: RankState) -> Outcome:
    world = WorldInfo("w1", Shape(size, 1), tuple(f"node{rank}" for rank in range(size)))
    ranks = {rank: RankState(rank, f"node{rank}", stack=stack(7, rank)) for rank in range(size)}
    return Outcome(world, ranks, 10.0)


def test_equal_ranks_together() -> None:
    of = outcome(6)
    of.states[1].stack = stack(9)
    of.states[2].lost = "its node is lost"
    of.states[3].torn_down = TornDown()
    of.states[4].body_done = True
    of.states[5].stack, of.states[5].state = "", "its process is stopped (SIGSTOP)"
    text = "\n".join(whereabouts(of))
    assert "[rank 0 of 6 on node0] at t.py:7 in f\nstack of rank 0:\n" in text
    assert "[rank 1 of 6 on node1] at t.py:9 in f" in text
    assert "[rank 2 of 6 on node2] is gone" in text
    assert "[rank 3 of 6 on node3] has ended" in text
    assert "[rank 4 of 6 on node4] has ended the body of the test, and waits" in text
    assert "[rank 5 of 6 on node5] no stack could be read: its process is stopped (SIGSTOP)" in text


def test_one_rank_waits() -> None:
    of = outcome(2)
    of.timed_out = "call"
    for state in of.states.values():
        state.stuck_in = "call"
    of.states[1].stack = stack(8).replace("\n", f"\n{TORCH}\n", 1)
    absent = stuck_failures(of, explained=False)[0]
    assert "did not enter the barrier (t.py:8) that rank 1 waits in; it is at t.py:7" in absent.line


def test_equal_stacks_are_shown_once_whatever_thread_got_the_signal() -> None:
    of = outcome(3)
    of.states[1].stack = stack(7, 5).replace("Current thread", "Thread")
    assert [text.partition("\n")[0] for text in stacks_of(of, [0, 1, 2])] == ["stack of ranks 0-2:"]
    of.states[1].stack = stack(8, 5)
    assert len(stacks_of(of, [0, 1, 2])) == 2


def test_a_rank_waits_for_a_message() -> None:
    """The ranks that ended the test, or are in a collective, need not be those that owe it."""
    of = outcome(3)
    of.timed_out = of.states[0].stuck_in = "call"
    of.states[0].stack = stack(8).replace("\n", f"\n{RECV}\n", 1)
    of.states[1].body_done = of.states[2].body_done = True
    (waits,) = stuck_failures(of, explained=False)
    assert (waits.ranks, waits.victim) == ([0], False)
    assert "waits in recv at t.py:8 in f, but ranks 1-2 ended the test" in waits.line
    for state in of.states.values():
        state.stuck_in, state.stack = "call", stack(9).replace("\n", f"\n{TORCH}\n", 1)
    of.states[2].stack = stack(8).replace("\n", f"\n{RECV}\n", 1)
    first, others = stuck_failures(of, explained=False)
    assert (first.ranks, first.victim, others.ranks, others.victim) == ([2], False, [0, 1], True)
    assert "waits in recv at t.py:8 in f, but ranks 0-1 in barrier" in first.line
    of.timed_out = ""  # another rank has failed
    assert all(failure.victim for failure in stuck_failures(of, explained=False))


def test_a_rank_waits_for_a_collective_on_its_device() -> None:
    """The NCCL call has returned: only the record shows that the rank waits for it."""
    of = outcome(2)
    of.timed_out = "call"
    for state in of.states.values():
        state.stuck_in, state.calls = "call", ""
    words = (PENDING, "1", "1", "", "all_reduce", "", "of [8] float32 with SUM", "t.py:6")
    of.states[1].calls = SEPARATOR.join(words)
    absent, waits = stuck_failures(of, explained=False)
    assert (
        "did not enter the all_reduce (t.py:6) that rank 1 waits in; it is at t.py:7" in absent.line
    )
    assert (absent.ranks, absent.victim, waits.ranks, waits.victim) == ([0], False, [1], True)
    assert waits.line == "no end within 0 s: waits for the all_reduce of t.py:6 at t.py:7 in f"
    of.states[0].calls = of.states[1].calls
    assert len(stuck_failures(of, explained=False)) == 1


def cut_off(size: int, **silent: str) -> Outcome:
    """All ranks wait in a barrier. silent: nodes that do not answer a rank, by rank."""
    of = outcome(size)
    of.timed_out = "call"
    for rank, state in of.states.items():
        state.stuck_in, state.stack = "call", stack(8).replace("\n", f"\n{TORCH}\n", 1)
        peers = silent.get(f"rank{rank}", "").split()
        state.tcp = TcpState(
            tuple((f"10.0.0.{peer}", 5000) for peer in peers), (f"10.0.0.{rank}", "172.17.0.1")
        )
    return of


def test_ranks_whose_nodes_do_not_answer_are_named_first() -> None:
    of = cut_off(4, rank2="0")
    of.states[2].output = "step 7\n"
    first, others = stuck_failures(of, explained=False)
    assert first.text.endswith("end of the output of rank 2:\nstep 7")
    assert (first.ranks, first.victim, others.ranks, others.victim) == ([0, 2], False, [1, 3], True)
    assert first.line == (
        f"no end within 0 s: rank 2 on node2 {NO_ANSWER} 10.0.0.0:5000 on node0; "
        "wait in barrier at t.py:8 in f"
    )


def test_the_one_node_that_all_lost_connections_have_in_common_is_named() -> None:
    first, others = stuck_failures(cut_off(4, rank0="1", rank1="2 3"), explained=False)
    assert (first.ranks, others.ranks) == ([1], [0, 2, 3])
    assert f"rank 0 on node0 {NO_ANSWER} 10.0.0.1:5000 on node1; rank 1 on" in first.line
    several = stuck_failures(cut_off(4, rank0="1", rank2="3"), explained=False)
    assert [failure.ranks for failure in several] == [[0, 1, 2, 3]]


def test_an_address_of_several_nodes_names_them() -> None:
    of = cut_off(2)
    of.states[0].tcp = TcpState((("172.17.0.1", 7),), ("172.17.0.1",))
    first, *_ = stuck_failures(of, explained=False)
    assert f"rank 0 on node0 {NO_ANSWER} 172.17.0.1:7 on node0,node1; " in first.line


def test_lost_connections_blame_no_node_if_another_failure_or_machine_explains_them() -> None:
    assert all(f.victim for f in stuck_failures(cut_off(4, rank2="0"), explained=True))
    [waits] = stuck_failures(cut_off(4, rank2="77"), explained=False)
    assert waits.line == "no end within 0 s: wait in barrier at t.py:8 in f"


def test_the_text_is_bounded() -> None:
    alike = whereabouts(outcome(1000))
    assert alike[0] == "[ranks 0-999 of 1000 on node0,node1,node2,997 more] at t.py:7 in f"
    assert len(alike) == 4
    of = outcome(1000)
    for rank, state in of.states.items():
        state.stack = stack(rank + 1)
    lines = whereabouts(of)
    assert lines[-1] == f"further places, of ranks {MOST_SHOWN}-999, are not shown"
    assert len(lines) == 4 * MOST_SHOWN + 1


def test_the_ranks_that_others_wait_for() -> None:
    of = outcome(3)
    assert awaited(of, set()) == "3 ranks"
    assert awaited(of, {2}) == "rank 2 of 3 on node2"
    assert awaited(of, {0, 1, 2}) == "3 ranks"
    of.states[0].body_done = of.states[1].body_done = True
    assert awaited(of, {0}) == "rank 2 of 3 on node2"
    of.states[2].lost = "its node is lost"
    assert awaited(of, set()) == "ranks 0-1 of 3 on node0,node1"
    of.states[0].torn_down = of.states[1].torn_down = TornDown()
    assert awaited(of, set()) == ""
