"""Coverage over several runs: the latest result counts, a pass expires, path tables are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, Certificate
from pytest_mnode.certificate.certificate import certificate_json
from pytest_mnode.certificate.coverage import StateCounts, last_passes
from pytest_mnode.certificate.files import parse_certificate
from pytest_mnode.certificate.headline import headline
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.path_rates import PathRates
from tests.certificate.conftest import RIGHT, certify

NIGHT = datetime(2026, 11, 21, 2, 6, tzinfo=UTC)
PASSED = CaseResult("acceptance/test_mesh.py::test_it", "?", "passed", measurements=(RIGHT,))


def failed(culprit: str) -> CaseResult:
    slow = Measurement("rate", 48, "Mbit/s", at_least(170), "spec", Culprit.of(culprit))
    return replace(PASSED, outcome="failed", measurements=(slow,))


def run(day: float, case: CaseResult, *nodes: str, **more: Any) -> Certificate:
    end = NIGHT + timedelta(days=day)
    facts: dict[str, Any] = {"nodes": nodes, "cluster_nodes": 4, "start": end, "end": end}
    return certify(case, promised=["mesh"], **facts, **more)


def states(certificate: Certificate) -> dict[str, str]:
    return {node.name: node.state.value for node in certificate.coverage.nodes}


def test_earlier_runs_cover_nodes_not_tested_in_this_run() -> None:
    first = run(0, PASSED, "a", "b")
    second = run(1, PASSED, "c", "d", earlier=(first.coverage,))
    assert (first.verdict, second.verdict) == ("partly certified", "certified")
    assert second.count == "4 of 4 nodes"
    assert second.expiry == NIGHT + timedelta(days=7)  # of the pass that expires first
    third = run(2, PASSED, "c", earlier=(second.coverage, first.coverage))
    assert third.verdict == "certified"


def test_the_last_pass_of_each_node() -> None:
    runs = [run(0, PASSED, "a", "b"), run(2, failed("a"), "a", "b"), run(1, PASSED, "a", "c")]
    found = last_passes(one.coverage for one in runs)
    assert found == {
        name: NIGHT + timedelta(days=day) for name, day in (("a", 1), ("b", 2), ("c", 1))
    }


def test_the_latest_run_of_a_node_counts() -> None:
    bad = run(0, failed("a"), "a", "b")
    assert states(bad) == {"a": "failed", "b": "passed"}
    again = run(1, PASSED, "a", "c", earlier=(bad.coverage,))
    assert states(again) == {"a": "passed", "b": "passed", "c": "passed"}
    worse = run(2, failed("c"), "c", "d", earlier=(again.coverage, bad.coverage))
    assert states(worse) == {"a": "passed", "b": "passed", "c": "failed", "d": "passed"}
    cut = run(3, PASSED, "c", earlier=(worse.coverage,), cut_short=("-x",))
    assert states(cut)["c"] == "failed", "an untested node does not change its state"


def test_a_node_that_failed_in_an_earlier_run_prevents_certification() -> None:
    bad = run(0, failed("a"), "a", "b")
    good = run(1, PASSED, "c", "d", earlier=(bad.coverage,))
    assert (good.verdict, good.count) == ("partly certified", "3 of 4 nodes")
    assert good.reasons == ("not every node has a pass: passed: c,d,b; failed: a",)


def test_an_expired_pass_does_not_count() -> None:
    first = run(0, PASSED, "a", "b")
    late = run(7, PASSED, "c", "d", earlier=(first.coverage,))
    assert states(late) == {"c": "passed", "d": "passed", "a": "not tested", "b": "not tested"}
    assert late.verdict == "partly certified"
    [a] = [node for node in late.coverage.nodes if node.name == "a"]
    assert a.evidence == "its pass expired on 2026-11-28 02:06 UTC"
    assert (a.date, a.until) == (NIGHT, None)


def rates(*nodes: str, row: str = "p", mbits_s: int = 190) -> PathRates:
    """Equal rates for all paths."""
    each = range(len(nodes))
    return PathRates(
        nodes,
        ("fab0",),
        170.0,
        tuple("".join("-" if a == b else row for b in each) for a in each),
        tuple(" ".join("-" if a == b else str(mbits_s) for b in each) for a in each),
        tuple("p" for _ in each),
        tuple(str(mbits_s) for _ in each),
    )


def measured(*nodes: str, **more: Any) -> CaseResult:
    """A case that passed, and measured all paths between these nodes."""
    return replace(PASSED, paths=(rates(*nodes, **more),))


def test_paths_are_known_from_the_latest_run_that_measured_them() -> None:
    everything = measured("a", "b", "c")
    first = run(0, everything, "a", "b", "c")
    slow = measured("a", "b", row="f", mbits_s=95)
    second = run(1, slow, "a", "b", earlier=(first.coverage,))
    found = second.coverage
    assert found.paths_by_state == StateCounts(4, 2, 0, 6)
    assert found.paths_in_words() == (
        "6 of 12 measured (50 %); failed: a→b (95 Mbit/s), b→a (95 Mbit/s)"
    )
    assert [block.date for block in found.paths] == [second.run.end, first.run.end]
    rails = {node.name: [(r.name, r.mbits_s, r.date) for r in node.rails] for node in found.nodes}
    assert rails["a"] == [("fab0", 95, second.run.end)]
    assert rails["c"] == [("fab0", 190, first.run.end)]
    third = run(2, everything, "a", "b", "c", earlier=(found,))
    assert [block.date for block in third.coverage.paths] == [third.run.end], "others are outdated"
    assert third.coverage.paths_in_words() == "6 of 12 measured (50 %)"


def test_a_node_that_was_replaced_has_left_the_cluster() -> None:
    """The run names as many nodes as the spec: nobody waits for the pass of one that is gone."""
    everything = replace(failed("d"), paths=(rates("a", "b", "c", "d", row="f", mbits_s=95),))
    first = run(0, everything, "a", "b", "c", "d")
    healthy = measured("a", "b", "c", "e")
    second = run(1, healthy, "a", "b", "c", "e", earlier=(first.coverage,))
    assert (second.verdict, second.count) == ("certified", "4 of 4 nodes")
    assert states(second) == dict.fromkeys("abce", "passed")
    assert second.coverage.paths_in_words() == "12 of 12 measured (100 %)"
    assert second.coverage.share_of_paths() == ""
    two = measured("a", "b")
    known = {"not_covered": ("c", "e"), "earlier": (second.coverage, first.coverage)}
    third = run(2, two, "a", "b", **known)
    assert (third.verdict, third.count) == ("certified", "4 of 4 nodes")
    assert [block.rates.nodes for block in third.coverage.paths] == [("a", "b"), (*"abce",)]
    unnamed = run(2, two, "a", "b", earlier=(first.coverage,))
    assert states(unnamed)["d"] == "failed", "it may be one of those that this run does not name"


def test_halves_without_a_tested_path_between_them_are_not_certified() -> None:
    """Every node passed, but a slow path between the halves would be unknown."""
    first = run(0, measured("a", "b"), "a", "b")
    second = run(1, measured("c", "d"), "c", "d", earlier=(first.coverage,))
    assert (second.verdict, second.expiry) == ("partly certified", None)
    assert second.reasons == ("no path was measured between c,d and a,b",)
    assert headline(second).line == (
        "partly certified: 4 of 4 nodes, 33.3 % of paths until 2026-11-28 02:06 UTC (spec rack, "
        "rack launcher); cluster not certified: no path was measured between c,d and a,b"
    )
    between = measured("b", "c")
    third = run(2, between, "b", "c", earlier=(second.coverage,))
    assert third.verdict == "certified", "indirect paths are enough, as with samples"
    assert headline(third).line.startswith("certified: 4 of 4 nodes, 50 % of paths until ")


def test_coverage_of_512_nodes_is_small_and_reads_back() -> None:
    names = tuple(f"gpu-{i:04d}" for i in range(512))
    measured = replace(PASSED, nodes=names, paths=(rates(*names, mbits_s=46000),))
    certificate = certify(measured, promised=["mesh"], nodes=names, cluster_nodes=512)
    text = json.dumps(certificate_json(certificate), indent=2)
    assert len(text) < 3_000_000
    read = parse_certificate(text, "here")
    assert read.coverage == certificate.coverage
    assert read.coverage.paths_in_words() == "261632 of 261632 measured (100 %)"


def test_a_path_that_failed_in_its_last_measurement_prevents_certification() -> None:
    """Each half passes alone later, but the slow path between them is still known."""
    all_of_them = rates("a", "b", "c", "d", row="f", mbits_s=95)
    bad = replace(failed("the path b→c (95 Mbit/s)"), paths=(all_of_them,))
    first = run(0, bad, "a", "b", "c", "d")
    second = run(1, measured("a", "b"), "a", "b", earlier=(first.coverage,))
    third = run(2, measured("c", "d"), "c", "d", earlier=(second.coverage,))
    assert third.count == "4 of 4 nodes"
    assert third.verdict == "partly certified"
    assert "failed: a→c (95 Mbit/s)" in third.reasons[0]


@pytest.mark.parametrize(("later_s", "count"), [(-1, 12), (0, 2), (1, 2)])
def test_a_pass_counts_until_its_last_moment(later_s: float, count: int) -> None:
    """Of nodes as of paths; here c and d, and the paths from and to them."""
    everything = measured("a", "b", "c", "d")
    first = run(0, everything, "a", "b", "c", "d")
    second = run(7 + later_s / 86400, measured("a", "b"), "a", "b", earlier=(first.coverage,))
    assert second.coverage.paths_by_state.passed == count
    state = "passed" if count == 12 else "not tested"
    assert states(second) == {"a": "passed", "b": "passed", "c": state, "d": state}


def test_a_run_of_the_future_does_not_outweigh_this_one() -> None:
    """An earlier clock was a year ahead, or this one was set back."""
    ahead = run(365, PASSED, "a", "b", "c", "d")
    bad = run(1, failed("a"), "a", "b", earlier=(ahead.coverage,))
    assert states(bad) == {"a": "failed", "b": "passed", "c": "not tested", "d": "not tested"}
    good = run(2, PASSED, "c", "d", earlier=(ahead.coverage, bad.coverage))
    assert good.verdict == "partly certified"
    assert good.until == NIGHT + timedelta(days=8)


def test_without_a_node_no_cluster_is_certified() -> None:
    none = certify(PASSED, promised=["mesh"], nodes=(), cluster_nodes=None)
    assert (none.verdict, none.expiry, none.kept) == ("partly certified", None, True)
    assert headline(none).line.endswith("; cluster not certified: no node was tested")
