"""The same measurements judged by another spec: bounds follow their keys, others are listed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate import CaseResult, Certificate, CriterionResult
from pytest_mnode.certificate.files import json_text, parse_certificate
from pytest_mnode.certificate.gathered import Kept
from pytest_mnode.certificate.rejudge import rejudge_certificate
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.checks.devices.matmul import EveryRankMultipliesAsFastAsTheOthers, Wrong
from pytest_mnode.checks.node.kernel_log import KernelLogHasNoFailures
from pytest_mnode.checks.node.reachable import LOSSY_PATHS, EveryNodeIsReached
from pytest_mnode.checks.placement.copies import NearMemoryIsFasterThanFar as COPIES
from pytest_mnode.checks.placement.cpus import RanksRunBesideTheirAccelerator
from pytest_mnode.checks.placement.memory import MemoryIsBesideTheAccelerator as MEMORY
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.port_counters import watching as ports
from pytest_mnode.criteria.port_counters.judging import located
from pytest_mnode.criteria.port_counters.reading import TCP, Counters, PortReading
from pytest_mnode.criteria.port_counters.rises import rises
from pytest_mnode.criteria.preflight import answers
from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most, equals
from pytest_mnode.measuring.naming import named_rank
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.spec import Spec, default_spec_path, load_spec, profile_spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.devices import MatmulPromise
from tests.certificate.conftest import certify
from tests.checks.placement.made import placed, read
from tests.checks.placement.made import rows as rows_of
from tests.criteria.preflight.made import healthy, kept_as, with_facts, with_node
from tests.measuring.test_copies import copied
from tests.trees import gpu_address, gpu_server

Edit = Callable[[dict[str, Any]], Any]
SOURCE = "fabric.line_rate 200 Mbit/s × at_least_fraction 0.75; busbw = algbw × 2(n-1)/n"
PROMISE = "fabric.all_reduce_busbw"


def busbw(value: float) -> Measurement:
    """A busbw bound of 75 % of the rack's 0.025 GB/s."""
    bound = at_least(0.01875).of("fabric.line_rate", 2e8).of("at_least_fraction", 0.75)
    return Measurement("busbw", value, "GB/s", bound, SOURCE, Culprit("node2"))


RIGHT = Measurement("#wrong", 0, "", equals(0), "whole numbers, sent or added up, are exact")
PAST = Measurement(
    "past",
    1,
    "%",
    at_most(10).of("fabric.interfaces", "fab0"),
    "fabric.interfaces: bytes on the fabric only",
)
SKEW = Measurement(
    "skew",
    0.02,
    "s",
    at_most(0.05).of("preflight.clocks.skew", 0.05),
    "preflight.clocks.skew 50 ms",
)
UNTIED = Measurement("latency", 3, "us", at_most(5), "a rule of thumb")


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Edit], tuple[Spec, Path]]:
    """The rack's spec with other values."""

    def of(edit: Edit) -> tuple[Spec, Path]:
        page = yaml.safe_load(default_spec_path().read_text())
        edit(page)
        path = tmp_path / "other.yaml"
        path.write_text(yaml.safe_dump(page))
        return load_spec(path), path

    return of


def night(*measurements: Measurement, name: str = "fabric", promise: str = PROMISE) -> Certificate:
    spec, path = profile_spec("rack"), default_spec_path()
    failing = [m for m in measurements if m.verdict == "fail"]
    case = CaseResult(
        f"t/test_{name}.py::test_it",
        "?",
        "failed" if failing else "passed",
        "\n".join(map(str, failing)),
        measurements=measurements,
        promises=(promise,),
        by_bounds=bool(failing),
    )
    return certify(case, promised=[name], spec=facts_of(spec, path))


def criterion(certificate: Certificate, name: str = "fabric") -> CriterionResult:
    [found] = [one for one in certificate.criteria if one.name == name]
    return found


def limit_of(measurement: Measurement) -> float:
    assert measurement.expected is not None
    return measurement.expected.limit


def at(*keys: str, value: Any) -> Edit:
    """Sets one value of a page."""

    def edit(page: dict[str, Any]) -> None:
        for key in keys[:-1]:
            page = page[key]
        page[keys[-1]] = value

    return edit


FRACTION = ("criteria", "fabric", "all_reduce_busbw", "at_least_fraction")


@pytest.mark.parametrize(
    ("value", "fraction", "verdict", "limit"),
    [
        (0.0230, 0.9, "pass", 0.0225),
        (0.0220, 0.9, "fail", 0.0225),
        (0.0175, 0.65, "pass", 0.01625),  # failed before
        (0.0160, 0.65, "fail", 0.01625),
    ],
)
def test_a_bound_follows_the_key_of_its_term(
    edited: Any, value: float, fraction: float, verdict: str, limit: float
) -> None:
    found, undecided = rejudge_certificate(
        night(busbw(value), RIGHT, PAST), *edited(at(*FRACTION, value=fraction))
    )
    [measured, right, past] = criterion(found).cases[0].measurements
    assert (criterion(found).verdict, undecided) == (verdict, ())
    assert limit_of(measured) == pytest.approx(limit)
    assert f"at_least_fraction 0.75 → {fraction:g}" in measured.source
    assert (right, past) == (RIGHT, PAST)
    assert found.run.spec.page["criteria"]["fabric"]["all_reduce_busbw"][FRACTION[-1]] == fraction


def test_both_keys_of_a_product_change_the_bound(edited: Any) -> None:
    def edit(page: dict[str, Any]) -> None:
        at(*FRACTION, value=0.375)(page)
        at("fabric", "line_rate", value="399999999 bit/s")(page)

    found, undecided = rejudge_certificate(night(busbw(0.022)), *edited(edit))
    [measured] = criterion(found).cases[0].measurements
    assert undecided == ()
    assert limit_of(measured) == pytest.approx(0.01875)
    assert "fabric.line_rate 200 Mbit/s → 399999999 bit/s" in measured.source
    assert "at_least_fraction 0.75 → 0.375" in measured.source


def test_a_limit_that_is_a_time_is_shown_as_one(edited: Any) -> None:
    key = ("criteria", "preflight", "clocks", "skew")
    found, _ = rejudge_certificate(
        night(SKEW, name="preflight", promise="preflight.clocks"), *edited(at(*key, value="60 ms"))
    )
    [measured] = criterion(found, "preflight").cases[0].measurements
    assert measured.source.endswith("criteria.preflight.clocks.skew 50 ms → 60 ms")


@pytest.mark.parametrize(
    ("measurement", "edit", "why"),
    [
        (busbw(0.03), at(*FRACTION[:-1], "sizes", value=["8 MiB"]), "measured with another"),
        (busbw(0.03), at(*FRACTION[:-1], "tolerance_fraction", value=0.1), "measured with another"),
        (busbw(0.03), at("fabric", "mtu", value=9000), "measured with another fabric.mtu"),
        (UNTIED, at(*FRACTION, value=0.9), "it is not known which keys of the spec its bound"),
        (PAST, at("fabric", "interfaces", value=["fab1"]), "its bound is no product of"),
    ],
)
def test_measurements_that_cannot_be_rejudged_are_listed_and_never_pass(
    edited: Any, measurement: Measurement, edit: Edit, why: str
) -> None:
    certificate = night(busbw(0.03), measurement)
    assert certificate.criteria[0].verdict == "pass"
    if measurement.source == UNTIED.source:
        certificate = night(measurement, busbw(0.03))
    spec, path = edited(lambda page: _plateau(page, edit))
    found, undecided = rejudge_certificate(certificate, spec, path)
    assert criterion(found).verdict == "inconclusive"
    assert any(f"{measurement.name}: cannot be judged again: {why}" in line for line in undecided)
    assert not found.kept


def _plateau(page: dict[str, Any], edit: Edit) -> None:
    edit(page)
    busbw_promise = page["criteria"]["fabric"]["all_reduce_busbw"]
    if busbw_promise["sizes"] == ["8 MiB"]:
        busbw_promise["plateau_from"] = "8 MiB"


def test_a_change_of_other_keys_changes_nothing(edited: Any) -> None:
    other = edited(at("criteria", "preflight", "clocks", "skew", value="10 ms"))
    found, undecided = rejudge_certificate(night(busbw(0.03), RIGHT), *other)
    assert (criterion(found).verdict, undecided) == ("pass", ())
    clocks = night(SKEW, name="preflight", promise="preflight.clocks")
    found, undecided = rejudge_certificate(clocks, *other)
    assert (found.criteria[0].verdict, undecided) == ("fail", ())


IN_OTHER_WORDS = Measurement(
    "busbw",
    0.0220,
    "GB/s",
    at_least(0.01875).of("fabric.line_rate", 2e8).of("at_least_fraction", 0.75),
    "as fast as the cluster promises",
)


@pytest.mark.parametrize(
    ("edit", "limit"),
    [
        (at(*FRACTION, value=0.9), 0.0225),
        (at("fabric", "line_rate", value="100 Mbit/s"), 0.009375),
        (at("criteria", "preflight", "clocks", "skew", value="1 ms"), 0.01875),
    ],
)
def test_a_bound_follows_its_terms_whatever_its_source_says(
    edited: Any, edit: Edit, limit: float
) -> None:
    written = json_text(night(IN_OTHER_WORDS))
    found, undecided = rejudge_certificate(parse_certificate(written, "it"), *edited(edit))
    [again] = criterion(found).cases[0].measurements
    assert undecided == ()
    assert limit_of(again) == pytest.approx(limit)
    # What was judged again can be judged once more.
    back, _ = rejudge_certificate(found, *edited(lambda page: None))
    [first] = criterion(back).cases[0].measurements
    assert limit_of(first) == pytest.approx(0.01875)


@pytest.mark.parametrize(
    "edit",
    [
        at("accelerators", "memory", value="81 GB"),
        at("accelerators", "model", value="Another"),
        at("fabric", "errors_at_most", value=3),
        at("storage", value={"datasets": "/elsewhere"}),
        at("scheduler", value={"kind": "slurm", "names": {"partition": "a"}}),
    ],
)
def test_a_key_of_other_questions_changes_nothing(edited: Any, edit: Edit) -> None:
    for measured in (busbw(0.022), IN_OTHER_WORDS):
        found, undecided = rejudge_certificate(night(measured, RIGHT), *edited(edit))
        assert (criterion(found).verdict, undecided) == ("pass", ())


def test_words_of_a_source_say_nothing_beside_bounds_with_terms(edited: Any) -> None:
    """The source of this bound reads like a product of the key, which it is not."""
    odd = Measurement("odd", 9.0, "%", at_least(2.0), "2.5 × at_least_fraction of other nodes")
    night_of_both = night(IN_OTHER_WORDS, odd)
    found, undecided = rejudge_certificate(night_of_both, *edited(at(*FRACTION, value=0.8)))
    [first, second] = criterion(found).cases[0].measurements
    assert first.passed
    assert limit_of(first) == pytest.approx(0.02)
    assert second.value is None
    assert "it is not known which keys of the spec its bound is computed from" in undecided[0]


def swept(spec: Spec, size: int = 4 << 20) -> Measurement:
    """All-reduce of a sweep over four nodes of one rank, at 0.9 of its line."""
    fabric = spec.criteria.fabric
    assert fabric is not None
    assert fabric.all_reduce_busbw is not None
    model = CollectiveModel(Platform.of(spec), "all_reduce", 4, 1, "gloo")
    bound = fabric.all_reduce_busbw.bound_gbytes_s(model, model.default, size)
    mark = HeadlineMark("all-reduce", of=0.025, whole="the line")
    return Measurement("busbw", 0.0225, "GB/s", bound, "the model", headline=mark)


@pytest.mark.parametrize(
    "edit",
    [
        lambda page: None,
        at(*FRACTION, value=0.8),
        at("fabric", "line_rate", value="400 Mbit/s"),
        at("fabric", "nics_per_node", value=2),
        at("fabric", "kind", value="roce"),
    ],
)
def test_a_bound_of_the_model_is_computed_again_by_another_spec(edited: Any, edit: Edit) -> None:
    first, _ = edited(lambda page: None)
    spec, path = edited(edit)
    found, undecided = rejudge_certificate(night(swept(first)), spec, path)
    [again] = criterion(found).cases[0].measurements
    assert undecided == ()
    assert limit_of(again) == pytest.approx(limit_of(swept(spec)))
    line = CollectiveModel(Platform.of(spec), "all_reduce", 4, 1, "gloo").line.gbytes_s
    assert again.headline is not None
    assert again.headline.of == pytest.approx(line)
    # What was judged again can be judged once more.
    back, _ = rejudge_certificate(found, *edited(lambda page: None))
    assert limit_of(criterion(back).cases[0].measurements[0]) == pytest.approx(
        limit_of(swept(first))
    )


@pytest.mark.parametrize(
    ("edit", "of"),
    [
        (lambda page: page["fabric"].update(line_rate="400 Mbit/s"), 0.05),
        (
            lambda page: page["criteria"]["fabric"]["all_reduce_busbw"].update(
                at_least_fraction=0.5
            ),
            0.025,
        ),
    ],
)
def test_the_line_of_a_headline_follows_the_cluster(edited: Any, edit: Edit, of: float) -> None:
    fast = replace(busbw(0.024), headline=HeadlineMark("all-reduce", of=0.025, whole="the line"))
    found, _ = rejudge_certificate(night(fast), *edited(edit))
    [again] = criterion(found).cases[0].measurements
    assert again.headline == HeadlineMark("all-reduce", of=of, whole="the line")


def test_a_bound_of_zero_may_become_larger(edited: Any) -> None:
    """Of two nodes with errors perhaps only one has more than are allowed now."""
    bound, both = at_most(0).of("fabric.errors_at_most", 0), Culprit("a, b", [*"ab"])
    errors = Measurement("errors", 2, "", bound, "fabric.errors_at_most 0", both)
    for allowed, verdict in ((3, "pass"), (1, "fail")):
        other = edited(at("fabric", "errors_at_most", value=allowed))
        found, undecided = rejudge_certificate(night(errors, promise="fabric"), *other)
        assert criterion(found).verdict == verdict
        assert undecided == ()
    culprit = criterion(found).cases[0].measurements[0].culprit
    assert culprit is not None
    assert not culprit.nodes
    assert culprit.either == {frozenset(n) for n in "ab"}


def test_others_than_those_who_broke_a_bound_may_break_a_stricter_one(edited: Any) -> None:
    first = replace(busbw(0.01), culprit=Culprit("node2", "node2"))
    found, _ = rejudge_certificate(night(first), *edited(at(*FRACTION, value=0.9)))
    [again] = criterion(found).cases[0].measurements
    assert again.culprit is not None
    assert again.culprit.nodes == {"node2"}
    assert again.culprit.either == {frozenset[str]()}


def test_a_test_that_only_asserts_is_not_passed_with_another_value(edited: Any) -> None:
    recorded = Measurement("skew", 0.02, "s")
    certificate = night(recorded, name="preflight", promise="preflight.clocks")
    other = edited(at("criteria", "preflight", "clocks", "skew", value="1 ms"))
    found, undecided = rejudge_certificate(certificate, *other)
    assert criterion(found, "preflight").verdict == "inconclusive"
    assert undecided == (
        "preflight: cannot be judged again: its test records no bound, and passed with another "
        "criteria.preflight.clocks.skew",
    )
    found, undecided = rejudge_certificate(certificate, *edited(at(*FRACTION, value=0.5)))
    assert undecided == ()
    assert (
        criterion(found, "preflight").reason == "preflight inconclusive (its tests judged no value)"
    )


def test_a_criterion_that_was_skipped_as_a_whole_stays_not_promised(edited: Any) -> None:
    """A run excuses a criterion of a user's own that no spec mentions and that only skips."""
    own = CaseResult("t/test_own.py::test_it", "?", "skipped", "no GPU")
    measured = night(busbw(0.03))
    cases = [*measured.criteria[0].cases, own]
    why = {"own": "not promised by the spec"}
    excused = certify(*cases, promised=["fabric"], not_promised=why, spec=measured.run.spec)
    found, undecided = rejudge_certificate(excused, *edited(lambda page: None))
    assert criterion(found, "own").verdict == "not promised"
    assert undecided == ()


NOISY = Detection("less", 0.4, 5, blur=0.5, tolerated=0.1)


@pytest.mark.parametrize(
    ("measured", "fraction"),
    [(replace(busbw(0.02), value=None), 0.9), (replace(busbw(0.024), detection=NOISY), 0.5)],
)
def test_what_was_not_measured_stays_inconclusive_and_is_not_listed(
    edited: Any, measured: Measurement, fraction: float
) -> None:
    found, undecided = rejudge_certificate(night(measured), *edited(at(*FRACTION, value=fraction)))
    assert criterion(found).verdict == "inconclusive"
    assert undecided == ()


def test_unmeasured_promises_of_the_other_spec_did_not_run(edited: Any) -> None:
    found, _ = rejudge_certificate(night(busbw(0.03)), *edited(lambda page: None))
    assert criterion(found, "mesh").verdict == "did not run"
    assert found.verdict == "incomplete"


def test_a_test_that_failed_by_itself_stays_failed(edited: Any) -> None:
    certificate = night(busbw(0.03))
    case = certificate.criteria[0].cases[0]
    failed = replace(case, outcome="failed", message=str(busbw(0.03)), by_bounds=False)
    again = certify(failed, promised=["fabric"], spec=certificate.run.spec)
    found, _ = rejudge_certificate(again, *edited(at(*FRACTION, value=0.1)))
    assert criterion(found).verdict == "fail"


def test_the_confirmation_of_the_new_spec_counts(tmp_path: Path) -> None:
    certificate, spec = night(busbw(0.022)), profile_spec("rack")
    draft = spec.model_copy(update={"confirmed": False})
    found, _ = rejudge_certificate(certificate, draft, tmp_path / "draft.yaml")
    assert found.run.cut_short == ("confirmed: false in draft.yaml",)
    again, _ = rejudge_certificate(found, spec, tmp_path / "cluster.yaml")
    assert again.run.cut_short == ()


def test_a_skipped_test_that_is_now_promised_does_not_pass(edited: Any) -> None:
    """Another case of the criterion was measured; this one was skipped as not promised."""
    before, path = edited(lambda page: page["criteria"]["fabric"].pop("all_to_all_busbw"))
    key = "fabric.all_to_all_busbw"
    left = CaseResult("t/test_fabric.py::test_it[a]", "?", "not promised", "why", lacks=key)
    measured = night(busbw(0.024))
    cases = [*measured.criteria[0].cases, left]
    again = certify(*cases, promised=["fabric"], spec=facts_of(before, path))
    assert again.criteria[0].verdict == "pass"
    found, undecided = rejudge_certificate(again, *edited(lambda page: None))
    assert criterion(found).verdict == "inconclusive"
    assert undecided[0].endswith(f"{key} was not promised, and not measured")
    same, _ = rejudge_certificate(again, before, path)
    assert criterion(same).verdict == "pass"


THP = "mode of transparent huge pages"


@pytest.mark.parametrize(
    ("promise", "modes", "verdicts"),
    [
        ("same", "aaab", "pass pass pass fail"),
        ("madvise", "aaab", "fail fail fail pass"),
        ("madvise", "bbbb", "pass pass pass pass"),
        ("madvise", "bb?-", "pass pass inconclusive inconclusive"),
    ],
)
def test_rows_of_checks_are_judged_by_their_rules(
    edited: Any, promise: str, modes: str, verdicts: str
) -> None:
    """Whatever they were judged by before, and whatever another key says."""
    before, path = edited(at("criteria", "preflight", "huge_pages", value="always"))
    nodes = tuple(f"node{n}" for n in range(4))
    letters = {"a": "always", "b": "madvise"}
    rows_of_mode: dict[str, tuple[Row, ...]] = {"?": (), "-": ()}
    survey = healthy(4)
    for index, mode in enumerate(modes):
        rows = rows_of_mode.get(mode, (row(THP, letters.get(mode)),))
        read = CheckRows("test_huge_pages_are_alike", rows, "gone" if mode == "?" else "")
        survey = with_facts(with_node(survey, index, name=nodes[index]), index, read=(read,))
    kept = Measurement("of before", 1, "", equals(0), "a bound without terms", Culprit("?"))
    cases = [
        CaseResult(
            f"t/test_preflight.py::test_huge_pages_are_alike[{name}]",
            "?",
            "failed",
            measurements=(kept,),
            nodes=(name,),
            promises=("preflight.huge_pages",),
            by_bounds=True,
        )
        for name in nodes
    ]
    run = certify(*cases, promised=["preflight"], spec=facts_of(before, path))

    def edit(page: dict[str, Any]) -> None:
        at("criteria", "preflight", "huge_pages", value=promise)(page)
        at("fabric", "mtu", value=9000)(page)

    other, where = edited(edit)
    found, undecided = rejudge_certificate(run, other, where, kept_as(survey))
    again = criterion(found, "preflight").cases
    assert [case.verdict.value for case in again] == verdicts.split()
    blamed = [m.culprit.nodes for case in again for m in case.measurements if m.culprit]
    assert blamed == [{n} for n, v in zip(nodes, verdicts.split(), strict=True) if v == "fail"]
    assert undecided == ()
    without, _ = rejudge_certificate(run, other, where)
    assert criterion(without, "preflight").verdict == "inconclusive"


@pytest.mark.parametrize(
    ("promise", "verdict"),
    [
        ({"corrected_at_most": 1}, "fail"),
        ({"corrected_at_most": 2}, "pass"),
        ({"corrected_at_most": 1, "since": "boot"}, "inconclusive"),
    ],
)
def test_rows_of_a_survey_are_judged_unless_another_key_decides_what_is_read(
    edited: Any, promise: dict[str, Any], verdict: str
) -> None:
    event = Event(Severity.CORRECTED, "[5.1]", "0000:18:00.0", "PCIe AER Corrected")
    survey = with_facts(healthy(2), 1, kernel_log=Log((event, event)))
    before, path = edited(at("criteria", "preflight", "kernel_log", value={}))
    [made] = promised_checks(before, [KernelLogHasNoFailures])
    test, found = f"t/test_preflight.py::{made.case()}[gpu1]", tuple(made.judge(survey, "gpu1"))
    case = CaseResult(
        test, "?", "passed", measurements=found, nodes=("gpu1",), promises=(made.key,)
    )
    run = certify(case, promised=["preflight"], spec=facts_of(before, path))
    run = replace(run, run=replace(run.run, nodes=survey.names))
    other, where = edited(at("criteria", "preflight", "kernel_log", value=promise))
    found_again, _ = rejudge_certificate(run, other, where, kept_as(survey))
    [again] = criterion(found_again, "preflight").cases
    assert again.verdict == verdict
    blamed = [m.culprit for m in again.measurements if m.verdict == "fail"]
    assert blamed == ["gpu1 0000:18:00.0"] * (verdict == "fail")


@pytest.mark.parametrize(
    ("promise", "most", "verdict"),
    [({}, 128, "fail"), ({}, 3, "pass"), ({"within": "7 s"}, 128, "inconclusive")],
)
def test_paths_are_judged_by_rules_while_they_are_kept_and_read_alike(
    edited: Any,
    monkeypatch: pytest.MonkeyPatch,
    promise: dict[str, Any],
    most: int,
    verdict: str,
) -> None:
    """Else by the bounds, which here say that all is well, and have no terms."""
    monkeypatch.setattr(answers, "MOST_WITH_PATHS", most)
    survey = healthy(4)
    for index, node in enumerate(survey.nodes):
        assert node.paths is not None
        cut = tuple(
            replace(one, took_s=None, problem="no answer") if 1 in (index, one.to) else one
            for one in node.paths.connections
        )
        survey = with_node(survey, index, paths=replace(node.paths, connections=cut))
    before, path = edited(at("criteria", "preflight", "reachable", value={}))
    [made] = promised_checks(before, [EveryNodeIsReached])
    test, well = f"t/test_preflight.py::{made.case()}[gpu1]", made.judge(healthy(4), "gpu1")
    promises = (made.key,)
    case = CaseResult(test, "?", "passed", "", None, tuple(well), ("gpu1",), promises=promises)
    run = certify(case, promised=["preflight"], spec=facts_of(before, path))
    run = replace(run, run=replace(run.run, nodes=survey.names))
    other, where = edited(at("criteria", "preflight", "reachable", value=promise))
    found, _ = rejudge_certificate(run, other, where, kept_as(survey))
    [again] = criterion(found, "preflight").cases
    assert again.verdict == verdict


def test_a_test_that_was_stopped_or_failed_by_itself_is_not_judged_by_rows(edited: Any) -> None:
    page = at("criteria", "preflight", "huge_pages", value="always")
    read = CheckRows("test_huge_pages_are_alike", (row(THP, "always"),))
    kept = kept_as(with_facts(with_node(healthy(1), 0, name="node0"), 0, read=(read,)))
    case = CaseResult("t/test_preflight.py::test_huge_pages_are_alike[node0]", "?", "failed",
                      "assert 1 == 2", nodes=("node0",))  # fmt: skip
    for one in (case, replace(case, outcome="error", stopped_by="failure")):
        spec, path = edited(page)
        run = certify(one, promised=["preflight"], spec=facts_of(spec, path))
        found, _ = rejudge_certificate(run, spec, path, kept)
        assert criterion(found, "preflight").verdict == one.verdict.value != "pass"


def test_a_bound_beside_recorded_values_is_judged_again(edited: Any) -> None:
    recorded = Measurement("skew", 0.02, "s")
    clocks = {"name": "preflight", "promise": "preflight.clocks"}
    judged = replace(recorded, name="other skew", expected=at_most(0.05), source="x")
    certificate = night(recorded, judged, **clocks)
    other = edited(at("criteria", "preflight", "clocks", "skew", value="1 ms"))
    undecided = rejudge_certificate(certificate, *other)[1]
    assert not any("records no bound" in line for line in undecided)


def rates(*values: float, load: Load | None = None) -> Comparison:
    """Of ranks on nodes of their own, each measured three times."""
    rows = tuple(
        RankRate(named_rank(f"node{i}", i), value, "cold" * (i == 1), 9.0, load, (value,) * 3)
        for i, value in enumerate(values)
    )
    promise = MatmulPromise(at_least_fraction=0.7, dtypes=("float32",))
    return Comparison("matmul float32", "GFLOP/s", promise, None, rows, "median of 3", True)


NUMA = Culprit.device("NUMA node 1 of node0", "node0", "NUMA node 1")
GPU = Load(9, (("HwSlowdown", 2),), 1700.0, 2 / 9, None, 5)


@pytest.mark.parametrize(
    "compared",
    [
        rates(100, 60, 98, 99),
        rates(100, 60, load=GPU),
        replace(rates(3), of="NUMA node", rows=(RankRate(NUMA, 3.0, "", repeats=(2.0, 3.0, 4.0)),)),
        replace(rates(3), of="node", rows=(RankRate(Culprit("a", "a"), None, "out of memory"),)),
    ],
)
def test_a_comparison_is_the_same_from_its_rows(compared: Comparison) -> None:
    plain = json.loads(json.dumps([asdict(one) for one in compared.to_rows()]))
    rows = [Row(**one) for one in plain]
    again = Comparison.from_rows(
        compared.name, rows, compared.promise, compared.floor, compared.false_alarm
    )
    assert again == compared
    assert [Culprit.of(one.name).record for one in again.rows] == [
        Culprit.of(one.name).record for one in compared.rows
    ]


def judged_again(
    check: WorldCheck,
    found: Sequence[Any],
    edit: tuple[Spec, Path],
    *asked: str,
    damage: Callable[[list[Row]], Sequence[Row]] = list,
) -> tuple[str, str]:
    """The verdict by another spec on what ranks measured, and what is said of it."""
    criterion, spec = check.key.partition(".")[0], load_spec(default_spec_path())
    measured = tuple(one for made in found for one in check.rule(made))
    test, promises = f"acceptance/test_{criterion}.py::{check.case()}", (check.key, *asked)
    rows = [row for made in found for row in check.to_rows(made)]
    nodes = tuple(sorted({one.node for one in rows} - {""}))
    case = CaseResult(test, "?", "passed", "", None, measured, nodes, promises=promises)
    run = certify(case, promised=[criterion])
    run = replace(run, run=replace(run.run, spec=facts_of(spec, default_spec_path())))
    plain = [Row(**json.loads(json.dumps(asdict(one)))) for one in damage(rows)]
    again, undecided = rejudge_certificate(run, *edit, Kept({test: plain}))
    [one] = [one for one in again.criteria if one.name == criterion]
    shown = [*undecided, *(m.culprit or "" for c in one.cases for m in c.measurements)]
    return one.verdict, "; ".join(shown)


@pytest.mark.parametrize(
    ("keys", "verdict", "words"),
    [
        ({"at_least_fraction": 0.8}, "fail", "rank 1 on node1 (75 GFLOP/s, median 99): cold"),
        ({"at_least_fraction": 0.6}, "pass", ""),
        ({"at_least_tflops": {"float32": 0.08}}, "fail", "rank 1 on node1 (75 GFLOP/s)"),
        ({"repeats": 9, "at_least_fraction": 0.8}, "inconclusive", "criteria.devices.matmul.rep"),
    ],
)
def test_rates_of_ranks_are_compared_anew_unless_they_were_measured_otherwise(
    edited: Any, keys: dict[str, Any], verdict: str, words: str
) -> None:
    """Of four ranks, rank 1 reached 0.75 of the others."""
    spec = load_spec(default_spec_path())
    check = EveryRankMultipliesAsFastAsTheOthers(spec.criteria.devices.matmul, spec)  # type: ignore[union-attr]
    counts: dict[str, int | None] = {named_rank(f"node{i}", i): 0 for i in range(4)}
    found: list[Wrong | Comparison] = [("float32", 512, counts), rates(100, 75, 98, 99)]
    edit = edited(lambda page: page["criteria"]["devices"]["matmul"].update(keys))
    again, shown = judged_again(check, found, edit)
    assert again == verdict
    assert words in shown


@pytest.mark.parametrize("gone", ["matmul float32, how", "matmul float32"])
def test_a_comparison_that_is_gone_does_not_pass(edited: Any, gone: str) -> None:
    """Its wrong rows alone would."""
    spec = load_spec(default_spec_path())
    check = EveryRankMultipliesAsFastAsTheOthers(spec.criteria.devices.matmul, spec)  # type: ignore[union-attr]
    counts: dict[str, int | None] = {named_rank(f"node{i}", i): 0 for i in range(4)}
    found: list[Wrong | Comparison] = [("float32", 512, counts), rates(100, 97, 98, 99)]
    edit = edited(lambda page: None)

    def damage(rows: list[Row]) -> list[Row]:
        return [one for one in rows if not one.metric.startswith(gone)]

    assert judged_again(check, found, edit)[0] == "pass"
    again, shown = judged_again(check, found, edit, damage=damage)
    assert again == "inconclusive"
    assert "0 of 1 comparisons" in shown


@pytest.mark.parametrize(
    ("kind", "keys", "verdict", "words"),
    [
        (MEMORY, {"memory_near_fraction": 0.7}, "pass", ""),
        (
            MEMORY,
            {"memory_near_fraction": 0.8},
            "fail",
            "rank 1 on node0: memory binding",
        ),
        (MEMORY, {"near": {"distance": 32}}, "pass", ""),
        (COPIES, {"copy_near_over_far": 1.7}, "fail", "rank 1 on node0"),
        (COPIES, {"copy_near_over_far": 1.1}, "pass", ""),
        (COPIES, {"copy_repeats": 9}, "inconclusive", "another criteria.numa.copy_repeats"),
        (MEMORY, {"line_rate": "100 Mbit/s"}, "inconclusive", "another fabric.line_rate"),
    ],
)
def test_placement_is_judged_anew(  # noqa: PLR0917  one table
    tmp_path: Path, edited: Any, kind: Any, keys: dict[str, Any], verdict: str, words: str
) -> None:
    """Rank 1 has 70 % of its memory on its socket, and copies of it are 1.5 times as fast."""
    memory: list[dict[int, int]] = [{0: 10}, {0: 7, 1: 3}]
    ranks = [placed("0-3", gpu_address(0), memory_bytes=held) for held in memory]
    spec = load_spec(default_spec_path())
    check = kind(spec.value_of(kind.key), spec)
    found = [*copied(0, "node0", 20.0, 10.0), *copied(1, "node0", 15.0, 10.0)]
    if kind is MEMORY:
        found = rows_of(check, read(gpu_server(tmp_path).root), *ranks)
    of_fabric = "line_rate" in keys
    edit = edited(
        lambda page: (page["fabric"] if of_fabric else page["criteria"]["numa"]).update(keys)
    )
    again, shown = judged_again(check, [found], edit, "numa.near", "numa.copy_repeats")
    assert again == verdict
    assert words in shown


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows, ""),
        (lambda rows: [one for one in rows if one.rank != 1], "not have the rows of all its ranks"),
        (lambda rows: [one for one in rows if one.node != "node1"], "rows of all its ranks"),
        (lambda rows: [one for one in rows if one.rank in (0, 2)], "rows of all its ranks"),
        (lambda rows: [replace(r, value=3 if r.metric == "CPUs" else r.value) for r in rows],
         "its rows in evidence.jsonl.gz: AttributeError"),
        (lambda rows: [r for r in rows if "memory of NUMA node" not in r.metric], "KeyError: '0'"),
    ],
)  # fmt: skip
def test_damaged_rows_of_ranks_certify_nothing(
    tmp_path: Path, edited: Any, damage: Callable[[list[Row]], Sequence[Row]], words: str
) -> None:
    spec = load_spec(default_spec_path())
    check = RanksRunBesideTheirAccelerator("near", spec)
    server, at = read(gpu_server(tmp_path).root), placed("0-3", gpu_address(0))
    both = [rows_of(check, server, at, at), rows_of(check, server, at, at)]
    found = [
        replace(r, node=f"node{n}", rank=2 * n + (r.rank or 0)) for n in (0, 1) for r in both[n]
    ]
    edit = edited(lambda page: page["criteria"]["numa"].update(near="node"))
    again, shown = judged_again(check, [found], edit, "numa.near", damage=damage)
    assert again == ("inconclusive" if words else "pass")
    assert words in shown


@pytest.mark.parametrize(
    ("fabric", "lacks", "verdict", "words"),
    [
        ({}, "", "fail", "node2 fab0 rx_errors +3"),
        ({"errors_at_most": 3}, "", "pass", ""),
        ({"errors_at_most": 2}, "", "fail", "node2 fab0 rx_errors +3"),
        ({"errors_at_most": 3}, "node1", "inconclusive", "does not have the rows of all nodes"),
        ({"interfaces": ["eth*"]}, "", "inconclusive", "measured with another fabric.interfaces"),
    ],
)
def test_counters_of_ports_are_judged_anew(
    edited: Any, fabric: dict[str, Any], lacks: str, verdict: str, words: str
) -> None:
    spec = load_spec(default_spec_path())
    nodes = ("node1", "node2")
    counted: dict[str, Counters] = {"fab0": {"carrier_changes": 1, "rx_errors": 0, "rx_packets": 9}}
    broken: dict[str, Counters] = {"fab0": {**counted["fab0"], "rx_errors": 3}}
    before = {node: PortReading("a", counted, 7.0) for node in nodes}
    after = {**before, "node2": PortReading("a", broken, 7.0)}
    rows = [*rises(before, after, spec.fabric.interfaces)]
    test = f"acceptance/test_mesh.py::{ports.TEST}"
    found = ports.judged(rows, spec)
    run = certify(CaseResult(test, "?", "passed", "", None, tuple(found)), promised=["mesh"])
    facts = replace(run.run, spec=facts_of(spec, default_spec_path()), nodes=nodes)
    kept = Kept({test: [one for one in rows if one.node != lacks or not lacks]})
    other, path = edited(lambda page: page["fabric"].update(fabric))
    again, undecided = rejudge_certificate(replace(run, run=facts), other, path, kept)
    [one] = [one for one in again.criteria if one.name == "mesh"]
    assert one.verdict == verdict
    shown = [*undecided, *(m.culprit or "" for c in one.cases for m in c.measurements)]
    assert words in "; ".join(shown)


@pytest.mark.parametrize(
    ("most", "verdict", "culprit"), [(0.01, "fail", "node2 loses"), (0.5, "pass", "")]
)
def test_paths_count_while_tcp_lost_more_than_the_spec_allows(
    edited: Any, most: float, verdict: str, culprit: str
) -> None:
    spec, nodes = load_spec(default_spec_path()), ("node1", "node2")
    counted: dict[str, Counters] = {"fab0": {"rx_errors": 0}, TCP: {"OutSegs": 0, "RetransSegs": 0}}
    lost: dict[str, Counters] = {**counted, TCP: {"OutSegs": 20_000, "RetransSegs": 2_000}}
    before = dict.fromkeys(nodes, PortReading("a", counted, 7.0))
    after = {**before, "node2": PortReading("a", lost, 7.0)}
    rows = [*rises(before, after, spec.fabric.interfaces)]
    paths = Measurement(LOSSY_PATHS, 1, "", equals(0), "", Culprit("node2 loses", "node2"))
    found = located(ports.judged(rows, spec), [paths])
    test = f"acceptance/test_mesh.py::{ports.TEST}"
    run = certify(CaseResult(test, "?", "passed", "", None, tuple(found)), promised=["mesh"])
    facts = replace(run.run, spec=facts_of(spec, default_spec_path()), nodes=nodes)
    other, path = edited(lambda page: page["fabric"].update(lost_at_most_fraction=most))
    again, _ = rejudge_certificate(replace(run, run=facts), other, path, Kept({test: rows}))
    [one] = [one for one in again.criteria if one.name == "mesh"]
    assert (one.verdict, "; ".join(one.culprits)) == (verdict, culprit)
