"""The same measurements judged by another spec: bounds follow their keys, others are listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate import CaseResult, Certificate, CriterionResult
from pytest_mnode.certificate.files import json_text, parse_certificate
from pytest_mnode.certificate.rejudge import rejudge_certificate
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection
from pytest_mnode.evidence.row import row
from pytest_mnode.evidence.rules import Unread, to_evidence
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most, equals
from pytest_mnode.spec import Spec, default_spec_path, load_spec, profile_spec
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from tests.certificate.conftest import certify

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
    errors = Measurement(
        "errors",
        2,
        "",
        at_most(0).of("fabric.errors_at_most", 0),
        "fabric.errors_at_most 0",
        Culprit("node1"),
    )
    for allowed, verdict in ((3, "pass"), (1, "fail")):
        other = edited(at("fabric", "errors_at_most", value=allowed))
        found, undecided = rejudge_certificate(night(errors, promise="fabric"), *other)
        assert criterion(found).verdict == verdict
        assert undecided == ()


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
    rows_of_mode = {"?": Unread("gone"), "-": []}
    by_node: dict[str, Any] = {
        name: rows_of_mode.get(mode, [row(THP, letters.get(mode), node=name)])
        for name, mode in zip(nodes, modes, strict=True)
    }
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

    rows = {"test_huge_pages_are_alike": list(to_evidence(by_node))}
    other, where = edited(edit)
    found, undecided = rejudge_certificate(run, other, where, rows)
    again = criterion(found, "preflight").cases
    assert [case.verdict.value for case in again] == verdicts.split()
    blamed = [m.culprit.nodes for case in again for m in case.measurements if m.culprit]
    assert blamed == [{n} for n, v in zip(nodes, verdicts.split(), strict=True) if v == "fail"]
    assert undecided == ()
    without, _ = rejudge_certificate(run, other, where)
    assert criterion(without, "preflight").verdict == "inconclusive"


def test_a_test_that_was_stopped_or_failed_by_itself_is_not_judged_by_rows(edited: Any) -> None:
    page = at("criteria", "preflight", "huge_pages", value="always")
    rows = {"test_huge_pages_are_alike": [row(THP, "always", node="node0")]}
    case = CaseResult("t/test_preflight.py::test_huge_pages_are_alike[node0]", "?", "failed",
                      "assert 1 == 2", nodes=("node0",))  # fmt: skip
    for one in (case, replace(case, outcome="error", stopped_by="failure")):
        spec, path = edited(page)
        run = certify(one, promised=["preflight"], spec=facts_of(spec, path))
        found, _ = rejudge_certificate(run, spec, path, rows)
        assert criterion(found, "preflight").verdict == one.verdict.value != "pass"


def test_a_bound_beside_recorded_values_is_judged_again(edited: Any) -> None:
    recorded = Measurement("skew", 0.02, "s")
    clocks = {"name": "preflight", "promise": "preflight.clocks"}
    judged = replace(recorded, name="other skew", expected=at_most(0.05), source="x")
    certificate = night(recorded, judged, **clocks)
    other = edited(at("criteria", "preflight", "clocks", "skew", value="1 ms"))
    undecided = rejudge_certificate(certificate, *other)[1]
    assert not any("records no bound" in line for line in undecided)
