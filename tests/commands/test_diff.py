"""`diff`: the spread of each measurement separates noise from change; other differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, Certificate, write_report
from pytest_mnode.certificate.difference import Kind, compared, history_of
from pytest_mnode.certificate.kept import keep, read_with_history
from pytest_mnode.commands import main
from pytest_mnode.detection import Detection
from pytest_mnode.installed import Fact
from pytest_mnode.measurement import Measurement, at_least, equals
from tests.certificate.conftest import FACTS, certify

Printed = Callable[..., tuple[int, str]]


def rate(value: float | None, blur: float | None = None, **more: Any) -> Measurement:
    detection = None if blur is None else Detection("less", 0.1, 5, blur)
    return Measurement("busbw", value, "GB/s", at_least(100), detection=detection, **more)


def skew(value: float | None, blur: float | None = None) -> Measurement:
    detection = None if blur is None else Detection("less", 0.1, 5, blur)
    return Measurement("clock skew", value, "ms", detection=detection)


def errors(count: int) -> Measurement:
    return Measurement("errors", count, "", equals(0))


def certificate(
    *measurements: Measurement, facts: tuple[Fact, ...] = (), **run: Any
) -> Certificate:
    outcome: Any = "passed" if all(m.passed for m in measurements) else "failed"
    case = CaseResult("t/test_fabric.py::test_it", "?", outcome, measurements=measurements)
    return certify(replace(case, facts=facts), promised=["fabric"], **run)


def kinds(before: Certificate, after: Certificate) -> list[str]:
    return [one.kind.value for one in compared(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (rate(180, 0.03), rate(176, 0.02), Kind.NOISE),
        (rate(180, 0.03), rate(160, 0.02), Kind.CHANGE),
        (rate(180), rate(179), Kind.UNKNOWN),
        (skew(9.99, 0.0), skew(10.0, 0.0), Kind.NOISE),  # the last digit
        (skew(9.99, 0.0), skew(10.01, 0.0), Kind.CHANGE),
        (rate(180), rate(180), Kind.SAME),
        (rate(101, 0.05), rate(99, 0.05), Kind.CHANGE),  # another verdict
        (rate(180, 0.03), rate(None), Kind.CHANGE),
        (skew(0.002), skew(None), Kind.UNKNOWN),
        (errors(0), errors(1), Kind.CHANGE),
    ],
)
def test_a_change_exceeds_the_spread(before: Measurement, after: Measurement, kind: Kind) -> None:
    assert kinds(certificate(before), certificate(after)) == [kind.value]


def test_a_history_gives_the_spread_if_repeats_do_not() -> None:
    nights = [
        certificate(rate(value), end=FACTS.end + timedelta(days=day))
        for day, value in enumerate([180, 184, 176, 181, 179])
    ]
    last = certificate(rate(177), end=FACTS.end + timedelta(days=9))
    with_history = replace(last, history=history_of(last, nights))
    assert kinds(nights[0], last) == [Kind.UNKNOWN]
    assert kinds(nights[0], with_history) == [Kind.NOISE]


@pytest.fixture
def kept(tmp_path: Path) -> list[Path]:
    """Nights with a rate that scatters by 2 %, and with 150 others."""
    steady = [Measurement(f"path {number}", 100, "MB/s") for number in range(150)]
    return [
        keep(tmp_path, certificate(rate(value), *steady, end=FACTS.end + timedelta(days=day)))
        for day, value in enumerate([180, 184, 176, 181, 179, 177])
    ]


def test_two_kept_files_have_the_history_before_them(
    kept: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(kept[0]), str(kept[-1])]) == 0
    summed_up = "\n151 measurements in both: 1 within its spread, 150 same\n"
    assert capsys.readouterr().out.endswith(summed_up)
    assert main(["diff", str(kept[0]), str(kept[2])]) == 0
    assert "differs, spread unknown:\n  busbw" in capsys.readouterr().out  # two runs before it


def test_later_runs_and_those_of_another_name_are_no_history(kept: list[Path]) -> None:
    history = read_with_history(kept[3]).history
    assert history is not None
    assert [run.date.day for run in history.runs] == [21, 22, 23, 24]
    assert len(history.trends) == 151
    assert read_with_history(kept[3].rename(kept[3].with_name("mine.json"))).history is None


def test_a_damaged_file_before_them_is_named(
    kept: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    kept[1].write_text("{")
    assert main(["diff", str(kept[0]), str(kept[-1])]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "history" in line]
    assert line.startswith(f"left out of history: {kept[1]}: no JSON")


def test_near_zero_the_spread_is_no_share_of_the_value() -> None:
    nights = [
        certificate(skew(value), end=FACTS.end + timedelta(days=day))
        for day, value in enumerate([0.016, 0.025, 0.008, 0.03, 0.0002, 0])
    ]
    for value, kind in ((0.015, Kind.NOISE), (0.9, Kind.CHANGE)):
        last = certificate(skew(value), end=FACTS.end + timedelta(days=9))
        last = replace(last, history=history_of(last, nights))
        assert [kinds(one, last) for one in nights[-2:]] == [[kind], [kind]]
    [from_zero] = compared(nights[-1], last)
    assert str(from_zero).startswith("clock skew: 0 ms → 0.9 ms, spread 0.0")


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    def of(before: Certificate, after: Certificate, *options: str) -> tuple[int, str]:
        for name, one in (("before", before), ("after", after)):
            write_report(tmp_path / name, one)
        capsys.readouterr()
        at = f"--at={FACTS.end + timedelta(days=2)}"
        code = main(["diff", str(tmp_path / "before"), str(tmp_path / "after"), at, *options])
        return code, capsys.readouterr().out

    return of


def test_all_differences_are_named(printed: Printed) -> None:
    before = certificate(
        rate(180, 0.03),
        errors(0),
        facts=(
            Fact("driver", "driver", (("570.1", "node[0-3]"),)),
            Fact("firmware", "mlx5_0", (("28.1", "node[0-3]"),)),
            Fact("nccl", "nccl", (("2.27", "node[0-3]"),)),
        ),
    )
    after = certificate(
        rate(90, 0.03, culprit="node5"),
        errors(7),
        facts=(
            Fact("driver", "driver", (("570.1", "node[0-3]"),)),
            Fact("firmware", "mlx5_0", (("28.1", "node[0-2]"), ("28.4", "node5"))),
            Fact("nccl", "nccl", (("2.29", "node[0-2,5]"),)),
        ),
        nodes=("node0", "node1", "node2", "node5"),
        backend="nccl",
        end=FACTS.end + timedelta(days=1),
    )
    code, out = printed(before, after)
    assert code == 1
    assert (
        out
        == """\
2026-11-21 02:06 certified: 4 nodes (the spec names no number) until 2026-11-28 02:06 UTC (spec \
rack, rack launcher)
2026-11-22 02:06 NOT certified: fabric failed (node5); passed: 0 nodes (the spec names no number)

verdicts and states:
  the run: certified → not certified
  fabric: pass → fail
  node[0-2]: passed → suspect

other differences:
  nodes gone: node3
  nodes new: node5
  backend: gloo → nccl
  firmware mlx5_0: 28.1 → 28.1 on node[0-2], 28.4 on node5
  nccl: 2.27 → 2.29

changed:
  errors: 0 → 7, worse, pass → fail
  busbw: 180 GB/s → 90 GB/s (-50.0%), spread 3.0%, worse, pass → fail

2 measurements in both: 2 changed
"""
    )


def test_a_night_like_the_one_before_says_so(printed: Printed) -> None:
    code, out = printed(certificate(rate(180, 0.03)), certificate(rate(181, 0.03)))
    assert code == 0
    assert out.splitlines()[2:] == ["", "1 measurement in both: 1 within its spread"]
    _, out = printed(certificate(rate(180, 0.03)), certificate(rate(181, 0.03)), "--all")
    assert "\nwithin its spread:\n  busbw: 180 GB/s → 181 GB/s (+0.6%), spread 3.0%, better" in out


def test_values_read_by_only_one_run_are_unknown(printed: Printed) -> None:
    some = certificate(rate(180), facts=(Fact("kernel", "kernel", (("6.1", "node0"),)),))
    _, out = printed(certificate(rate(180)), some)
    assert "drivers, firmware, packages and settings: unknown, the first has none" in out


def test_another_verdict_is_a_difference_even_with_equal_criteria(
    printed: Printed,
) -> None:
    code, out = printed(certificate(rate(180)), certificate(rate(180), nodes=("node0",)))
    assert code == 0, "the spec promises no number"
    code, out = printed(
        certificate(rate(180), cluster_nodes=4),
        certificate(rate(180), cluster_nodes=4, nodes=("node0",)),
    )
    assert code == 1
    assert "the run: certified → partly certified" in out


def test_a_lower_rate_with_a_lower_bound_is_not_better() -> None:
    lax = Measurement("busbw", 150, "GB/s", at_least(50))
    [found] = compared(certificate(rate(180)), certificate(lax))
    assert ", worse" in str(found)
