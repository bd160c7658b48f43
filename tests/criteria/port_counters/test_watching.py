"""The tests whose counter increases each criterion answers for, over a whole composed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mnode.checks.node.reachable import LOSSY_PATHS
from pytest_mnode.criteria.port_counters import watching
from pytest_mnode.criteria.port_counters.reading import Counters, PortReading
from pytest_mnode.criteria.port_counters.rises import PortReadings
from pytest_mnode.criteria.port_counters.watching import PortWatch
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import ClusterError
from pytest_mnode.evidence.row import MeasuredRows
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.spec import profile_spec
from tests.criteria.port_counters.test_judging import fabric

BETWEEN = "before this criterion"


class Run:
    """A run of two nodes whose link counters the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
        self.switched_off: set[str] = set()
        clocks = SimpleNamespace(clocks=SimpleNamespace(skew_s=0.05))
        criteria = SimpleNamespace(preflight=clocks)
        self.spec: Any = SimpleNamespace(
            fabric=fabric("roce", interfaces=["eth1"]), criteria=criteria
        )
        self.words = [0] * 8
        """What each NIC of a node sent."""
        self.clock_s = 7.0
        self.counters: dict[str, Counters] = {
            node: {"carrier_changes": 3, "req_cqe_error": 0} for node in ("n0", "n1")
        }
        self.readings = 0
        monkeypatch.setattr(watching, "read_ports", self._read)
        monkeypatch.setattr(watching, "asks_for", lambda item, _: "watched" in item.path.name)
        self._items = {file: SimpleNamespace(path=Path(file)) for file in files}
        session = SimpleNamespace(items=[*self._items.values()], config=SimpleNamespace())
        self.watch = PortWatch(cast(Any, self), cast(Any, session))

    def all_nodes(self) -> Any:
        return None

    def _read(self, *_: object, **__: object) -> PortReadings:
        self.readings += 1
        return {
            node: PortReading(
                "a",
                {
                    "eth1": {"carrier_changes": counters["carrier_changes"]},
                    "rxe0:1": {"req_cqe_error": counters["req_cqe_error"]},
                    **{
                        f"mlx5_{i}:1": {"symbol_error": 0, "port_xmit_data": words}
                        for i, words in enumerate(self.words)
                    },
                },
                self.clock_s,
            )
            for node, counters in self.counters.items()
        }

    def during(self, file: str, **rises: int) -> None:
        """A test of this file, during which these counters of n1 rise."""
        running = self.watch.pytest_runtest_protocol(cast("Any", self._items[file]))
        next(cast("Iterator[object]", running))
        for counter, by in rises.items():
            self.counters["n1"][counter] = (self.counters["n1"][counter] or 0) + by
        with pytest.raises(StopIteration):
            next(cast("Iterator[object]", running))

    def measured(self, **done: bool | str) -> list[Measurement]:
        """What the test of ports records; the rows that it keeps say the same."""
        found, kept = list[Measurement](), list[MeasuredRows]()
        measure = SimpleNamespace(record=found.extend, chart=kept.append)
        self.watch.record(cast("Any", measure), **cast("Any", done))
        [rows] = kept
        again = watching.judged(rows.rows, cast("Any", self.spec))
        assert [one.name for one in again] == [one.name for one in found if one.name != LOSSY_PATHS]
        return found

    def failed(self, found: list[Measurement]) -> list[tuple[bool, str | None]]:
        return [(m.name.endswith(BETWEEN), m.culprit) for m in found if str(m.verdict) == "fail"]


Start = Callable[..., Run]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a run of tests of these files."""
    return partial(Run, monkeypatch)


def test_consecutive_criteria_share_a_reading_but_not_an_increase(start: Start) -> None:
    run = start("a-watched.py", "b-watched.py")
    run.during("a-watched.py", carrier_changes=2)
    flapped = "n1 eth1 carrier_changes +2"
    [(between, culprit)] = run.failed(run.measured())
    assert (between, (culprit or "").partition(";")[0]) == (False, flapped)
    run.during("b-watched.py")
    found = run.measured()
    assert run.failed(found) == []
    assert not [m for m in found if m.name.endswith(BETWEEN)]
    assert run.readings == 3


@pytest.mark.parametrize(("given", "failed"), [({}, 1), ({"kills": True}, 0)])
def test_counters_of_connections_count_unless_processes_were_killed(
    start: Start, given: dict[str, bool], failed: int
) -> None:
    run = start("a-watched.py")
    run.during("a-watched.py", req_cqe_error=9)
    assert len(run.failed(run.measured(**given))) == failed


@pytest.mark.parametrize("other", ["b-other.py", "b-watched.py"])
def test_a_flap_during_an_unjudged_file_fails_the_next_criterion(start: Start, other: str) -> None:
    """The file has no test of ports, or the test is skipped because it is not promised."""
    run = start("a-watched.py", other, "c-watched.py", "d-watched.py")
    run.during("a-watched.py")
    assert run.failed(run.measured()) == []
    run.during(other, carrier_changes=4, req_cqe_error=9)  # it may have killed its own processes
    run.during("c-watched.py")
    assert run.failed(run.measured()) == [(True, "n1 eth1 carrier_changes +4")]
    run.during("d-watched.py")
    assert run.failed(run.measured()) == []


def test_the_first_reading_precedes_the_first_criterion_even_if_not_promised(start: Start) -> None:
    run = start("a-watched.py", "b-watched.py")
    run.during("a-watched.py", carrier_changes=2)
    run.during("b-watched.py")
    assert run.failed(run.measured()) == [(True, "n1 eth1 carrier_changes +2")]


def test_a_node_that_was_switched_off_is_not_compared(start: Start) -> None:
    run = start("a-watched.py", "b-watched.py", "c-watched.py")
    run.during("a-watched.py")
    run.measured()
    run.during("b-watched.py", carrier_changes=2)
    run.switched_off.add("n1")
    run.during("c-watched.py")
    assert run.failed(run.measured()) == []


def test_a_clock_that_is_stepped_during_a_criterion_fails_it(start: Start) -> None:
    run = start("a-watched.py", "b-watched.py")
    run.during("a-watched.py")
    run.clock_s -= 3
    assert run.failed(run.measured()) == [(False, "n0 clock; n1 clock")]
    run.during("b-watched.py")
    assert run.failed(run.measured()) == []


@pytest.mark.parametrize(
    ("kind", "lost", "named"),
    [
        ("ethernet", 5, ["a", "a"]),  # the one that the datagrams name, in both measurements
        ("ethernet", 0, ["TCP"]),
        ("roce", 5, ["TCP"]),  # whose packets go another way than datagrams
    ],
)
def test_what_tcp_lost_is_located_by_datagrams(
    monkeypatch: pytest.MonkeyPatch, start: Start, kind: str, lost: int, named: list[str]
) -> None:
    run = start("watched.py")
    run.spec.fabric = fabric(kind, interfaces=["eth1"])
    tcp = Culprit("TCP", either=[["a", "b"]])
    counted = Measurement("packets lost", 2.0, "%", at_most(1), "", tcp)
    monkeypatch.setattr(watching, "judge", lambda *_, **__: [counted])
    paths = Measurement(LOSSY_PATHS, lost, "", equals(0), "", Culprit("a", "a"))
    monkeypatch.setattr(watching, "lossy_paths", lambda *_: [paths])
    run.during("watched.py")
    assert [culprit for _, culprit in run.failed(run.measured())] == named


def test_losses_of_tcp_stand_if_their_paths_cannot_be_found(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    run = start("watched.py")
    run.spec.fabric = fabric("ethernet", interfaces=["eth1"])
    counted = Measurement("packets lost", 2.0, "%", at_most(1), "", Culprit("TCP", either=[["a"]]))
    monkeypatch.setattr(watching, "judge", lambda *_, **__: [counted])

    def lost(*_: object) -> list[Measurement]:
        raise ClusterError("n1 is lost\nmore")

    monkeypatch.setattr(watching, "lossy_paths", lost)
    run.during("watched.py")
    found = run.measured()
    assert counted in found
    assert [str(one.verdict) for one in found if one.name == LOSSY_PATHS] == ["inconclusive"]


@pytest.mark.parametrize(
    ("loads", "bound", "source"),
    [
        ({"loads": ""}, True, "an even share each"),
        ({"loads": "its job may use some NICs only"}, False, "its job may use some NICs only"),
        ({}, False, ""),
    ],
)
def test_bytes_of_each_nic_are_judged_as_a_criterion_loads_them(
    monkeypatch: pytest.MonkeyPatch, loads: dict[str, str], bound: bool, source: str
) -> None:
    run = Run(monkeypatch, "watched.py")
    run.spec = profile_spec("h100-ib")
    run.during("watched.py")
    run.words = [0, *[20 << 30] * 7]
    found = [one for one in run.measured(**loads) if "carried their share" in one.name]
    assert [(one.value, one.expected is not None) for one in found] == [(7, bound)] * bool(loads)
    assert all(one.source.endswith(source) for one in found)
