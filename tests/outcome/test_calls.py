"""Differences between records of calls: differing ranks, ranks that wait, allowed differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from pytest_mnode.outcome import calls as calls_module
from pytest_mnode.outcome.call_record import (
    INSIDE,
    LIMITED,
    NOT_COMPARED,
    PENDING,
    RAISED,
    RETURNED,
    SEPARATOR,
    SLOT_BYTES,
    SLOTS,
    Call,
    channel,
    parse,
    read,
)
from pytest_mnode.outcome.calls import absent, agree, difference, is_deadlock, passed_difference
from pytest_mnode.protocol.messages import Made
from pytest_mnode.rank.recorder import Recorder, arguments

SUM = "of [2] float32 with SUM"


def made(*ops: str | tuple[str, str] | Call, state: str = INSIDE) -> list[Call]:
    """Recorded calls of a rank: operations with or without arguments; the last is in `state`."""
    calls: list[Call] = []
    for op in ops:
        name, arguments = op if isinstance(op, tuple) else (str(op), "")
        group = ""
        if isinstance(op, Call):
            name, arguments, group = op.op, op.arguments, op.group
        seq = 1 + sum(call.group == group for call in calls)
        calls.append(Call(len(calls) + 1, seq, group, name, arguments, "a.py:1"))
    if calls:
        calls[-1] = replace(calls[-1], state=state)
    return calls


def all_reduce(arguments: str = SUM) -> tuple[str, str]:
    return "all_reduce", arguments


def of(group: str) -> Call:
    return Call(0, 0, group, "barrier", "", "a.py:1")


def line(calls: Sequence[list[Call]], *ended: int, still: bool = True) -> str:
    found = difference(dict(enumerate(calls)), set(ended), still=still)
    return f"{found.ranks} {found.line}" if found else ""


@pytest.mark.parametrize(
    ("other", "start"),
    [
        ("of [5] float32 with SUM", "called it of [2] float32"),
        ("of [2,3] float32 with SUM", "called it of [2] float32"),
        ("of [] float32 with SUM", "called it of [2] float32"),
        ("of [2] int32 with SUM", "called it of [2] float32"),
        ("of [2] float32 with MAX", "called it of [2] float32 with SUM"),
        ("of [2] float32 from rank 1", "called it of [2] float32 with SUM"),
    ],
)
def test_arguments_that_differ(other: str, start: str) -> None:
    same = made("barrier", all_reduce())
    odd = made("barrier", all_reduce(other))
    text = line([same, same, odd, same])
    assert text.startswith(f"[2] called all_reduce {other} as call 2 of the default group (a.py:1)")
    assert start in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("of [2,3] float32 with SUM", "of [3,2] float32 with SUM"),
        ("of [1] float32", "of [] float32"),
        ("of float32 (here [4] float32)", "of float32 (here [8] float32)"),
        ("of float32 (here [4] float32, [5] fl…", "of float32 (here [8] float32, [7] fl…"),
    ],
)
def test_arguments_that_may_differ(one: str, other: str) -> None:
    assert not line([made(all_reduce(one)), made(all_reduce(other))])


def test_ranks_that_have_not_called_yet() -> None:
    assert absent(dict(enumerate([made("barrier"), made("barrier"), made()]))) == {2}
    assert absent(dict(enumerate([made("barrier"), made("barrier")]))) == set()
    ended = made("barrier", state=RETURNED)
    assert absent(dict(enumerate([[*ended, *made("barrier", "gather")[1:]], ended]))) == {1}


def test_the_first_of_many_differences() -> None:
    odd = made(all_reduce(), "barrier", state=RETURNED)
    same = made("barrier", all_reduce())
    assert line([same, same, odd]).startswith("[2] called all_reduce")
    assert "as call 1 of" in line([same, same, odd])


def test_two_ranks_are_both_named() -> None:
    text = line([made(all_reduce()), made(("broadcast", "of [2] float32 from rank 0"))])
    assert text.startswith("[0, 1] rank 0 called all_reduce of [2]")
    assert "where rank 1 called broadcast of [2] float32 from rank 0" in text


def test_many_different_calls_are_shortened() -> None:
    text = line([made(all_reduce(f"of [{n}] float32")) for n in range(1000)])
    assert len(text) < 8000  # with the number of each rank


def test_calls_that_the_ring_has_lost_are_not_compared() -> None:
    long = [Call(n, n, "", "barrier", "", "a.py:1") for n in range(200, 200 + SLOTS)]
    short = [Call(n, n, "", "all_reduce", SUM, "a.py:1") for n in range(1, 5)]
    assert not line([long, short], still=False)
    assert not line([made(of("1 0-1"), "barrier"), [replace(c, group="") for c in long]], 1)


@pytest.mark.parametrize("ended", [[], [1]])
def test_an_error_that_the_test_caught(ended: list[int]) -> None:
    wrong = made(all_reduce("of [3] float32"), state=RAISED)
    later = [*made(all_reduce(), state=RAISED), *made("barrier", "barrier")[1:]]
    assert bool(line([wrong, later], *ended)) is False
    assert line([wrong, made(all_reduce(), state=RAISED)])


@pytest.mark.parametrize(
    "later",
    [
        ([made(all_reduce(), "barrier"), made(all_reduce(), "barrier")]),
        ([made(all_reduce()), made(all_reduce(), "barrier")]),
        ([made(of("1 0-1"), "barrier"), made("barrier", of("1 0-1"))]),
    ],
)
def test_numbers_after_an_error_that_the_test_caught(later: list[list[Call]]) -> None:
    alone = Call(1, 1, "", "monitored_barrier", "", "a.py:1", RAISED)
    first = [alone, *(replace(c, seq=c.seq + (not c.group), number=c.number + 1) for c in later[0])]
    calls = {0: first, 1: later[1]}
    for ended in ([], [0], [1]):
        assert difference(calls, ended, still=True) is None
        assert not is_deadlock(calls, ended)


@pytest.mark.parametrize(
    "call",
    [
        Call(1, 1, "", "monitored_barrier", "", "a.py:1", LIMITED),
        Call(1, 1, "", "all_reduce", SUM, "a.py:1", PENDING, "async_op"),
    ],
)
def test_a_wait_with_its_own_limit_is_no_deadlock(call: Call) -> None:
    calls = {0: [call], 1: []}
    assert not is_deadlock(calls, [1])
    assert difference(calls, [1], still=True)  # if the test also ends at that limit


@pytest.mark.parametrize(
    ("calls", "ended", "start"),
    [
        ([made("barrier")] * 3 + [made()], [3], "[3] left the test without entering the barrier"),
        ([made("barrier")] + [made()] * 3, [1, 2, 3], "[0] called barrier as call 1 of"),
        ([made("barrier"), made()], [1], "[1] left the test without entering the barrier (a.py:1) "
         "that rank 0 waits in, call 1 of the default group"),
        ([made("barrier", state=PENDING), made()], [1], "[1] left the test without entering"),
        ([made("barrier"), made()], [], ""),
        ([made("barrier", state=PENDING), made()], [0, 1], ""),
        ([made(of("1 0,2")), made(), made()], [1], ""),
        ([made(of("1 0,2")), made(), made()], [2], "[2] left the test without entering"),
    ],
)  # fmt: skip
def test_ranks_that_left(calls: list[list[Call]], ended: list[int], start: str) -> None:
    assert line(calls, *ended).startswith(start)
    assert bool(line(calls, *ended)) is bool(start)
    assert is_deadlock(dict(enumerate(calls)), ended) is bool(start)


@pytest.mark.parametrize(
    ("calls", "odd"),
    [
        ([made("barrier"), made("barrier"), made(of("1 0,2"))], "[2]"),
        ([made(of("1 0-1")), made(of("2 1-2")), made(of("3 0,2"))], "[0, 1, 2]"),
        ([made(of("1 0-1")), made("barrier")], "[0, 1]"),
        ([made("barrier"), made(of("1 1-2")), made(of("1 1-2"))], ""),
        ([made("barrier"), made(of("1 1-2")), made()], ""),
        ([made("barrier"), made("barrier"), made()], ""),
    ],
)
def test_ranks_that_wait_for_each_other(calls: list[list[Call]], odd: str) -> None:
    assert line(calls).partition("]")[0] == odd.removesuffix("]")
    assert not line(calls, still=False)
    assert is_deadlock(dict(enumerate(calls)), []) is bool(odd)


def test_the_odd_ranks_of_a_deadlock_come_first() -> None:
    most = [made("barrier")] * 3
    assert line([*most[1:], made(of("1 0,2"))]).startswith(
        "[2] waits in barrier as call 1 of group 1"
    )
    two = [made(of("1 0,3-4"))] * 2
    assert line([*most, *two]).startswith("[3, 4] wait in barrier as call 1 of group 1")
    text = line([*most, made(of("1 0,3")), made(of("2 0,4"))])
    assert text.startswith("[3, 4] rank 3 waits in barrier as call 1 of group 1")
    assert text.index("ranks 0-2 wait in") < text.index("rank 4 waits in")


@pytest.mark.parametrize(
    ("state", "deadlocked"), [(INSIDE, True), (PENDING, True), (RETURNED, False), (RAISED, False)]
)
def test_a_past_difference_does_not_end_a_test(state: str, deadlocked: bool) -> None:
    calls = {0: made(all_reduce(), state=RETURNED), 1: made(all_reduce("of [3]"), state=state)}
    assert is_deadlock(calls, []) is deadlocked


def test_a_record_is_read_back(tmp_path: Path) -> None:
    lines = [SEPARATOR.join((INSIDE, str(n), "1", "1 0-1", "barrier", "", "", "a.py:1"))
             for n in (3, 1)]  # fmt: skip
    data = b"".join(text.encode().ljust(SLOT_BYTES, b"\0") for text in ("", *lines))
    path = tmp_path / "calls"
    path.write_bytes(data)
    text = read(path)
    assert text is not None
    assert [call.number for call in parse(text)] == [1, 3]
    assert parse(text)[0].as_which == "as call 1 of group 1 (ranks 0-1)"
    assert read(tmp_path / "none") is None


def test_recorded_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a group with a short timeout, of long lists and many ranks, and of other sizes."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        limit = timedelta(seconds=3)
        short = dist.new_group([0], timeout=limit)
        recorder = Recorder(tmp_path / "one", 1)
        recorder.begin()
        for group in (None, short):
            recorder.enter("barrier", {"group": group})
        recorder.enter("monitored_barrier", {"timeout": limit})
        recorder.enter("all_gather", {"tensor_list": [torch.ones(size) for size in range(1, 40)]})
        recorder._groups.clear()
        monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: range(0, 999, 2))
        recorder.enter("reduce_scatter_tensor", {"group": short, "input": torch.ones(2)})
        other = Recorder(tmp_path / "other", 4)
        other.begin()
        assert other.enter("barrier", {}) is None
    finally:
        dist.destroy_process_group()
    calls = parse(read(tmp_path / "one") or "")
    assert [call.state for call in calls] == [INSIDE, LIMITED, LIMITED, INSIDE, LIMITED]
    assert [call.number for call in calls] == [1, 2, 3, 4, 5]
    assert parse(read(tmp_path / "other") or "") == []


def test_arguments_of_unequal_parts_and_of_a_factor() -> None:
    splits = {"input": torch.ones(4), "output_split_sizes": [1, 3]}
    assert "(here" in arguments("all_to_all_single", splits)
    double = dist._make_nccl_premul_sum(2.0)  # type: ignore[attr-defined]
    assert arguments("all_reduce", {"tensor": torch.ones(2), "op": double}) == (
        "of [2] float32 with PREMUL_SUM"
    )


@given(st.binary(max_size=3 * SLOT_BYTES))
def test_any_bytes_are_read(data: bytes) -> None:
    text = "\n".join(part.decode(errors="replace") for part in data.split(b"\0"))
    calls = {0: parse(text), 1: made("barrier")}
    difference(calls, [0], still=True)
    is_deadlock(calls, [0])


def test_many_ranks_are_compared_without_pairwise_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Mock(wraps=calls_module._missing)
    monkeypatch.setattr(calls_module, "_missing", search)
    assert not is_deadlock(dict(enumerate([made("barrier")] * 500)), [])
    assert search.call_count < 5


@pytest.mark.parametrize(
    ("made", "agrees"),
    [
        ({0: (("", 2, 7),), 1: (("", 2, 7),)}, True),
        ({0: (("", 2, 7),), 1: (("", 2, 8),)}, False),
        ({0: (("", 2, 7),), 1: ()}, False),
        ({0: (("", 2, NOT_COMPARED),), 1: (("", 1, 7),)}, True),
        ({0: (("1 0", 1, 7),), 1: ()}, True),
        ({0: (("1 0-1", 1, 7),), 1: (), 2: ()}, False),
        ({0: (("1 many", 1, 7),), 1: (("1 many", 1, 7),), 2: ()}, True),
        ({0: ((channel("", 0, 0, 1), 1, 0),), 1: ((channel("", 0, 0, 1), 1, 0),), 2: ()}, True),
        ({0: ((channel("", 0, 0, 1), 2, 0),), 1: ((channel("", 0, 0, 1), 1, 0),)}, False),
        ({0: ((channel("", 1, 0, 1), 1, 0),), 1: ((channel("", 2, 0, 1), 1, 0),)}, False),
        ({0: ((channel("", 0, 0, 1), 1, 0),), 1: ((channel("", 0, None, 1), 1, 0),)}, True),
        ({0: ((channel("", 0, 0, 0), 1, 0),), 1: ()}, True),
    ],
)
def test_calls_after_a_test_that_passed(made: dict[int, Made], agrees: bool) -> None:
    assert agree(made) is agrees
    calls: dict[int, list[Call]] = {rank: [] for rank in made}
    found = passed_difference(calls, made)
    assert (found is None) is agrees
    assert found is None or "before the last 128 of a rank" in found.line


def test_messages_of_a_rank_that_receives_from_any_are_not_matched() -> None:
    sent = [Call(1, 1, channel("", 0, 0, 1), "isend", "", "a.py:1", PENDING)]
    got = [Call(1, 1, channel("", 0, None, 1), "recv", "", "a.py:2")]
    assert difference({0: sent, 1: got}, {1}, still=True) is None
    assert not is_deadlock({0: sent, 1: got}, {1})


def test_a_handle_that_nobody_waits_for_is_no_hang() -> None:
    sent = [Call(1, 1, channel("", 0, 0, 1), "isend", "", "a.py:1", PENDING)]
    assert difference({0: sent, 1: []}, {1}, still=True) is None
    waits = [replace(sent[0], state=INSIDE)]
    found = difference({0: waits, 1: []}, {1}, still=True)
    assert found is not None
    assert "rank 0 waits in, message 1 of rank 0 to rank 1" in found.line


def test_the_call_that_a_rank_left_is_named_after_earlier_ones() -> None:
    calls = [made("barrier", all_reduce()), made("barrier")]
    found = difference(dict(enumerate(calls)), [1], still=True)
    assert found is not None
    assert "all_reduce" in found.line
    assert "barrier" not in found.line


def test_the_last_calls_are_shown_with_the_one_that_differs() -> None:
    same = ["barrier"] * 30
    calls = [made(*same, all_reduce()), made(*same, "broadcast")]
    found = difference(dict(enumerate(calls)), [], still=True)
    assert found is not None
    numbers = [int(text.split(".")[0]) for text in found.text.splitlines() if ". rank" in text]
    assert numbers[-1] == 31
    assert numbers[0] > 20
    assert sorted(set(numbers)) == list(range(numbers[0], 32))
    first = difference({0: made(all_reduce()), 1: made("broadcast")}, [], still=True)
    assert first is not None
    assert "\n  1. rank" in first.text
    assert "\n  0. " not in first.text
