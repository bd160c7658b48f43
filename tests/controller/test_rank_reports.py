"""Reports of ranks that all passed, and those of tests that only look so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller import rank_reports
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.outcome.merge import give_added, merge
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.protocol.messages import PhaseReport, Shape, TornDown, WorldInfo

NODES = ("node0", "node1")


def outcome_of(phases: tuple[str, ...] = ("setup", "call", "teardown")) -> Outcome:
    states = {}
    for rank, node in enumerate(NODES):
        state = states[rank] = RankState(rank, node, torn_down=TornDown())
        for number, when in enumerate(phases):
            times = {"duration": 0.5 + rank, "start": 10.0 + number - rank, "stop": 11.0 + number}
            state.reports[when] = PhaseReport(when, "passed", times)
    return Outcome(WorldInfo("w1", Shape(2, 1), NODES), states, 9.0, started=9.0, stopped=15.0)


def merged(config: pytest.Config, outcome: Outcome) -> list[dict[str, Any]]:
    """The attributes of each report, as pytest has them in the end."""
    module: Any = SimpleNamespace(__doc__=None)
    item: Any = SimpleNamespace(
        nodeid="a.py::test_a", location=("a.py", 1, "test_a"), keywords={"x": 1}, obj=module,
        stash=pytest.Stash(), config=config,
    )  # fmt: skip
    found = rank_reports.merged(item, outcome)
    for report in found:
        give_added(report)
    return [vars(report) for report in found]


@pytest.mark.parametrize("phases", [("setup", "call", "teardown"), ("setup", "teardown")])
def test_a_plain_pass_is_reported_as_if_it_was_merged(
    pytestconfig: pytest.Config, phases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = merged(pytestconfig, outcome_of(phases))
    assert [one["when"] for one in quick] == list(phases)
    assert {one["outcome"] for one in quick} == {"passed"}
    monkeypatch.setattr(Outcome, "plainly_passed", property(lambda _: False))
    assert quick == merged(pytestconfig, outcome_of(phases))


def test_the_record_of_a_test_is_on_its_last_report(pytestconfig: pytest.Config) -> None:
    measured = Measurement("busbw", 1.0, "GB/s", at_least(2.0), "spec")
    outcome = outcome_of()
    for state in outcome.states.values():
        state.torn_down = TornDown(measurements=(measured,))
    *earlier, last = merged(pytestconfig, outcome)
    assert not any("mnode" in one for one in earlier)
    assert [one["name"] for one in last["mnode"]["measurements"]] == ["busbw"]
    assert last["mnode"]["nodes"] == [*NODES]


def _stuck(outcome: Outcome) -> None:
    outcome.states[1].stuck_in = "teardown"


def _without_body(outcome: Outcome) -> None:
    del outcome.states[1].reports["call"]


def _leaks(outcome: Outcome) -> None:
    outcome.states[1].torn_down = TornDown(leaks=("thread 'x'",))


def _died(outcome: Outcome) -> None:
    outcome.states[1].lost = "the node is gone"


def _printed(outcome: Outcome) -> None:
    data = outcome.states[1].reports["call"].data
    hook = pytest.TestReport("a.py::test_a", ("a.py", 1, "x"), {}, "passed", None, "call")
    outcome.states[1].reports["call"] = PhaseReport(
        "call", "passed", {**hook._to_json(), **data, "sections": [("out", "1")]}
    )


@pytest.mark.parametrize("change", [_stuck, _without_body, _leaks, _died, _printed])
def test_what_only_looks_like_a_plain_pass_is_merged(
    pytestconfig: pytest.Config,
    change: Callable[[Outcome], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merges: list[Outcome] = []

    def noting(outcome: Outcome, *args: Any, **kwargs: Any) -> Any:
        merges.append(outcome)
        return merge(outcome, *args, **kwargs)

    monkeypatch.setattr(rank_reports, "merge", noting)
    outcome = outcome_of()
    change(outcome)
    found = merged(pytestconfig, outcome)
    assert merges == [outcome]
    failed = any(one["outcome"] == "failed" for one in found)
    assert failed == (change is not _printed)
