"""The culprit of a slow collective: searched once, and again if no culprit was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring import busbw as module
from pytest_mnode.measuring.busbw import Busbw, KnownCulprit, KnownCulprits
from pytest_mnode.measuring.locating.locate import Effort
from pytest_mnode.rank.world import World
from tests.measuring.sweeps import CPU, MIB, PROMISE, SPEC, WORLD, judged, recorded, row

NODES = ("node0", "node1")
NOISY = (0.86, 0.9, 0.94)
"""Shares of the line by communicator, of which 0.8 is promised."""
CULPRIT = Culprit("node1 fab0", "node1")


class _Known:
    """Stores known culprits, on one rank."""

    def __init__(self) -> None:
        self.kept: list[KnownCulprit] = []

    def explaining(self, world: World, instead: str | None) -> KnownCulprit | None:
        return self.kept[-1] if self.kept else None

    def keep(self, world: World, instead: str | None, culprit: Culprit, collective: str) -> None:
        self.kept.append(KnownCulprit(world.nodes, instead, culprit, collective, 0.0))


class _Found:
    """The result of a search with this culprit."""

    def __init__(self, culprit: str | None) -> None:
        self.culprit = culprit

    @property
    def summary(self) -> Culprit:
        return Culprit(str(self))

    effort = Effort()

    @property
    def faults(self) -> int:
        return self.culprit is not None

    def __str__(self) -> str:
        return self.culprit or "nobody"


@pytest.mark.parametrize(("culprit", "searches"), [("node2 fab0", 1), (None, 2)])
def test_a_culprit_is_searched_until_found(
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
    short = judged([row(MIB, 0.5)])
    for _ in range(2):
        found = module._culprit(short, short.sweeps[0], CPU, 7.0, known=known)
        assert found == (culprit or "nobody", culprit is not None)
    assert asked == [pytest.approx(160.0)] * searches  # 0.8 of 200 Mbit/s
    printed = "culprit found earlier, when all_reduce was measured" in capsys.readouterr().out
    assert printed is (culprit is not None)
    module._culprit(short, short.sweeps[0], CPU, 7.0, known=None)
    assert len(asked) == searches + 1


@pytest.mark.parametrize(
    ("emulated", "culprit", "rates", "trials", "kept"),
    [
        (True, None, [0.5, 0.9], 2, True),  # other programs used the machine
        (True, None, [0.5, 0.5, 0.9], 3, True),
        (True, None, [0.5, 0.5, 0.5, 0.9], 3, False),
        (True, "node2 fab0", [0.5, 0.9], 1, False),  # a found culprit is not excused
        (False, None, [0.5, 0.9], 1, False),  # nor is an idle cluster
        (True, None, [0.9], 1, True),
        (True, None, [NOISY, 0.9], 2, True),  # above the bound, but undecided
        (True, None, [NOISY, NOISY, NOISY], 3, True),
        (False, None, [NOISY, 0.9], 1, True),
    ],
)
def test_a_slow_emulated_fabric_without_a_slow_pair_is_measured_again(  # noqa: PLR0917  a table
    monkeypatch: pytest.MonkeyPatch,
    emulated: bool,
    culprit: str | None,
    rates: list[float | tuple[float, ...]],
    trials: int,
    kept: bool,
) -> None:
    measured = iter(rates)
    budgets_s: list[float] = []

    def sweeps(*args: Any) -> Busbw:
        shares = next(measured)
        one = row(MIB, *(shares if isinstance(shares, tuple) else (shares,)))
        return replace(judged([one]), spec=args[2])

    def located(*_: Any, budget_s: float) -> _Found:
        budgets_s.append(budget_s)
        return _Found(culprit)

    monkeypatch.setattr(module, "_sweeps", sweeps)
    monkeypatch.setattr(module, "find_slow_links", located)
    monkeypatch.setattr(module, "slow_in_collectives", lambda *_: None)
    monkeypatch.setattr(module, "by_rank", lambda *_: [[12.0], [13.0]])
    spec = SPEC.model_copy(update={"emulated": ("links",) if emulated else ()})
    found = module.measure_busbw("all_reduce", PROMISE, spec, WORLD, CPU)
    assert len(list(measured)) == len(rates) - trials
    assert found.attempt == trials
    # One budget for all trials; no search starts without time left.
    assert budgets_s == [20.0, 8.0][: rates[:trials].count(0.5)]
    assert (found.culprit is None) is kept
    note = recorded(found)["all_reduce 1 MiB busbw"].note
    assert (f"attempt {trials}: earlier attempts" in note) is (trials > 1)


@pytest.mark.parametrize(
    ("named", "waited", "emulated", "verdict"),
    [
        (False, 0.3, True, "inconclusive"),
        (True, 0.3, True, "fail"),  # a culprit is not excused by a busy machine
        (False, 0.02, True, "fail"),  # nor a slow fabric by a quiet one
        (False, 0.3, False, "fail"),
    ],
)
def test_a_busy_machine_of_all_nodes_decides_nothing(
    named: bool, waited: float, emulated: bool, verdict: str
) -> None:
    spec = SPEC.model_copy(update={"emulated": ("links",) if emulated else ()})
    short = judged([row(MIB, 0.7)], culprit="node2" if named else "no culprit")
    short = replace(short, spec=spec, named=named, waited_fraction=waited)
    one = recorded(short)["all_reduce 1 MiB busbw"]
    assert str(one.verdict) == verdict
    assert ("threads were ready without a CPU for 30%" in one.note) is (verdict == "inconclusive")
    kept = recorded(replace(short, sweeps=judged([row(MIB, 0.9)]).sweeps))
    assert kept["all_reduce 1 MiB busbw"].passed


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "broadcast_object_list", lambda objects, src: None)


def _world(nodes: tuple[str, ...] = NODES, rank: int = 0) -> World:
    return World(rank, len(nodes), 0, 1, nodes[rank], nodes)


@pytest.mark.parametrize(
    ("nodes", "instead", "age_s", "explains"),
    [
        (NODES, None, 10.0, True),
        (NODES, None, 301.0, False),
        (NODES, None, -1.0, False),  # the node was started again
        (NODES, "all nodes sent over mgmt0 instead of fab0", 10.0, False),
        (("node0", "node2"), None, 10.0, False),
    ],
)
def test_a_known_culprit_explains_the_same_nodes_for_a_while(
    tmp_path: Path, nodes: tuple[str, ...], instead: str | None, age_s: float, explains: bool
) -> None:
    KnownCulprits(tmp_path, lambda: 1000.0).keep(_world(), None, CULPRIT, "all_reduce")
    found = KnownCulprits(tmp_path, lambda: 1000.0 + age_s).explaining(_world(nodes), instead)
    assert (found is not None) is explains
    if found is not None:
        assert (found.culprit, found.collective) == ("node1 fab0", "all_reduce")


def test_only_rank_0_keeps_and_reads(tmp_path: Path) -> None:
    known = KnownCulprits(tmp_path)
    known.keep(_world(rank=1), None, CULPRIT, "all_reduce")
    assert list(tmp_path.iterdir()) == []
    known.keep(_world(), None, CULPRIT, "all_reduce")
    assert known.explaining(_world(rank=1), None) is None  # other ranks get it from rank 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 3}', "\x00"])
def test_an_unreadable_culprit_is_searched_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "culprit.json").write_text(text)
    assert KnownCulprits(tmp_path).explaining(_world(), None) is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    known = KnownCulprits(tmp_path / "missing")
    known.keep(_world(), None, CULPRIT, "all_reduce")
    assert known.explaining(_world(), None) is None
