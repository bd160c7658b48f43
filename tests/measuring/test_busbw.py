"""What is recorded of a sweep: bounds of the plateau, what NICs carry, what is not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_mnode.criteria.fabric import curves, judge_busbw
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring import busbw as module
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of
from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw, KnownCulprit
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.sweep import Row, Sweep, Unmeasured
from pytest_mnode.measuring.traffic import NodeTraffic
from pytest_mnode.rank.world import World
from pytest_mnode.spec import BusbwPromise, default_spec_path, load_spec
from pytest_mnode.spec.bandwidth import Collective, bus_factor, busbw_at_line_rate

SPEC = load_spec(default_spec_path())
CPU = torch.device("cpu")
WORLD = World(0, 2, 0, 1, "node0", ("node0", "node1"))
KIB, MIB = 1 << 10, 1 << 20
PROMISE = BusbwPromise.model_validate(
    {"at_least_fraction": 0.8, "sizes": ["64 KiB", "1 MiB"], "plateau_from": "1 MiB"}
)
GLOO_RING = algorithms_of(Collective.ALL_REDUCE, "gloo", 1)[0]
PINNED, DEFAULT = algorithms_of(Collective.ALL_REDUCE, "nccl", 1)


def _row(size_bytes: int, of_the_line: float, wrong: int = 0) -> Row:
    """A row of four ranks whose busbw is a part of the rack's 0.025 GB/s."""
    time_s = size_bytes * bus_factor("all_reduce", 4) / (of_the_line * 0.025e9)
    return Row("all_reduce", 4, size_bytes, size_bytes, size_bytes // 4, 3, (time_s,) * 5, wrong)


def _judged(
    rows: Sequence[Row],
    algorithm: Algorithm = GLOO_RING,
    unmeasured: Sequence[Unmeasured] = (),
    culprit: str | None = None,
    *,
    traffic: Sequence[NodeTraffic] = (),
) -> Busbw:
    line = busbw_at_line_rate("all_reduce", SPEC.fabric, 4, 1, "gloo")
    found = Sweep(COLLECTIVES["all_reduce"], 4, tuple(rows), tuple(unmeasured))
    swept = AlgorithmSweep(algorithm, found, PROMISE, line)
    return Busbw(SPEC, WORLD, "gloo", (swept,), tuple(traffic), culprit)


def _recorded(found: Busbw) -> dict[str, Measurement]:
    """What is recorded of the sweeps, and not of the traffic."""
    kept = judge_busbw(found)[:-1]
    assert len({m.name for m in kept}) == len(kept)
    return {m.name: m for m in kept}


def test_the_plateau_is_judged_and_says_how() -> None:
    found = _recorded(_judged([_row(64 * KIB, 0.5), _row(MIB, 0.9)]))
    assert {name: m.verdict for name, m in found.items()} == {
        "all_reduce 64 KiB #wrong": Verdict.PASS,
        "all_reduce 64 KiB busbw": None,
        "all_reduce 1 MiB #wrong": Verdict.PASS,
        "all_reduce 1 MiB busbw": Verdict.PASS,
        "all_reduce 1 MiB busbw beside what NICs carry": Verdict.PASS,
    }
    busbw = found["all_reduce 1 MiB busbw"]
    assert busbw.source == (
        "fabric.line_rate 200 Mbit/s × at_least_fraction 0.8; "
        "busbw = size/time × 2(n-1)/n (nccl-tests, PERFORMANCE.md)"
    )
    assert busbw.note.startswith("90.0% of the line, median of 5 × 3 calls, p99 ")
    assert busbw.note.endswith("; gloo's all_reduce is a ring")


def test_below_the_bound_names_the_culprit() -> None:
    judged = _judged([_row(64 * KIB, 0.9), _row(MIB, 0.5)], culprit="node2 fab0")
    assert judged.sweeps[0].falls_short
    busbw = _recorded(judged)["all_reduce 1 MiB busbw"]
    assert (busbw.verdict, busbw.culprit) == (Verdict.FAIL, "node2 fab0")
    assert not _judged([_row(64 * KIB, 0.1), _row(MIB, 0.81)]).sweeps[0].falls_short


def test_wrong_values_fail_at_any_rate_and_any_size() -> None:
    found = _recorded(_judged([_row(64 * KIB, 0.9, wrong=1), _row(MIB, 0.9)]))
    assert found["all_reduce 64 KiB #wrong"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("algorithm", "of_the_line", "verdict"),
    [
        (PINNED, 1.04, Verdict.PASS),
        (PINNED, 1.06, Verdict.FAIL),
        (PINNED, 1.875, Verdict.FAIL),
        (GLOO_RING, 1.06, Verdict.FAIL),
        (DEFAULT, 1.875, None),  # a hierarchy may, legally
    ],
)
def test_a_ring_is_no_faster_than_its_nics(
    algorithm: Algorithm, of_the_line: float, verdict: Verdict | None
) -> None:
    found = _recorded(_judged([_row(MIB, of_the_line)], algorithm))
    beside = [m for name, m in found.items() if name.endswith("beside what NICs carry")]
    assert [m.verdict for m in beside] == ([verdict] if verdict else [])
    promised = next(m for name, m in found.items() if "busbw" in name)
    assert promised.verdict is Verdict.PASS
    for measurement in beside:
        told = "fabric.line_rate" in str(measurement.culprit)
        assert told is (verdict is Verdict.FAIL)  # who passes is not to blame


def test_ring_and_default_are_recorded_side_by_side() -> None:
    found = {
        **_recorded(_judged([_row(MIB, 0.9)], PINNED)),
        **_recorded(_judged([_row(MIB, 1.5)], DEFAULT)),
    }
    assert set(found) == {
        "all_reduce 1 MiB #wrong, ring pinned",
        "all_reduce 1 MiB busbw, ring pinned",
        "all_reduce 1 MiB busbw, ring pinned beside what NICs carry",
        "all_reduce 1 MiB #wrong",
        "all_reduce 1 MiB busbw",
    }


@pytest.mark.parametrize(("size_bytes", "verdict"), [(64 * KIB, None), (MIB, Verdict.INCONCLUSIVE)])
def test_what_could_not_be_measured_is_inconclusive_where_it_counts(
    size_bytes: int, verdict: Verdict | None
) -> None:
    left_out = Unmeasured(size_bytes, "needs 32 GiB on every rank")
    judged = _judged([], unmeasured=[left_out])
    assert not judged.sweeps[0].falls_short
    [measurement] = _recorded(judged).values()
    assert (measurement.value, measurement.verdict) == (None, verdict)
    assert measurement.note == "needs 32 GiB on every rank"


def _busbw(*traffic: NodeTraffic) -> Busbw:
    sweeps = _judged([_row(MIB, 0.9)], PINNED).sweeps + _judged([_row(MIB, 1.5)], DEFAULT).sweeps
    return Busbw(SPEC, WORLD, "nccl", sweeps, traffic)


def test_each_algorithm_has_its_curve() -> None:
    assert [(c.algorithm, c.backend, len(c.points)) for c in curves(_busbw())] == [
        ("ring", "nccl", 1),
        ("default", "nccl", 1),
    ]


@pytest.mark.parametrize(
    ("traffic", "value", "verdict"),
    [
        ([{"fab0": 99, "lo": 1}, {"fab0": 98, "mgmt0": 2}], 2.0, Verdict.PASS),
        ([{"fab0": 99, "lo": 1}, {"fab0": 2, "mgmt0": 98}], 98.0, Verdict.FAIL),
        ([{"fab0": 99}, {"fab0": 2}], None, Verdict.INCONCLUSIVE),
        ([{"fab0": 100}, None], 0.0, Verdict.PASS),  # not the root of a broadcast
        ([None, None], None, Verdict.INCONCLUSIVE),
    ],
)
def test_who_must_send_sends_over_the_fabric(
    traffic: list[dict[str, int] | None], value: float | None, verdict: Verdict
) -> None:
    nodes = [
        NodeTraffic(f"node{i}", sent or {"mgmt0": 3}, 90 if sent else 0)
        for i, sent in enumerate(traffic)
    ]
    past = judge_busbw(_busbw(*nodes))[-1]
    assert past.name.startswith("sent past the fabric")
    assert (past.value, past.verdict) == (value and pytest.approx(value), verdict)


class _Known:
    """Keeps what was found, on one rank."""

    def __init__(self) -> None:
        self.kept: list[KnownCulprit] = []

    def explaining(self, world: World, instead: str | None) -> KnownCulprit | None:
        return self.kept[-1] if self.kept else None

    def keep(self, world: World, instead: str | None, culprit: str, collective: str) -> None:
        self.kept.append(KnownCulprit(world.nodes, instead, culprit, collective, 0.0))


class _Found:
    """Who was found, as a search returns it."""

    def __init__(self, culprit: str | None) -> None:
        self.culprit = culprit

    spent_s = 0.0

    @property
    def faults(self) -> int:
        return self.culprit is not None

    def __str__(self) -> str:
        return self.culprit or "nobody"


@pytest.mark.parametrize(("culprit", "searches"), [("node2 fab0", 1), (None, 2)])
def test_a_culprit_is_looked_for_until_found(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    culprit: str | None,
    searches: int,
) -> None:
    asked: list[float] = []

    def located(*args: Any, budget_s: float) -> _Found:
        assert budget_s == 7.0
        asked.append(args[3])
        return _Found(culprit)

    monkeypatch.setattr(module, "find_slow_links", located)
    known: Any = _Known()
    short = _judged([_row(MIB, 0.5)])
    for _ in range(2):
        found = module._culprit(short, short.sweeps[0], CPU, 7.0, known=known)
        assert found == (culprit or "nobody", culprit is not None)
    assert asked == [pytest.approx(160.0)] * searches  # 0.8 of 200 Mbit/s
    told = "culprit as found when all_reduce was measured" in capsys.readouterr().out
    assert told is (culprit is not None)
    module._culprit(short, short.sweeps[0], CPU, 7.0, known=None)
    assert len(asked) == searches + 1


@pytest.mark.parametrize(
    ("emulated", "culprit", "rates", "trials", "kept"),
    [
        (True, None, [0.5, 0.9], 2, True),  # the machine was busy
        (True, None, [0.5, 0.5, 0.5, 0.9], 3, False),
        (True, "node2 fab0", [0.5, 0.9], 1, False),  # who was found is not excused
        (False, None, [0.5, 0.9], 1, False),  # nor is a cluster that has its machines to itself
        (True, None, [0.9], 1, True),
    ],
)
def test_an_emulated_fabric_that_falls_short_with_nobody_slow_is_measured_again(  # noqa: PLR0917  a table
    monkeypatch: pytest.MonkeyPatch,
    emulated: bool,
    culprit: str | None,
    rates: list[float],
    trials: int,
    kept: bool,
) -> None:
    measured = iter(rates)
    monkeypatch.setattr(
        module,
        "_sweeps",
        lambda *args: replace(_judged([_row(MIB, next(measured))]), spec=args[2]),
    )
    budgets_s: list[float] = []

    def located(*_: Any, budget_s: float) -> _Found:
        budgets_s.append(budget_s)
        return _Found(culprit)

    monkeypatch.setattr(module, "find_slow_links", located)
    monkeypatch.setattr(module, "slow_in_company", lambda *_: "")
    monkeypatch.setattr(module, "by_rank", lambda *_: [[12.0], [13.0]])
    spec = SPEC.model_copy(update={"emulated": ("links",) if emulated else ()})
    found = module.measure_busbw("all_reduce", PROMISE, spec, WORLD, CPU)
    assert len(list(measured)) == len(rates) - trials
    assert found.attempt == trials
    assert (
        budgets_s == [20.0, 8.0, 0.0][: trials - (rates[trials - 1] == 0.9)]
    )  # one for all trials
    assert (found.culprit is None) is kept
    note = _recorded(found)["all_reduce 1 MiB busbw"].note
    assert (f"attempt {trials}: earlier attempts" in note) is (trials > 1)
