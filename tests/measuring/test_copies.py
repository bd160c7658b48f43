"""Near and far copies on simulated machines: source and target, sizes, and verdicts."""
# Of pytest_mnode.checks.devices.copies.

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from pytest_mnode.checks.placement.copies import NearMemoryIsFasterThanFar, ratio_of
from pytest_mnode.criteria.placement.near import BUFFERS, COPIES, COPY_RATIO
from pytest_mnode.evidence.row import RankRows, Row, of_rank, row
from pytest_mnode.machine.cpus import Cpu, Cpus
from pytest_mnode.machine.numa import Numa, NumaNode, read_numa
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring.copies import (
    CopyNodes,
    _measured,
    _pair,
    _pinned,
    buffer_bytes,
    copy_nodes,
    nothing_far,
    times_s,
)
from pytest_mnode.spec import Spec, profile_spec

GIB = 1 << 30
SPEC: Spec = profile_spec("rack")
Rows = tuple[Row, ...]


def machine(*memory_bytes: int, free_bytes: int | None = 100 * GIB) -> Numa:
    """NUMA nodes in a row with four CPUs each; distances grow along the row."""
    numbers = range(len(memory_bytes))
    return Numa(
        nodes=tuple(
            NumaNode(
                number=n,
                cpus=frozenset(range(4 * n, 4 * n + 4)),
                distances={other: 10 + 11 * abs(n - other) for other in numbers},
                memory_bytes=memory_bytes[n],
                free_bytes=free_bytes,
            )
            for n in numbers
        )
    )


def cpus(cache_bytes: int) -> Cpus:
    cpu = Cpu(number=0, package=0, siblings=None, cache_bytes=cache_bytes)
    return Cpus(cpus=(cpu,))


def test_near_is_the_accelerators_node_and_far_the_most_distant() -> None:
    four = machine(GIB, GIB, GIB, GIB)
    assert copy_nodes(four, None, 1) == CopyNodes(1, 3, frozenset(range(4, 8)))
    assert copy_nodes(four, frozenset({0, 1}), 1) == CopyNodes(1, 0, frozenset(range(4, 8)))
    # A socket without memory uses the nearest node with memory.
    assert copy_nodes(machine(GIB, GIB, 0), None, 2) == CopyNodes(1, 0, frozenset(range(8, 12)))


@pytest.mark.parametrize(
    ("memory", "accelerator", "why"),
    [
        ((GIB, GIB), None, "the NUMA node of this rank's accelerator is unknown"),
        ((GIB, 0), 0, "the distance of memory from NUMA node 0 is unknown"),
        ((GIB, GIB), 7, "the distance of memory from NUMA node 7 is unknown"),
        ((GIB, 0, GIB), 1, "all memory is equally far from NUMA node 1"),
    ],
)
def test_unknown_facts_are_named(
    memory: tuple[int, ...], accelerator: int | None, why: str
) -> None:
    assert copy_nodes(machine(*memory), None, accelerator) == why


def test_one_memory_node_has_no_far_memory() -> None:
    assert nothing_far(machine(GIB, GIB), None, Cpus()) == ""
    one = "this machine has memory on one NUMA node, so none is far"
    assert nothing_far(machine(GIB, 0), None, Cpus()) == one
    few = "this process may use 1 of 2 NUMA nodes with memory"
    assert nothing_far(machine(GIB, GIB), frozenset({1}), Cpus()) == few


def test_a_buffer_is_larger_than_the_cache_and_much_smaller_than_memory() -> None:
    found = CopyNodes(0, 1, frozenset())
    assert buffer_bytes(GIB, cpus(1 << 20), machine(GIB, GIB), found) == (GIB, "")
    assert buffer_bytes(GIB, cpus(GIB), machine(GIB, GIB), found)[0] == 2 * GIB
    tight = machine(GIB, GIB, free_bytes=GIB)
    why = "NUMA node 0 has 1024 MiB free, but 8192 MiB are needed"
    assert buffer_bytes(GIB, cpus(0), tight, found) == (GIB, why)


def test_both_sides_are_copied_in_turn_and_the_first_copy_does_not_count() -> None:
    log: list[int] = []
    times = {0: iter([9.0, 1.0, 1.0, 5.0]), 1: iter([9.0, 2.0, 2.0, 7.0])}

    def copy_s(number: int) -> float:
        log.append(number)
        return next(times[number])

    near_s, far_s = times_s(CopyNodes(0, 1, frozenset()), 3, nullcontext, copy_s)
    assert (near_s, far_s) == ([1.0, 1.0, 5.0], [2.0, 2.0, 7.0])
    assert log == [0, 1, 0, 1, 0, 1, 0, 1]  # alternately, so that a disturbance affects both


@pytest.mark.parametrize(("decided_at", "made"), [(1, 2), (2, 2), (5, 5), (99, 8)])
def test_more_copies_follow_while_the_promise_is_undecided(decided_at: int, made: int) -> None:
    """Up to four times as many as promised."""
    nodes = CopyNodes(0, 1, frozenset())
    near_s, far_s = times_s(
        nodes, 2, nullcontext, lambda _: 1.0, lambda ratios: len(ratios) < decided_at
    )
    assert len(near_s) == len(far_s) == made


@pytest.mark.parametrize(
    ("ratios", "verdict", "culprit"),
    [
        # The promise is 1.05; the ratio is the median.
        ((1.50, 1.52, 1.51), Verdict.PASS, None),
        ((1.10, 1.06, 1.08), Verdict.INCONCLUSIVE, ""),
        ((1.00, 1.06, 1.03), Verdict.INCONCLUSIVE, ""),
        ((1.001, 1.002, 1.003), Verdict.FAIL, "rank 1 on a"),
    ],
)
def test_a_ratio_too_close_to_its_bound_is_inconclusive_on_both_sides(
    ratios: tuple[float, ...], verdict: Verdict, culprit: str | None
) -> None:
    near = sorted(ratios)[1] * 10
    good = copied(0, "a", 15.0, 10.0, (1.5, 1.5, 1.5))
    found = judged(good, copied(1, "a", near, 10.0, ratios))
    assert (found.verdict, found.false_alarm) == (verdict, 0.01)
    assert found.culprit == culprit or verdict is Verdict.INCONCLUSIVE
    if verdict is not Verdict.PASS:
        assert found.value == pytest.approx(near / 10)


def test_a_rank_that_surely_breaks_the_promise_is_judged_before_one_that_may() -> None:
    sure = copied(0, "a", 10.2, 10.0, (1.02, 1.021, 1.022))
    unsure = copied(1, "b", 10.1, 10.0, (0.9, 1.01, 1.4))
    found = judged(unsure, sure)
    assert (found.verdict, found.culprit) == (Verdict.FAIL, "rank 0 on a")


CHECK = NearMemoryIsFasterThanFar(1.05, SPEC)


def copied(rank: int, node: str, near: float, far: float, ratios: Sequence[float] = ()) -> Rows:
    """Rows of a rank that measured these rates and ratios."""
    rates = (row(name, rate) for name, rate in zip(COPIES, (near, far), strict=False))
    return of_rank((*rates, *(row(COPY_RATIO, ratio) for ratio in ratios)), rank, node)


def judged(*ranks: Rows) -> Measurement:
    return CHECK.rule([one for rank in ranks for one in rank])[0]


def test_the_rank_with_the_least_effect_is_judged() -> None:
    good, flat = copied(0, "a", 15.0, 10.0), copied(1, "a", 10.0, 10.0)
    lost = of_rank([row(COPIES[0], why="the NUMA node is not known")], 2, "b")
    assert judged(good).verdict is Verdict.PASS
    found = judged(good, flat)
    assert (found.verdict, found.value, found.culprit) == (Verdict.FAIL, 1.0, "rank 1 on a")
    unknown = judged(good, lost)
    assert unknown.verdict is Verdict.INCONCLUSIVE
    assert unknown.note == "rank 2 on b: the NUMA node is not known"
    broken = judged(flat, lost)
    assert (broken.verdict, broken.culprit) == (Verdict.FAIL, "rank 1 on a")
    where = "256 MiB on NUMA node 0, and on 1"
    assert (
        judged(good, (*flat, *of_rank([row(BUFFERS, where)], 1, "a"))).note
        == f"rank 1 on a: {where}"
    )


@pytest.fixture
def memory_node() -> int:
    numbers = [node.number for node in read_numa().nodes if node.memory_bytes]
    if not numbers:
        pytest.skip("a kernel without NUMA")
    return numbers[0]


def test_buffers_are_on_the_requested_node_or_refused(memory_node: int) -> None:
    with _pair(memory_node, 1 << 16) as (source, target):
        assert int(source.sum()) == int(target.sum()) == 1 << 16
    with pytest.raises(OSError, match="set_mempolicy"), _pair(1023, 1 << 16):
        pass


def test_registered_memory_is_released(monkeypatch: pytest.MonkeyPatch, memory_node: int) -> None:
    calls: list[tuple[str, int]] = []

    def note(what: str, address: int) -> int:
        calls.append((what, address))
        return 0

    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, *_: note("register", address),
        cudaHostUnregister=lambda address: note("unregister", address),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)

    def copy_s(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
        raise RuntimeError("the device is lost")

    here, cpu = CopyNodes(memory_node, memory_node, frozenset()), torch.device("cpu")
    with pytest.raises(RuntimeError, match="the device is lost"):
        times_s(here, 1, lambda n: _pinned(n, 1 << 16, cpu), copy_s)
    assert [what for what, _ in calls] == ["register", "register", "unregister", "unregister"]
    assert {address for what, address in calls if what == "unregister"} == {
        address for what, address in calls if what == "register"
    }


def test_measured_copies_restore_the_binding(memory_node: int) -> None:
    before = os.sched_getaffinity(0)
    here = CopyNodes(memory_node, memory_node, frozenset(sorted(before)[:1]))
    [rank] = RankRows.each(of_rank(_measured(here, 1 << 20, 3, torch.device("cpu")), 0, "a"))
    assert ratio_of(rank) is not None
    assert len(rank.of(COPY_RATIO)) == 3
    assert rank.value(COPIES[2]) is None
    assert os.sched_getaffinity(0) == before
    lost = CopyNodes(memory_node, 1023, here.cpus)
    [one] = _measured(lost, 1 << 20, 3, torch.device("cpu"))
    assert one.why.startswith("could not be measured: ")
    assert os.sched_getaffinity(0) == before
