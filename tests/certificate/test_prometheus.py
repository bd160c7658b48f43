"""The metrics of a certificate, read by prometheus_client's own parser."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_mnode.certificate import CaseResult, Certificate
from pytest_mnode.certificate.prometheus import prometheus_text
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import FACTS, RIGHT, certify

GOOD = CaseResult("t/test_mesh.py::test_it", "?", "passed", measurements=(RIGHT,))
Samples = dict[tuple[str, ...], float]


def samples(certificate: Certificate) -> Samples:
    """Values by name and labels, those of `spec` aside."""
    return {
        (one.name, *(v for k, v in sorted(one.labels.items()) if k != "spec")): one.value
        for family in text_string_to_metric_families(prometheus_text(certificate))
        for one in family.samples
    }


@pytest.fixture
def found() -> Samples:
    slow = Measurement(
        "busbw", 48, "Mbit/s", at_least(170), "spec", Culprit("node2"), where='rank "0"\n'
    )
    unknown = Measurement("busbw", None, "Mbit/s", at_least(170), note="no counter")
    case = CaseResult("t/test_fabric.py::test_it", "?", "failed", measurements=(slow, unknown))
    return samples(certify(case, GOOD, promised=["fabric", "mesh"], cluster_nodes=16))


def test_verdict_measurement_and_expiry_are_exported(found: Samples) -> None:
    assert found["mnode_certificate_verdict", "not certified"] == 1
    assert found["mnode_certificate_verdict", "certified"] == 0
    assert found["mnode_criterion_verdict", "fabric", "fail"] == 1
    assert found["mnode_criterion_verdict", "mesh", "pass"] == 1
    assert found["mnode_nodes", "not tested"] == 12
    measured = ("fabric", "busbw", "0", "test_it", "Mbit/s", 'rank "0"\n')
    assert found["mnode_measurement", *measured] == 48
    assert found["mnode_measurement_margin", *measured] == -122


def test_each_node_has_its_state_and_expiry() -> None:
    passed = certify(GOOD, promised=["mesh"])
    found = samples(passed)
    assert found["mnode_node_state", "node3", "passed"] == 1
    assert found["mnode_node_state", "node3", "failed"] == 0
    end = passed.run.end.timestamp()
    assert found["mnode_node_expiry_timestamp_seconds", "node3"] == end + 7 * 86400
    assert found["mnode_certificate_expiry_timestamp_seconds",] == end + 7 * 86400


def test_no_sample_is_written_twice_and_any_text_is() -> None:
    """A collector refuses a file with two samples of the same labels."""
    rate = Measurement("rate \udcff", 1, "MB/s")
    files = [f"{folder}/test_mesh.py::test_it" for folder in "ab"]
    cases = [CaseResult(test, "?", "passed", measurements=(rate, rate)) for test in files]
    measured = [key for key in samples(certify(*cases)) if key[0] == "mnode_measurement"]
    assert [key[2:4] for key in measured] == [("rate \\udcff", str(n)) for n in range(4)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_count_as_unmeasured(value: float) -> None:
    one = Measurement("busbw", value, "Mbit/s")
    case = CaseResult("t/test_fabric.py::test_it", "?", "passed", measurements=(one,))
    assert not [key for key in samples(certify(case)) if key[0] == "mnode_measurement"]


def test_unknown_values_have_no_sample(found: Samples) -> None:
    names = [key for key in found if key[0] == "mnode_measurement"]
    assert len(names) == 2
    assert not [key for key in found if key[0] == "mnode_certificate_expiry_timestamp_seconds"]


def test_no_spec_silences_the_alert_of_another() -> None:
    """`end unless expiry > …` matches labels: each has `spec`, and an end whatever its verdict."""
    bad = CaseResult("t/test_mesh.py::test_it", "?", "failed")
    found: dict[str, set[str]] = {}
    for name, case in (("h100", bad), ("rack", GOOD)):
        one = certify(case, promised=["mesh"], spec=replace(FACTS.spec, name=name))
        for family in text_string_to_metric_families(prometheus_text(one)):
            for sample in family.samples:
                found.setdefault(sample.name, set()).add(sample.labels["spec"])
    assert found["mnode_certificate_end_timestamp_seconds"] == {"h100", "rack"}
    assert found["mnode_certificate_expiry_timestamp_seconds"] == {"rack"}
