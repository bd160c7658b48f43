"""Records of tests as the evidence keeps them: nothing of a case is lost, and they are small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence import record_of
from pytest_mnode.certificate import CaseResult, Certificate
from pytest_mnode.certificate.gathered import CaseRecord, Gathered, certificate_from
from pytest_mnode.certificate.run_facts import Manifest
from pytest_mnode.evidence import file
from pytest_mnode.evidence.file import EvidenceFile
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.large import composed

NODES, LARGE = 32, 1024


def cases_of(certificate: Certificate) -> dict[str, CaseRecord]:
    every = (case for criterion in certificate.criteria for case in criterion.cases)
    return {case.test: record_of(case) for case in every}


def test_the_evidence_of_a_thousand_nodes_stays_below_100_mb(tmp_path: Path) -> None:
    """A night of the virtual cluster, and its paths all measured at 1,024 nodes."""
    few, many = (evidence.write(tmp_path / str(nodes), nodes) for nodes in (8, 24))
    per_node = (many.total() - few.total()) / 16
    of_paths = LARGE**2 * len("p 391000 ")
    assert {"nodes", "environments", "ranks", "tests"} <= many.keys(), "each kind of row is there"
    assert 2_000 < per_node < 30_000, "read, and with room for the rest"
    assert LARGE * per_node + of_paths < 100e6
    found = certificate_from(tmp_path / "24")
    assert len(found.certificate.run.nodes) == 24
    assert not found.torn_bytes


def test_a_record_is_read_back_as_the_same_case(tmp_path: Path) -> None:
    certificate = composed(NODES, questions=3)
    promised = tuple(c.name for c in certificate.criteria if c.promised)
    gathered = Gathered(certificate.run, promised, {"gang": "no scheduler"}, cases_of(certificate))
    evidence = EvidenceFile(tmp_path)
    for test, record in gathered.cases.items():
        evidence.append(file.TEST, {"test": test, "record": record.to_json()})
    evidence.append(file.END, gathered.run_to_json())
    evidence.close()
    found = certificate_from(tmp_path)
    assert found.ended
    assert found.certificate == gathered.certificate()
    assert found.certificate == _as_recorded(certificate)
    evidence.path.write_bytes(evidence.path.read_bytes()[:-1])
    assert not certificate_from(tmp_path).ended


def _as_recorded(certificate: Certificate) -> Certificate:
    """With what the records have besides: durations, and that only bounds failed the test."""

    def recorded(case: CaseResult) -> CaseResult:
        return replace(case, duration_s=0.0123456789, by_bounds=case.outcome == "failed")

    criteria = (replace(c, cases=tuple(map(recorded, c.cases))) for c in certificate.criteria)
    return replace(certificate, criteria=tuple(criteria))


PASSED = CaseResult("acceptance/test_mesh.py::test_it", "?", "passed", measurements=(RIGHT,))
GONE = ("acceptance/test_mesh.py::test_sum", "acceptance/test_mesh.py::test_rank[4]")


@pytest.mark.parametrize(
    ("manifest", "cut_short", "reasons"),
    [
        (Manifest(1), (), []),
        (Manifest(3, deselected=GONE), (), ["2 tests deselected: NAMES"]),
        (
            Manifest(3, removed=GONE),
            (),
            ["2 tests removed by a plugin or conftest.py, without announcing it: NAMES"],
        ),
        (Manifest(3, not_run=GONE), (), ["2 tests not run (a plugin?): NAMES"]),
        (Manifest(3, not_run=GONE), ("-x",), ["cut short by -x"]),  # which explains them
        (
            Manifest(3, repeated=GONE[:1]),
            (),
            ["1 test run more than once, by no plugin that reports reruns: test_mesh.py::test_sum"],
        ),
        (
            Manifest(9, GONE[:1], GONE[1:]),
            ("-x",),
            [
                "cut short by -x",
                "1 test deselected: test_mesh.py::test_sum",
                "1 test removed by a plugin or conftest.py, without announcing it: "
                "test_mesh.py::test_rank[4]",
            ],
        ),
    ],
)
def test_no_test_is_missing_without_a_reason(
    manifest: Manifest, cut_short: tuple[str, ...], reasons: list[str]
) -> None:
    found = certify(PASSED, promised=["mesh"], manifest=manifest, cut_short=cut_short)
    names = "test_mesh.py::test_sum, test_mesh.py::test_rank[4]"
    assert list(found.reasons) == [reason.replace("NAMES", names) for reason in reasons]
    assert found.verdict == ("incomplete" if reasons else "certified")
    assert found.coverage.nodes_by_state.passed == (0 if reasons else 4)


def test_all_are_kept_and_the_first_are_named() -> None:
    many = tuple(f"t/test_mesh.py::test_it[{number}]" for number in range(99))
    found = certify(PASSED, promised=["mesh"], manifest=Manifest(100, removed=many))
    assert found.run.manifest.removed == many
    assert found.reasons[0].endswith("test_mesh.py::test_it[3], and 95 more")
