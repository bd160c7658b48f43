"""The ledger of a job, by what its ranks noted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from pytest_mnode.criteria.goodput import (
    PARTS,
    Connection,
    Ledger,
    RankNotes,
    ledger,
    read_notes,
    slow_link,
)
from pytest_mnode.spec.workload import PartName

T = 1_000_000.0
NAMES: tuple[PartName | Literal["goodput"], ...] = (*PARTS, "goodput")


def trace(rank: int, *, exposed: float, hidden: float = 0.0) -> bytes:
    """Two steps, of which the rank computes 0.1 s, as torch's profiler writes them on CPUs."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1e5},
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 9e4, "dur": 10},
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "gloo:all_reduce",
            "ts": 1e5 - hidden * 1e6,
            "dur": (hidden + exposed) * 1e6,
        },
        {"ph": "i", "name": "instant", "ts": 5},
    ]
    data = {"distributedInfo": {"rank": rank}, "traceEvents": events}
    return gzip.compress(json.dumps(data).encode())


def notes(
    rank: int,
    begin: float,
    steps: int,
    *,
    each: float = 1.0,
    first: float = 0.0,
    spans: Sequence[tuple[object, ...]] = (),
    start: int = 0,
    stall: Mapping[int, float] | None = None,
) -> dict[str, bytes]:
    """A rank that begins at T + begin, calls a module 5 s later and then makes steps."""
    lines: list[tuple[object, ...]] = [("begin", T + begin, f"node{rank}")]
    now = T + begin + 5
    lines.append(("forward", now))
    for number in range(1, steps + 1):
        now += each + (first if number == 1 else 0) + (stall or {}).get(number, 0.0)
        lines.append(("step", now))
    lines += [(kind, T + float(b), T + float(e)) for kind, b, e in spans]  # type: ignore[arg-type]
    text = "".join(json.dumps(one) + "\n" for one in lines)
    return {f"rank{rank}.{start}0.jsonl": text.encode() + b'["step", 1'}


def made(*files: Mapping[str, bytes], wall: float, **keys: object) -> Ledger:
    every = {name: content for some in files for name, content in some.items()}
    found = ledger(read_notes(every), T, T + wall, **keys)  # type: ignore[arg-type]
    assert sum(found.parts.values()) == pytest.approx(wall)
    return found


def parts(found: Ledger) -> dict[str, float]:
    return {name: round(s, 6) for name in PARTS if (s := found.parts[name]) > 1e-9}


def test_a_plain_job() -> None:
    found = made(notes(0, 2, 10, first=3), notes(1, 2.5, 10, first=2.5), wall=25)
    expected = {"starting": 7.5, "compiling": 2.5, "stepping": 10.0, "ending": 5.0}
    assert parts(found) == expected
    assert found.goodput == pytest.approx(10 / 25)


def test_input_and_checkpoints_are_those_of_the_slowest_rank() -> None:
    of_0 = [("save", 9.2, 9.5), ("input", 7.1, 7.15)]
    of_1 = [("input", 5.0 + n, 5.4 + n) for n in range(10)]
    found = made(notes(0, 0, 10, spans=of_0), notes(1, 0, 10, spans=of_1), wall=16)
    expected = {"starting": 5, "stepping": 5.7, "input": 4, "checkpointing": 0.3, "ending": 1}
    assert parts(found) == expected
    assert found.slow == {"input": 1, "checkpointing": 0}


def test_traces_tell_communication_and_the_rank_that_others_wait_for() -> None:
    traces = {
        f"rank{rank}.00.7.trace.json.gz": trace(rank, exposed=seconds, hidden=0.02)
        for rank, seconds in enumerate((1.2, 0.4, 1.2))
    }
    found = made(traces, *(notes(rank, 0, 10) for rank in range(3)), wall=15)
    assert parts(found) == {"starting": 5, "stepping": 4, "communicating": 2, "slow rank": 4}
    assert found.slow == {"slow rank": 1}
    assert found.traces == 1
    assert found.hidden == pytest.approx(0.01)
    assert all(hidden == pytest.approx(0.01) for _, hidden in found.traced.values())


@pytest.mark.parametrize(
    ("last_step", "lost"), [(16, {"lost steps": 4.0, "stepping": 16.0}), (None, {"stepping": 20.0})]
)
def test_a_restart(last_step: int | None, lost: Mapping[str, float]) -> None:
    """Ten steps, a kill, ten more of which four were made before."""
    found = made(notes(0, 0, 10), notes(0, 18, 10, start=1), wall=33, last_step=last_step)
    assert parts(found) == {"starting": 5, "restarting": 8, **lost}


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        ({"01": 2.4, "12": 2.2, "20": 92.5}, {"node1"}),
        ({"01": 25.0, "12": 24.0, "20": 2.4}, {"node0", "node2"}),
        ({"01": 9.0, "12": 24.0, "20": 26.0}, set()),
        ({"01": 2.4, "12": 2.3, "20": 2.2}, set()),  # the whole fabric
        ({"01": 2.4, "12": 2.3, "20": 2.2, "02": 25.0}, set()),  # several
        ({"01": 2.4, "12": 2.2, "20": 92.5, "03": 0.1}, {"node1"}),
    ],
)
def test_the_node_of_a_slow_link(rates: Mapping[str, float], named: set[str]) -> None:
    """Each path between nodes carries 40 MB, at so many MB/s while it is busy."""
    files = []
    for rank in range(3):
        [(name, content)] = notes(rank, 0, 10).items()
        sent = [
            [f"10.0.0.{rank}", f"10.0.0.{path[1]}", 4e7, 40 / rate, 4.1e7]
            for path, rate in rates.items()
            if path[0] == str(rank)
        ]
        sent += [[f"10.0.0.{rank}", f"10.0.0.{rank}", 9e9, 1.0, 9e9]]  # within the node
        lines = [["sent", T + 9, ["torn", [1]]], ["sent", T + 9, sent], ["sent", T + 9, None]]
        text = "".join(json.dumps(one) + "\n" for one in lines)
        files.append({name: text.encode() + content})
    assert made(*files, wall=16).slow_link == named


@pytest.mark.parametrize(
    ("local", "peer", "counted", "named"),
    [
        ("10.0.0.0", "10.0.0.3", (2e8, 4.0, 2.1e8), {"node0", "node3"}),
        ("10.0.0.0", "10.0.0.3", (2e8, 4.0, 4e8), set()),  # messages of half a segment
        ("10.0.0.0", "10.0.0.3", (2e7, 0.4, 2e7), set()),  # a tenth of what others carry
        ("10.0.0.0", "10.0.0.2", (2e7, 9.0, 2e7), set()),
        ("127.0.0.1", "127.0.1.1", (2e8, 0.002, 2e8), set()),
        ("172.17.0.1", "172.17.0.2", (2e8, 0.002, 2e8), set()),  # all nodes have it
    ],
)
def test_what_shows_a_slow_link(
    local: str, peer: str, counted: tuple[float, float, float], named: set[str]
) -> None:
    """One more connection than a ring of four nodes at 1 GB/s."""
    bridges = Connection("172.17.0.1", "172.17.0.2", 0.0, 0.0, 0.0)
    ranks = [RankNotes(0, "node0", sent=[Connection(local, peer, *counted)]), RankNotes(4, "node1")]
    ranks[1].sent = [Connection("127.0.1.1", "127.0.0.1", 0.0, 0.0, 0.0)]
    for n in range(4):
        ring = Connection(f"10.0.0.{n}", f"10.0.0.{(n + 1) % 4}", 2e8, 0.2, 2.02e8)
        ranks.append(RankNotes(n, f"node{n}", sent=[ring, bridges]))
    assert slow_link(ranks) == named


def test_few_bytes_show_no_slow_link() -> None:
    paths = [("10.0.0.0", "10.0.0.1", 9e5, 9.0, 9e5), ("10.0.0.1", "10.0.0.0", 3e6, 1.0, 3e6)]
    ranks = [RankNotes(n, f"node{n}", sent=[Connection(*one)]) for n, one in enumerate(paths)]
    assert slow_link(ranks) == set()


def test_starts_are_told_apart() -> None:
    """Rank 1 died before it called a module, and begins first after the restart."""
    died = {"rank1.7.jsonl": f'["begin", {T + 2}, "node1"]\n'.encode()}
    again = notes(1, 18, 10, start=1), notes(0, 18.5, 10, start=1, each=0.95)
    found = made(notes(0, 0, 10), died, *again, wall=33, last_step=16)
    assert parts(found) == {"starting": 5, "restarting": 8.5, "stepping": 15.5, "lost steps": 4}
    assert found.starts == 2


@pytest.mark.parametrize(("restarts", "part"), [(1, "restarting"), (0, "ending")])
def test_a_restart_that_reached_no_step_is_no_end(restarts: int, part: PartName) -> None:
    """Another program of the job, after its training, was not started by torchrun again."""
    last = f'["begin", {T + 17}, "node0", 77, "{restarts}"]\n'.encode()
    found = made(notes(0, 0, 10), {"rank0.70.jsonl": last}, wall=30)
    assert parts(found) == {"starting": 5, "stepping": 10, part: 15}
    assert found.starts == 1 + restarts


def test_one_odd_step_accuses_nobody() -> None:
    shared = [("input", 5.0 + n, 5.4 + n) for n in range(10)]
    odd = [*shared[:3], ("input", 8.0, 8.9), *shared[4:]]
    found = made(notes(0, 0, 10, spans=odd), notes(1, 0, 10, spans=shared), wall=15)
    assert found.parts["input"] == pytest.approx(4.5)
    assert found.slow == {}
    traces = {
        f"rank{rank}.00.{number}.trace.json.gz": trace(rank, exposed=0.4 if rank == slow else 1.2)
        for number, slow in ((4, 0), (7, 1), (9, 2))
        for rank in range(3)
    }
    found = made(traces, *(notes(rank, 0, 10) for rank in range(3)), wall=15)
    assert found.slow == {}
    assert (found.parts["slow rank"], found.traces) == (0, 3)


@pytest.mark.parametrize("ahead", [-100.0, 100.0, 3.0])
def test_clocks_that_differ(ahead: float) -> None:
    found = made(notes(0, 2 + ahead, 10), notes(1, 2, 10), wall=18)
    assert found.goodput is None
    assert {found.unseen(name) for name in NAMES} == {
        "clocks of the nodes differ from the controller's"
    }


def test_what_is_unseen() -> None:
    plain = notes(0, 0, 10), notes(1, 0, 10)
    traced = {f"rank{rank}.00.7.trace.json.gz": trace(rank, exposed=1) for rank in range(2)}
    spans = [("hidden input", 6.0, 6.5), ("save", 7.0, 7.1)]
    again = notes(0, 18, 10, start=1, spans=spans), notes(1, 18, 10, start=1)

    def unseen(found: Ledger) -> set[str]:
        return {name for name in NAMES if found.unseen(name)}

    assert unseen(made(*plain, wall=15)) == {
        *("communicating", "slow rank", "input", "checkpointing")
    }
    assert unseen(made(traced, *plain, *again, wall=33, last_step=16)) == set()
    assert unseen(made(traced, *plain, *again, wall=33)) == {"lost steps"}
    one = dict(list(traced.items())[:1])
    assert unseen(made(one, *plain, *again, wall=33, last_step=16)) == {
        *("communicating", "slow rank")
    }
    hidden = made(traced, *plain, *again, wall=33, last_step=16)
    assert hidden.parts["input"] == 0


def test_a_stall_and_a_hang() -> None:
    found = made(notes(0, 0, 10, stall={6: 7.0}), wall=22)
    assert parts(found) == {"starting": 5, "stepping": 10, "stalled": 7}
    assert parts(made(notes(0, 0, 10), wall=35, hung=True))["stalled"] == 20


@pytest.mark.parametrize(
    "files",
    [{}, {"rank0.7.jsonl": b'["begin", 1000001.0, "a"]\n'}, {"rank0.7.5.trace.json.gz": b""}],
)
def test_what_was_not_noted_is_unattributed(files: Mapping[str, bytes]) -> None:
    found = made(files, wall=9)
    assert (parts(found), found.goodput) == ({"unattributed": 9}, None)
    assert found.unseen("input") == "no rank noted a step"


def test_programs_that_a_rank_starts_do_not_count() -> None:
    other = {"rank0.999.jsonl": b'["begin", 1000001.0, ""]\n'}
    assert made(other, notes(0, 0, 10), wall=15).steps == 10


@pytest.mark.parametrize(
    ("begin", "end", "seconds"), [(1, 6, 2), (0, 9, 6), (2, 5, 0), (9, 12, 0), (6, 7, 1), (0, 5, 2)]
)
def test_spans_count_as_far_as_they_are_within(begin: float, end: float, seconds: float) -> None:
    assert RankNotes(0, spans={"save": [(0, 2), (5, 9)]}).during("save", begin, end) == seconds


def noted(rank: int = 0, *, saved: tuple[float, float] | None = None, **times: Any) -> RankNotes:
    spans = {"save": [saved]} if saved else {}
    return RankNotes(rank, "n0", spans=spans, **{"began": 0.0, "forward": 10.0} | times)


def test_a_checkpoint_after_the_last_step_is_no_part_of_the_end() -> None:
    found = ledger([[noted(steps=[12.0, 14.0], saved=(15.0, 18.0))]], 0.0, 20.0)
    assert (found.parts["checkpointing"], found.parts["ending"]) == (3.0, 3.0)


def test_a_job_that_hangs_before_its_first_step_stalls() -> None:
    found = ledger([[noted()]], 0.0, 70.0, hung=True)
    assert (found.parts["starting"], found.parts["stalled"]) == (10.0, 60.0)


@pytest.mark.parametrize(
    ("times", "hung", "known"),
    [
        ({}, False, True),
        ({"began": -1.5}, False, False),
        ({"last": 21.5}, False, False),
        ({"last": 21.5}, True, True),  # it is ended after its last look
    ],
)
def test_a_rank_that_lives_outside_of_the_job_has_another_clock(
    times: dict[str, Any], hung: bool, known: bool
) -> None:
    found = ledger([[noted(steps=[12.0, 14.0], **times)]], 0.0, 20.0, hung=hung)
    assert ("clocks" not in found.unseen("goodput")) is known


def test_ranks_and_steps_of_all_starts_count() -> None:
    first = [noted(rank, steps=[12.0]) for rank in (0, 1)]
    again = [noted(began=15.0, forward=20.0, steps=[22.0, 24.0, 26.0])]
    found = ledger([first, again], 0.0, 30.0, last_step=2)
    assert (found.ranks, found.starts, found.steps) == (2, 2, 4)
    assert found.lost == 1, "those of the last start are not done twice"
