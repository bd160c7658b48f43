"""Wrong collectives on one of three ranks, made by its wrapper, and the checks that find them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_mnode import measuring as bench
from pytest_mnode.measurement import Bound, at_least
from pytest_mnode.measuring import checked_calls
from pytest_mnode.measuring import sweep as module
from pytest_mnode.measuring.algorithms import algorithms_of, fresh_group
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.ranks import elapsed_s
from pytest_mnode.measuring.sweep import Row
from pytest_mnode.rank.world import World

FAULTY = 2
MOST = 11
"""Of as many calls one returns the previous result: one fewer than are checked."""
CPU = torch.device("cpu")
[GLOO] = algorithms_of(COLLECTIVES["all_reduce"].collective, "gloo", 1)
FUNCTIONS = {
    "all_reduce": ("all_reduce",),
    "broadcast": ("broadcast",),
    "all_gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all_single",),
    "send_recv": ("batch_isend_irecv",),
}
pytestmark = pytest.mark.usefixtures("process_group")


class Stale:
    """Every `every`th call returns the result of the previous call."""

    def __init__(self, right: Callable[..., Any], every: int) -> None:
        self.right, self.every, self.calls = right, every, 0
        self.last: dict[int, torch.Tensor] = {}

    def __call__(self, into: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        done = self.right(into, *args, **kwargs)
        for work in done if isinstance(into, list) else []:
            work.wait()
        tensor = into
        if isinstance(into, list):
            [tensor] = [op.tensor for op in into if op.op is dist.irecv]
        result, old = tensor.clone(), self.last.get(tensor.numel())
        if self.calls % self.every == 0 and old is not None:
            tensor.copy_(old)
        self.last[tensor.numel()] = result
        return [] if isinstance(into, list) else done


def change(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    for function in FUNCTIONS[name]:
        if hasattr(dist, function):
            monkeypatch.setattr(dist, function, make(getattr(dist, function)))


def swept(name: str, monkeypatch: pytest.MonkeyPatch, repeats: int = 1) -> Row:
    monkeypatch.setattr(module, "REPEAT_S", 0.005)
    found = module.sweep(COLLECTIVES[name], [4096], warmup=1, repeats=repeats, device=CPU)
    [row] = found.rows
    return row


def test_stale_results(world: World) -> None:
    for name, every in [*((name, 2) for name in FUNCTIONS), ("all_reduce", MOST)]:
        with pytest.MonkeyPatch.context() as patch:
            if world.rank == FAULTY:
                change(patch, name, functools.partial(Stale, every=every))
            row = swept(name, patch)
        assert row.wrong >= 128, (name, every)
        assert row.wrong_ranks == (FAULTY,), (name, every)


def test_stale_sums(world: World) -> None:
    for every in (2, MOST):
        with pytest.MonkeyPatch.context() as patch:
            if world.rank == FAULTY:
                change(patch, "all_reduce", functools.partial(Stale, every=every))
            wrong, _ = bench.wrong_values(bench.ALL_REDUCE, 4096, CPU)
            assert [rank for rank, count in enumerate(wrong) if count] == [FAULTY], every
            assert bench.sums(world, "float32", CPU).culprit == (
                "rank 2 on local2: wrong results there, right results on 2 other ranks"
            ), every


def test_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FUNCTIONS:
        row = swept(name, monkeypatch, repeats=3)
        assert (row.wrong, row.wrong_ranks, len(row.all_times_s)) == (0, (), 3), name


@pytest.mark.parametrize(
    ("decided", "communicators"), [(True, (3,) * 3), (False, (3,) * 3), (None, (3,) * 12)]
)
def test_a_judged_size_is_measured_on_fresh_communicators_until_it_is_decided(
    decided: bool | None, communicators: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPEAT_S", 0.005)
    monkeypatch.setattr(Bound, "decides", lambda *_: decided)
    groups = []

    @contextlib.contextmanager
    def communicator() -> Iterator[Any]:
        before = len(dist.distributed_c10d._world.pg_map)
        with fresh_group(GLOO, CPU) as group:
            groups.append(group)
            yield group
        assert len(dist.distributed_c10d._world.pg_map) == before  # destroyed again

    small, judged = module.sweep(
        COLLECTIVES["all_reduce"],
        [1024, 4096],
        warmup=1,
        repeats=2,
        device=CPU,
        communicator=communicator,
        judged={4096: at_least(1)},
        communicators=3,
    ).rows
    assert tuple(map(len, judged.times_s)) == communicators
    assert tuple(map(len, small.times_s)) == (2,)
    assert len(set(map(id, groups))) == len(communicators)
    assert None not in groups
    assert judged.wrong == small.wrong == 0
    assert judged.checked > 4 * len(communicators)


def test_wrong_results_of_a_later_communicator_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third communicator corrupts a value on one rank."""
    groups: list[Any] = []

    @contextlib.contextmanager
    def communicator() -> Iterator[Any]:
        with fresh_group(GLOO, CPU) as group:
            groups.append(group)
            yield group

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            done = right(tensor, *args, **kwargs)
            if len(groups) == 3 and world.rank == FAULTY and tensor.numel() == 1024:
                tensor[-1] += 1
            return done

        return call

    monkeypatch.setattr(module, "REPEAT_S", 0.005)
    change(monkeypatch, "all_reduce", make)
    [row] = module.sweep(
        COLLECTIVES["all_reduce"],
        [4096],
        warmup=1,
        repeats=1,
        device=CPU,
        communicator=communicator,
        judged={4096: at_least(1e-9)},
        communicators=3,
    ).rows
    assert row.wrong > 0
    assert row.wrong_ranks == (FAULTY,)


@pytest.mark.parametrize("position", [0, 511, -1])
def test_one_value_that_is_wrong_only_while_time_is_taken(
    position: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[bool] = []

    def noted(*args: Any) -> float:
        timed.append(True)
        try:
            return elapsed_s(*args)
        finally:
            timed.clear()

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            done = right(tensor, *args, **kwargs)
            if timed:
                tensor[position] += 1
            return done

        return call

    if world.rank == FAULTY:
        monkeypatch.setattr(module, "elapsed_s", noted)
        change(monkeypatch, "all_reduce", make)
    row = swept("all_reduce", monkeypatch, repeats=3)
    # One wrong call per repeat; more if the wrong value is one that is checked in each call.
    assert row.wrong >= 3
    assert row.wrong_ranks == (FAULTY,)


@pytest.fixture
def second_timed_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[..., Any], Callable[..., Any]], Row]:
    """Sweeps in which the faulty rank acts before and after the second of 8 timed calls."""
    since: list[int] = []

    def noted(*args: Any) -> float:
        since.append(0)
        try:
            return elapsed_s(*args)
        finally:
            since.clear()

    def make(before: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(right: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if since:
                    since[0] += 1
                if since != [2]:
                    return right(*args, **kwargs)
                kept = before(*args)
                done = right(*args, **kwargs)
                for work in done if isinstance(done, list) else []:
                    work.wait()
                after(kept, *args)
                return [] if isinstance(done, list) else done

            return call

        return wrapped

    monkeypatch.setattr(module, "calls_of_a_repeat", lambda _: 8)
    monkeypatch.setattr(checked_calls, "_SHARE", 100.0)

    def swept_with(name: str, before: Callable[..., Any], after: Callable[..., Any]) -> Row:
        with pytest.MonkeyPatch.context() as patch:
            if world.rank == FAULTY:
                patch.setattr(module, "elapsed_s", noted)
                change(patch, name, make(before, after))
            row = swept(name, patch, repeats=2)
        assert row.checked == 13 + 2 * 8, name
        return row

    return swept_with


def _buffers(into: Any, of: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The buffer that a call receives into, and the one that it sends."""
    if isinstance(into, list):
        receive, send = into
        return receive.tensor, send.tensor
    return into, into if of is None else of


def test_one_stale_result_among_those_that_are_timed(second_timed_call: Any) -> None:
    for name in FUNCTIONS:
        row = second_timed_call(
            name,
            lambda *args: _buffers(*args)[0].clone(),
            lambda kept, *args: _buffers(*args)[0].copy_(kept),
        )
        assert row.wrong >= 2 * 16, name
        assert row.wrong_ranks == (FAULTY,), name


def test_one_call_among_those_that_are_timed_to_which_a_rank_sends_nothing(
    second_timed_call: Any, world: World
) -> None:
    every = tuple(range(world.size))
    for name in (name for name in FUNCTIONS if name != "broadcast"):
        row = second_timed_call(
            name, lambda *args: _buffers(*args)[1].zero_(), lambda kept, *args: None
        )
        assert row.wrong_senders == (FAULTY,), name
        assert row.wrong_ranks == (
            ((FAULTY + 1) % world.size,) if name == "send_recv" else every
        ), name
    assert str(bench.culprit_of(world, every, row.wrong_senders)) == (
        "rank 2 on local2: the values of this rank are wrong in the results of all ranks"
    )


def test_one_dtype(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = torch.float64

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            done = right(tensor, *args, **kwargs)
            if tensor.dtype == faulty:
                tensor[7] += 1
            return done

        return call

    if world.rank == FAULTY:
        change(monkeypatch, "all_reduce", make)
    for dtype, other in zip(bench.DTYPES, (*bench.DTYPES[1:], bench.DTYPES[0]), strict=True):
        faulty = getattr(torch, dtype)
        wrong = {name: bench.sums(world, name, CPU).wrong for name in (dtype, other)}
        assert {name for name, count in wrong.items() if count} == {dtype}


def test_a_rank_that_sends_wrongly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: right(tensor.mul_(2), *args, **kwargs)

    if world.rank == FAULTY:
        change(monkeypatch, "all_reduce", make)
    assert bench.sums(world, "int32", CPU).culprit == (
        "rank 2 on local2: the values of this rank are wrong in the results of all ranks"
    )
    row = swept("all_reduce", monkeypatch)
    assert row.wrong_ranks == (0, 1, 2)
    assert row.wrong_senders == (FAULTY,)


@pytest.mark.parametrize("every", [8, 11])  # not in the last turn, and in it
def test_messages(world: World, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    if world.rank == FAULTY:
        change(monkeypatch, "send_recv", lambda right: Stale(right, every))
    assert len(bench.exchange(world, CPU).wrong) == 1
