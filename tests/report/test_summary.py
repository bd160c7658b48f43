"""One line a criterion, aligned, and the line that says what it amounts to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mnode.report import CaseResult, Certificate, print_summary, summary_lines
from pytest_mnode.verdict import Measurement, at_least

Certify = Callable[..., Certificate]

FAST = Measurement("busbw", 180, "Mbit/s", at_least(170), "spec", "node1")
SLOW = Measurement("busbw", 48, "Mbit/s", at_least(170), "spec", "node2")
UNKNOWN = Measurement("busbw", None, "Mbit/s", at_least(170), note="no counter")


def case(name: str, outcome: Any = "passed", *measurements: Measurement, **more: Any) -> CaseResult:
    test = f"acceptance/test_{name}.py::test_it"
    return CaseResult(test, f"Is {name} well?", outcome, measurements=measurements, **more)


def test_every_criterion_has_its_line(certify: Certify) -> None:
    certificate = certify(
        case("mesh"),
        case("fabric", "failed", FAST, SLOW),
        case("clock", "passed", UNKNOWN),
        case("storage"),
        case("storage"),
        case("numa", "failed", message="assert 3 == 4\nmore", culprit="rank 2"),
        case("gpu", "skipped"),
        promised=["mesh", "fabric", "clock", "storage", "numa", "gpu", "restart"],
        not_promised={"gang": "no scheduler"},
        doubts=("above the wire",),
    )
    assert "\n".join(summary_lines(certificate)) == """\
criterion  measured                        expected          verdict       culprit
mesh       passed                          Is mesh well?     pass
fabric     48 Mbit/s busbw                 ≥ 170 ± 0 Mbit/s  FAIL          node2
clock      busbw not measured: no counter  ≥ 170 ± 0 Mbit/s  inconclusive
storage    2 tests passed                                    pass
numa       assert 3 == 4                   Is numa well?     FAIL          rank 2
gpu        skipped                         Is gpu well?      inconclusive
restart                                                      did not run
gang       no scheduler                                      not promised
doubtful spec: above the wire
NOT certified: fabric failed (node2); numa failed (rank 2); restart did not run; \
clock inconclusive (busbw not measured: no counter); gpu inconclusive (skipped)"""  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "more", "line"),
    [
        (
            [case("fabric", "passed", FAST)],
            {},
            "certified until 2026-11-28 02:06 UTC (spec rack, 4 nodes, rack launcher)",
        ),
        (
            [case("fabric")],
            {"emulated": "links shaped on one machine", "nodes": ("node0",)},
            "certified until 2026-11-28 02:06 UTC (spec rack, 1 node, rack launcher)",
        ),
        ([case("fabric", "passed", SLOW)], {}, "NOT certified: fabric failed (node2)"),
        ([], {}, "incomplete: fabric did not run"),
        (
            [case("fabric", "passed", UNKNOWN)],
            {},
            "inconclusive: fabric inconclusive (busbw not measured: no counter)",
        ),
    ],
)
def test_the_last_line_is_the_certificate(
    certify: Certify, cases: list[CaseResult], more: dict[str, Any], line: str
) -> None:
    assert summary_lines(certify(*cases, promised=["fabric"], **more))[-1] == line


def test_what_is_emulated_is_said_before_the_verdict(certify: Certify) -> None:
    lines = summary_lines(certify(case("fabric"), emulated="links shaped on one machine"))
    assert lines[-2] == "emulated: links shaped on one machine"


def test_a_passing_criterion_shows_its_least_margin_and_blames_nobody(certify: Certify) -> None:
    tight = Measurement("gather busbw", 171, "Mbit/s", at_least(170), culprit="node3")
    lines = summary_lines(certify(case("fabric", "passed", FAST, tight), case("fabric")))
    assert re.split(r"\s{2,}", lines[1]) == [
        "fabric",
        "171 Mbit/s gather busbw",
        "≥ 170 ± 0 Mbit/s",
        "pass",
    ]


def test_where_nothing_could_be_missed_by_a_little_tests_are_counted(certify: Certify) -> None:
    whole = Measurement("links that are up", 1, "", at_least(1))
    lines = summary_lines(certify(case("fabric", "passed", FAST, whole), case("fabric")))
    assert re.split(r"\s{2,}", lines[1]) == ["fabric", "2 tests passed", "pass"]


@pytest.mark.parametrize("width", [200, 100, 80, 70])
def test_a_narrow_terminal_cuts_figures_and_never_the_culprit(certify: Certify, width: int) -> None:
    name = "all_reduce busbw on the plateau from 1 MB to 64 MB"
    slow = Measurement(name, 48, "Mbit/s", at_least(170), "spec", "node2 fab0")
    printed: list[str] = []
    print_summary(
        certify(case("fabric", "passed", slow), case("mesh", "failed")), printed.append, width
    )
    table = printed[:3]
    assert max(map(len, table)) <= width
    assert table[1].endswith("FAIL     node2 fab0")
    assert ("…" in table[1]) is (width < 200)
    assert len({line.index("  FAIL") for line in table[1:]}) == 1
