"""A certificate holds for every test of its suite: a missing one is named, and no node passes."""

from __future__ import annotations

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.run_facts import Manifest
from tests.certificate.conftest import RIGHT, certify

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
