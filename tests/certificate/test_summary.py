"""The summary: one aligned line per criterion, and a last line with the verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.certificate import summary_lines
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection, smallest_share_wrong
from pytest_mnode.measurement import Measurement, at_least, equals
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.test_certificate import FAST, SLOW, UNKNOWN, case

SLOW = replace(SLOW, culprit=Culprit("node2"))


def test_every_criterion_has_its_line() -> None:
    certificate = certify(
        case("mesh", "passed", RIGHT),
        case("fabric", "failed", FAST, SLOW),
        case("clock", "passed", UNKNOWN),
        case("storage", "passed", RIGHT),
        case("storage", "passed", RIGHT),
        case("numa", "failed", message="assert 3 == 4\nmore", culprit="rank 2"),
        case("gpu", "skipped"),
        promised=["mesh", "fabric", "clock", "storage", "numa", "gpu", "restart"],
        not_promised={"gang": "no scheduler"},
        doubts=("above the wire",),
    )
    reasons = (
        "NOT certified: fabric failed (node2); numa failed (rank 2); restart did not run; "
        "clock inconclusive (busbw not measured: no counter); gpu inconclusive (skipped); "
        "passed: 0 nodes (the spec names no number)"
    )
    assert "\n".join(summary_lines(certificate)) == f"""\
{reasons}

criterion  measured                        expected       verdict       culprit
mesh       0 wrong sums                    = 0            pass
fabric     48 Mbit/s busbw                 ≥ 170 Mbit/s   FAIL          node2
clock      busbw not measured: no counter  ≥ 170 Mbit/s   inconclusive
storage    2 of 2 tests                                   pass
numa       assert 3 == 4                   Is numa well?  FAIL          rank 2
gpu        skipped                         Is gpu well?   inconclusive
restart                                                   did not run
gang       no scheduler                                   not promised
doubtful spec: above the wire
covered: 4 nodes (the spec names no number): node[0-3]
nodes: failed: node2; suspect: node[0-1,3]
{reasons}"""  # fmt: skip


UNTIL = "until 2026-11-28 02:06 UTC (spec rack"
PARTLY = "; cluster not certified: not every node has a pass: "
UNNUMBERED = "passed: 0 nodes (the spec names no number)"


@pytest.mark.parametrize(
    ("measured", "more", "line"),
    [
        (FAST, {}, f"certified: 4 nodes (the spec names no number) {UNTIL}, rack launcher)"),
        (
            RIGHT,
            {"emulated": "links shaped on one machine", "nodes": ("node0",), "cluster_nodes": 16},
            f"partly certified: 1 of 16 nodes {UNTIL}, rack launcher){PARTLY}passed: node0; not "
            "tested: 15 others",
        ),
        (
            RIGHT,
            {"nodes": (), "ranks": 0, "cluster_nodes": 4, "launcher": "none"},
            f"partly certified: fabric only, no node tested, {UNTIL}, none launcher){PARTLY}not "
            "tested: 4 others",
        ),
        (
            *(SLOW, {"cluster_nodes": 4}),
            "NOT certified: fabric failed (node2); passed: 3 of 4 nodes",
        ),
        (None, {}, f"incomplete: fabric did not run; {UNNUMBERED}"),
        (
            *(UNKNOWN, {}),
            f"inconclusive: fabric inconclusive (busbw not measured: no counter); {UNNUMBERED}",
        ),
    ],
)
def test_the_first_line_and_the_last_are_the_certificate(
    measured: Measurement | None, more: dict[str, Any], line: str
) -> None:
    cases = [] if measured is None else [case("fabric", "passed", measured)]
    lines = summary_lines(certify(*cases, promised=["fabric"], **more))
    assert (lines[0], lines[-1]) == (line, line)


def test_a_culprit_of_two_lines_or_with_colours_is_one_plain_line() -> None:
    odd = Measurement(
        "rate", 1, "", at_least(2), culprit=Culprit("node2\nand \x1b[31mnode3\x1b[2J", "node2")
    )
    lines = summary_lines(certify(case("fabric", "failed", odd), promised=["fabric"]))
    assert lines[0].startswith("NOT certified: fabric failed (node2 and node3); passed: ")
    assert not any("\x1b" in line or "\n" in line for line in lines)


def test_emulated_hardware_is_printed_before_the_verdict() -> None:
    lines = summary_lines(certify(case("fabric"), emulated="links shaped on one machine"))
    assert lines[-4] == "emulated: links shaped on one machine"


def test_a_passing_criterion_shows_its_smallest_margin_without_a_culprit() -> None:
    tight = Measurement("gather busbw", 171, "Mbit/s", at_least(170), culprit=Culprit("node3"))
    lines = summary_lines(certify(case("fabric", "passed", FAST, tight), case("fabric")))
    measured = "171 Mbit/s gather busbw; least margin 0.59 %"
    row = ["fabric", measured, "≥ 170 Mbit/s", "pass"]
    assert re.split(r"\s{2,}", lines[3]) == row


def test_criteria_without_a_margin_show_their_number_of_tests() -> None:
    whole = Measurement("links that are up", 1, "", at_least(1))
    lines = summary_lines(certify(case("fabric", "passed", RIGHT, whole), case("fabric")))
    assert re.split(r"\s{2,}", lines[3]) == ["fabric", "2 of 2 tests", "pass"]


@pytest.mark.parametrize("width", [200, 100, 80, 60])
def test_a_narrow_terminal_cuts_nothing(width: int) -> None:
    name = "all_reduce busbw on the plateau from 1 MB to 64 MB"
    culprit = "node2 fab0 tx (48 Mbit/s, alone with node0 or node3; other nodes 191)"
    slow = Measurement(name, 48, "Mbit/s", at_least(170), "spec", Culprit.of(culprit))
    failed = case("mesh", "failed", message="a" * 90)
    printed = summary_lines(certify(case("fabric", "passed", slow), failed), width)
    [heading, *table] = printed[2:-3]
    assert max(map(len, printed[2:-3])) <= width
    starts = [heading.index(word) for word in heading.split()]
    ends = [*starts[1:], None]
    mesh = next(number for number, line in enumerate(table) if line.startswith("mesh"))
    for rows, expected in (
        (table[:mesh], ["fabric", f"48 Mbit/s {name}", "≥ 170 Mbit/s", "FAIL", culprit]),
        (table[mesh:], ["mesh", "a" * 90, "Is mesh well?", "FAIL", ""]),
    ):
        cells = [
            " ".join(line[a:b].strip() for line in rows) for a, b in zip(starts, ends, strict=True)
        ]
        found = [cell.strip() if "aaa" not in cell else cell.replace(" ", "") for cell in cells]
        assert found == expected


def test_only_verdicts_are_coloured_and_columns_stay() -> None:
    certificate = certify(
        case("pass", "passed", FAST), case("fabric", "failed", SLOW), promised=["mesh"]
    )
    plain = summary_lines(certificate, 90)
    painted = summary_lines(certificate, 90, paint=lambda text: f"<{text}>")
    assert [line.replace("<", "").replace(">", "") for line in painted] == plain
    words = [word.strip() for line in painted for word in re.findall(r"<(.*?)>", line)]
    assert words == ["NOT certified", "verdict", "did not run", "pass", "FAIL", "NOT certified"]


def test_a_long_reason_is_not_cut() -> None:
    why = f"no counter of {'mlx5_0 and ' * 20}mlx5_1"
    unknown = Measurement("busbw", None, "Mbit/s", at_least(170), note=why)
    lines = summary_lines(certify(case("fabric", "passed", unknown)), 120)
    assert why in lines[-1]
    start, end = lines[2].index("measured"), lines[2].index("expected")
    assert why in " ".join(" ".join(line[start:end] for line in lines[3:-3]).split())
    assert "…" not in "".join(lines)


def test_the_widest_column_is_wrapped_first() -> None:
    long = Measurement("b" * 30 + " " + "c" * 30, 180, "Mbit/s", at_least(170))
    heading = summary_lines(certify(case("fabric", "passed", long)), 80)[2]
    assert heading.index("verdict") - heading.index("expected") == len("≥ 170 Mbit/s  ")


@pytest.mark.parametrize(
    ("nodes", "of", "others", "coverage"),
    [
        (4, 4, (), "4 of 4 nodes: node[0-3]"),
        (1, 1, (), "1 of 1 node: node0"),
        (2, 16, (), "2 of 16 nodes: node[0-1]; not covered: 14 others"),
        (2, 3, (), "2 of 3 nodes: node[0-1]; not covered: 1 other"),
        (2, 4, ("node2", "node3"), "2 of 4 nodes: node[0-1]; not covered: node[2-3]"),
        (2, 16, ("n7", "n8"), "2 of 16 nodes: node[0-1]; not covered: n[7-8] and 12 others"),
        (2, 2, ("node2",), "2 of 2 nodes: node[0-1]; not covered: node2"),
        (4, None, (), "4 nodes (the spec names no number): node[0-3]"),
        (1, None, ("b",), "1 node (the spec names no number): node0; not covered: b"),
        (0, 16, (), "0 of 16 nodes; not covered: 16 others"),
    ],
)
def test_covered_and_uncovered_nodes_are_printed(
    nodes: int, of: int | None, others: tuple[str, ...], coverage: str
) -> None:
    names = tuple(f"node{i}" for i in range(nodes))
    facts = certify(nodes=names, cluster_nodes=of, not_covered=others).run
    assert facts.coverage == coverage
    assert coverage.startswith(facts.count)


def test_all_measurements_are_shown_by_criterion_on_request() -> None:
    certificate = certify(case("fabric", "passed", FAST, SLOW), case("mesh"))
    lines = summary_lines(certificate, every_measurement=True)
    assert lines[2] == "fabric:"
    assert [line.split()[0] for line in lines[4:6]] == ["busbw", "busbw"]
    assert lines[6:] == ["", *summary_lines(certificate)[2:]]


def test_detection_limits_of_each_criterion() -> None:
    loose, tight = (Detection("less", share, 5, 0.02, 0.2) for share in (0.18, 0.08))
    measured = (
        Measurement("busbw 1 MiB", 180, "Mbit/s", at_least(170), detection=loose),
        Measurement("busbw 4 MiB", 180, "Mbit/s", at_least(170), detection=tight),
        Measurement("busbw 1 KiB", 1, "Mbit/s", detection=Detection("less", 0.9, 5)),
        Measurement("#wrong", 0, "", equals(0), detection=smallest_share_wrong(40)),
        Measurement("#wrong again", 0, "", equals(0), detection=smallest_share_wrong(12)),
    )
    certificate = certify(case("fabric", "passed", *measured), case("mesh"))
    assert (
        "fabric: detection limit (99 %): 18 % less (busbw 1 MiB), "
        "1 wrong call in 11 (of 52 checked)"
    ) in summary_lines(certificate)
    assert certificate.criteria[1].detects == ()
    table = "\n".join(summary_lines(certificate, every_measurement=True))
    assert "detection limit 8 % less" in table


def test_a_noisy_value_is_inconclusive_with_the_reason() -> None:
    noisy = Detection("less", 0.3, 5, blur=0.25, tolerated=0.15)
    measured = Measurement("busbw", 180, "Mbit/s", at_least(170), detection=noisy)
    certificate = certify(case("fabric", "passed", measured), promised=["fabric"])
    assert certificate.reasons[0].startswith(
        "fabric inconclusive (busbw 180 Mbit/s: too noisy: medians of 5 repeats differ"
    )


def test_criteria_that_did_not_run_are_one_reason() -> None:
    found = certify(
        case("mesh", "passed", RIGHT), promised=["mesh", "numa", "data"], cut_short=("-x",)
    )
    assert summary_lines(found)[0] == (
        "incomplete: numa, data did not run; cut short by -x; passed: 0 nodes (the spec names no "
        "number)"
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_on_a_terminal_sentences_wrap_between_words(width: int) -> None:
    found = certify(case("fabric", "passed", SLOW), doubts=["above the wire of this cluster " * 9])
    whole, wrapped = summary_lines(found), summary_lines(found, width, wraps=True)
    assert max(map(len, wrapped)) <= width < max(map(len, whole))
    assert sorted(" ".join(wrapped).split()) == sorted(" ".join(whole).split())
    assert any(line.startswith("  ") for line in wrapped)
