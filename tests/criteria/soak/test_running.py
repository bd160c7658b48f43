"""Rounds of a soak: its time is met, ranks that fail are named, an interruption keeps the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_mnode.criteria.port_counters.reading import PortReading
from pytest_mnode.criteria.soak import running
from pytest_mnode.criteria.soak.asking import _other
from pytest_mnode.criteria.soak.found import Kept, Measured, Plan, Rate, Round, kept_in
from pytest_mnode.criteria.soak.running import Soak
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import NodeLostError, RankError
from pytest_mnode.evidence.row import Row
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec, default_spec_path, load_spec, profile_spec

NODES = ("node0", "node1")


@dataclass
class Clock:
    """The clock of `running`."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.8e9 + self.now_s


@dataclass
class Cluster:
    """Two nodes whose rounds do what `rounds` says, by number; others take 10 s."""

    clock: Clock
    rounds: dict[int, Callable[[float], None]] = field(default_factory=dict)
    worlds: int = 0
    limits_s: list[float] = field(default_factory=list)
    nodes = NODES
    procs_per_node = 1

    def world(self) -> Cluster:
        self.worlds += 1
        return self

    def close(self) -> None: ...

    def run(self, _: Any, *args: Any, timeout: float, group: bool) -> list[Any]:
        assert group
        if not args:
            return [None]
        [plan] = args
        assert isinstance(plan, Plan)
        self.limits_s.append(timeout)
        if act := self.rounds.get(plan.number):
            act(timeout)
        else:
            self.clock.now_s += 10
        rates = [Rate("matmul", name, 100.0, "GFLOP/s") for name in NODES]
        return [Measured(rates=rates, checked={"products": 4}), None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(running, "time", clock)
    return clock


@pytest.fixture
def flaps(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of readings of the ports from which on node1's link went down twice more."""
    flaps, count = set[int](), 0

    def read(*_: object, **__: object) -> dict[str, PortReading]:
        nonlocal count
        count += 1
        downs = 2 * sum(number < count for number in flaps)
        rises: dict[str, int | None]
        found = {}
        for name in NODES:
            rises = {"carrier_changes": downs if name == "node1" else 0, "rx_errors": 0}
            found[name] = PortReading("boot", {"fab0": rises})
        return found

    monkeypatch.setattr(running, "read_ports", read)
    return flaps


def soaked(
    cluster: Cluster, for_s: float = 100.0, kept: Kept | None = None, *, spec: Spec | None = None
) -> tuple[Soak, Kept]:
    """The soak, and what its rows keep of it."""
    rows = list[Row]()

    def keep(some: Iterable[Row]) -> None:
        rows.extend(some)

    spec = spec or load_spec(default_spec_path())
    world: Any = cluster
    soak = Soak(world, spec, Settings(), for_s, kept or Kept(), keep, lambda _: None)
    soak.run()
    return soak, kept_in(rows)


def test_no_round_begins_that_cannot_end_within(clock: Clock, flaps: set[int]) -> None:
    assert not flaps
    soak, kept = soaked(Cluster(clock), 100.0)
    assert [one.number for one in kept.rounds] == list(range(1, 10))  # 12.5 s would not be left
    assert (soak.cut, kept.ended_s) == ("", 100.0)
    assert not any(one.failures for one in kept.rounds)
    again, more = soaked(Cluster(clock), 130.0, kept)
    assert [one.number for one in more.rounds] == [10, 11, 12]
    assert sum(one.took_s for one in again.rounds) == 120.0


def test_a_link_that_flaps_is_a_failure_of_its_round(clock: Clock, flaps: set[int]) -> None:
    flaps.add(3)
    _, kept = soaked(Cluster(clock), 60.0)
    failures = {one.number: one.failures for one in kept.rounds if one.failures}
    assert list(failures) == [3]
    [failure] = failures[3]
    assert failure.culprit.parts.devices == (("node1", "fab0"),)


@pytest.mark.parametrize(("ranks", "rounds"), [(8, [3]), (12, [])])
def test_a_nic_that_carries_nothing_is_a_failure_of_its_round(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, ranks: int, rounds: list[int]
) -> None:
    """With failover of ports others carry what it should. Of twelve ranks on eight NICs the pairs
    of a round use one rank's."""
    sent, count = {name: [0] * 8 for name in NODES}, 0

    def read(*_: object, **__: object) -> dict[str, PortReading]:
        nonlocal count
        count += 1
        found = {}
        for name, words in sent.items():
            for nic in range(8):
                words[nic] += 0 if (name, nic, count) == ("node1", 5, 4) else 20 << 30
            ports: dict[str, dict[str, int | None]] = {
                f"mlx5_{nic}:1": {"symbol_error": 0, "port_xmit_data": words[nic]}
                for nic in range(8)
            }
            found[name] = PortReading("boot", ports)
        return found

    monkeypatch.setattr(running, "read_ports", read)
    cluster = Cluster(clock)
    cluster.procs_per_node = ranks
    _, kept = soaked(cluster, 60.0, spec=profile_spec("h100-ib"))
    failures = {one.number: one.failures for one in kept.rounds if one.failures}
    assert list(failures) == rounds
    assert [f.culprit.parts.devices for some in failures.values() for f in some] == [
        (("node1", "mlx5_5"),) for _ in rounds
    ]


def test_ranks_that_fail_are_named_and_the_next_round_has_others(
    clock: Clock, flaps: set[int]
) -> None:
    def fail(_: float) -> None:
        clock.now_s += 5
        raise RankError("[rank 1]\ntraceback", Culprit("rank 1 on node1", "node1").record)

    flaps.add(3)
    cluster = Cluster(clock, {2: fail, 3: fail})
    soak, kept = soaked(cluster, 60.0)
    assert [len(one.failures) for one in kept.rounds] == [0, 1, 2, *[0] * (len(kept.rounds) - 3)]
    assert kept.rounds[1].blamed[0].culprit.nodes == {"node1"}
    assert [one.symptom for one in kept.rounds[2].failures] == [True, False]
    assert (soak.cut, cluster.worlds) == ("", 3)


def test_after_three_broken_rounds_nothing_is_left_to_soak(clock: Clock, flaps: set[int]) -> None:
    def fail(_: float) -> None:
        clock.now_s += 1
        raise RankError("all of them failed")

    assert not flaps
    soak, kept = soaked(Cluster(clock, dict.fromkeys(range(3, 99), fail)), 1000.0)
    assert len(kept.rounds) == 5
    assert soak.cut == "the ranks of 3 rounds in a row failed"
    assert kept.ended_s is None


def test_a_lost_node_ends_the_soak_and_is_named(clock: Clock, flaps: set[int]) -> None:
    def lose(_: float) -> None:
        raise NodeLostError("node0", "node0 is gone")

    assert not flaps
    soak, kept = soaked(Cluster(clock, {2: lose}))
    assert soak.cut == "node0 is gone"
    assert kept.rounds[1].blamed[0].culprit.nodes == {"node0"}


def test_a_round_that_hangs_into_the_end_is_ended_there_and_accuses_nobody(
    clock: Clock, flaps: set[int]
) -> None:
    def hang(limit_s: float) -> None:
        clock.now_s += limit_s
        raise RankError("nobody came")

    assert not flaps
    began_s = clock.now_s
    cluster = Cluster(clock, {8: hang})
    _, kept = soaked(cluster, 100.0)
    assert len(kept.rounds) == 7
    assert not any(one.failures for one in kept.rounds)
    assert clock.now_s == began_s + 100
    cluster = Cluster(clock, {3: hang})
    _, kept = soaked(cluster, 1000.0)
    assert kept.rounds[2].failures, "here it reached its own limit"
    assert 100 < cluster.limits_s[2] < 200, "ten times a round, and the start of ranks"


def test_an_interruption_keeps_all_rounds_before(clock: Clock, flaps: set[int]) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt("SIGTERM")

    assert not flaps
    soak, kept = soaked(Cluster(clock, {4: interrupt}))
    assert len(kept.rounds) == len(soak.rounds) == 3
    assert (soak.cut, soak.interrupted, kept.ended_s) == ("interrupted (SIGTERM)", True, None)


@pytest.mark.parametrize(
    ("ended_s", "for_s", "nodes", "why"),
    [
        (None, 100.0, NODES, ""),
        (100.0, 200.0, NODES, ""),
        (100.0, 100.0, NODES, "that of this report lasted as long as it should, 100 s"),
        (None, 100.0, ("node0", "node2"), "that of this report had other nodes (node1, node2)"),
    ],
)
def test_a_soak_goes_on_if_it_is_the_same(
    ended_s: float | None, for_s: float, nodes: tuple[str, ...], why: str
) -> None:
    kept = Kept((Round(1, 1.8e9, 10.0, NODES),), 100.0, ended_s)
    assert _other(kept, nodes, for_s) == why
