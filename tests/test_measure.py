"""measure(): bounds, judging within the test, and combining the values of many ranks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mnode.certificate.results import charts_from_json, charts_to_json
from pytest_mnode.charts import Bars, Chart, Lines, Matrix, Part, Series, Span, Timeline
from pytest_mnode.culprit import Culprit
from pytest_mnode.measure import Measure, charts_of, summed_up
from pytest_mnode.measurement import Curve, Measurement, Point, Verdict, at_least


def test_one_bound_and_no_more() -> None:
    measure = Measure([], "")
    with pytest.raises(TypeError, match="give one of at_least, at_most, not 2"):
        measure("x", 1, at_least=1, at_most=2)


@pytest.mark.parametrize("text", ["12", "inf", b"12"])
def test_text_is_no_number(text: Any) -> None:
    measure = Measure([], "")
    with pytest.raises(TypeError, match=r"measurement 'x' of b?'.*' is a .*; give a number"):
        measure("x", text, at_least=1)
    with pytest.raises(TypeError, match=r"a bound of b?'.*' is a .*; give a number"):
        measure("x", 1, at_least=text)
    with pytest.raises(TypeError, match=r"a tolerance of b?'.*' is a .*; give a number"):
        measure("x", 1, at_least=1, tolerance=text)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: Lines("it", "x", "y", (Series("a", ((1, value),)),)),
        lambda value: Bars("it", "s", ("a",), (Part("b", (value,)),)),
        lambda value: Matrix("it", "s", ("a",), ("b",), ((value,),)),
        lambda value: Timeline("it", ("a",), (Span("a", 0, value, "up"),)),
    ],
)
def test_an_invalid_chart_fails_its_test(make: Callable[[float], Chart], value: float) -> None:
    kept: list[Chart] = []
    measure = Measure([], "", kept)
    with pytest.raises(ValueError, match=r"chart 'it': Out of range .*; leave such values out"):
        measure.chart(make(value))
    measure.chart(make(1))
    assert kept == [make(1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bars("it", "s", ("a",), (Part("b", (1, 2)),)), "it: a part needs a value for"),
        (lambda: Matrix("it", "s", ("a",), ("b",), ((1, 2),)), "it: values are not 1 rows of 1 c"),
        (lambda: Timeline("it", ("a",), (Span("b", 0, 1, "up"),)), "it: no lane b"),
    ],
)
def test_a_chart_that_cannot_be_drawn_is_not_made(make: Callable[[], Chart], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_recorded_values_name_their_rank() -> None:
    kept: list[Measurement] = []
    Measure(kept, "rank 1 on node1")("x", 3, "GB/s", at_most=4, tolerance=0.5, source="spec")
    assert kept[0].where == "rank 1 on node1"
    assert kept[0].verdict is Verdict.PASS


def test_a_curve_that_ranks_agree_on_is_kept_once() -> None:
    point = Point(1024, 5, 9.5, 12, 9, 12, 0.1, 0.09, 0)
    agreed, other = (Curve("all_gather", name, "gloo", 4, (point,)) for name in ("ring", "default"))
    kept: list[Chart] = []
    Measure([], "", kept).chart(agreed)
    assert charts_of([kept, charts_from_json(charts_to_json([agreed])), [other]]) == [agreed, other]


def test_of_many_ranks_the_worst_counts() -> None:
    def of(value: float | None) -> tuple[Measurement, ...]:
        return (Measurement("x", value, "GB/s", at_least(2), where=f"value {value}"),)

    [worst] = summed_up({0: of(3), 1: of(2.1), 2: of(9)})
    assert worst.value == 2.1
    [worst] = summed_up({0: of(3), 1: of(None), 2: of(9)})
    assert worst.verdict is Verdict.INCONCLUSIVE
    [worst] = summed_up({0: of(None), 1: of(1), 2: of(9)})
    assert worst.verdict is Verdict.FAIL


def test_ranks_that_agree_in_words_blame_a_node_each() -> None:
    def of(node: str) -> tuple[Measurement, ...]:
        return (Measurement("x", 1, "GB/s", at_least(2), culprit=Culprit("its NIC", node)),)

    [worst] = summed_up({0: of("a"), 1: of("b"), 2: of("c")})
    assert (worst.where, worst.culprit) == ("all 3 ranks", "its NIC")
    assert worst.culprit is not None
    assert worst.culprit.nodes == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ('measure("x", 1, "GB/s", at_least=2, source="the spec")', {"failed": 1}),
        ('measure("x", None, "GB/s", at_least=2)', {"passed": 1, "errors": 1}),
        ('measure("x", float("nan"), "GB/s", at_least=2)', {"passed": 1, "errors": 1}),
        ('measure("x", 3, "GB/s", at_least=2)', {"passed": 1}),
        ('measure("x", 3, "GB/s", at_least=2, interval=(2, 4))', {"passed": 1}),
        ('measure("x", 3, "GB/s", at_least=2, interval=(1, 4))', {"passed": 1, "errors": 1}),
        ('measure("x", 3, "GB/s")', {"passed": 1}),
    ],
)
def test_values_are_judged_when_the_body_has_ended(
    pytester: pytest.Pytester, call: str, outcome: dict[str, int]
) -> None:
    pytester.makepyfile(f"def test_it(measure):\n    {call}\n    print('the body went on')")
    result = pytester.runpytest("-rA")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines(["*the body went on*"])
    if "failed" in outcome:
        result.stdout.fnmatch_lines(
            ["x: 1 GB/s, expected at least 2 GB/s*source the spec, margin -1 GB/s"]
        )


def test_an_expected_failure_covers_a_broken_bound(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.xfail(reason="known slow link")
        def test_it(measure):
            measure("x", 1, at_least=2)
    """)
    pytester.runpytest().assert_outcomes(xfailed=1)


BROKEN = 'measure("x", 1, at_least=2)'
UNKNOWN = 'measure("x", None, at_least=2)'
WAYS = {
    "teardown": """
        @pytest.fixture
        def made(measure):
            yield
            {measures}
        def test_it(made): pass
    """,
    "by_name": """
        def test_it(request):
            measure = request.getfixturevalue("measure")
            {measures}
    """,
    "by_name_in_teardown": """
        @pytest.fixture
        def made(request):
            measure = request.getfixturevalue("measure")
            yield
            {measures}
        def test_it(made): pass
    """,
    "before_skip": """
        def test_it(measure):
            {measures}
            pytest.skip("enough")
    """,
    "before_skip_in_setup": """
        @pytest.fixture
        def made(request):
            measure = request.getfixturevalue("measure")
            {measures}
            pytest.skip("enough")
        def test_it(made): pass
    """,
    "before_skip_in_teardown": """
        @pytest.fixture
        def made(measure):
            yield
            {measures}
            pytest.skip("enough")
        def test_it(made): pass
    """,
    "before_skip_of_unittest": """
        import unittest
        class TestIt(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def made(self, request):
                self.request = request
            def test_it(self):
                measure = self.request.getfixturevalue("measure")
                {measures}
                self.skipTest("enough")
    """,
}


@pytest.mark.parametrize(
    ("measures", "said"),
    [(BROKEN, "x: 1, expected at least 2"), (UNKNOWN, "inconclusive: x: not measured")],
    ids=["broken", "unknown"],
)
def test_whatever_was_recorded_is_judged(
    pytester: pytest.Pytester, measures: str, said: str
) -> None:
    for way, text in WAYS.items():
        body = textwrap.dedent(text).format(measures=measures)
        pytester.makepyfile(**{f"test_{way}": f"import pytest\n{body}"})
    lines = pytester.runpytest("-rfE").outlines
    judged = [line.partition(".py")[0] for line in lines if line.startswith(("FAILED", "ERROR "))]
    assert sorted(name.rpartition("test_")[2] for name in judged) == sorted(WAYS), judged
    assert sum(line.startswith(said) for line in lines) == len(WAYS)


def test_a_broken_bound_is_reported_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def late(measure):
            yield
            measure("late", 1, at_least=2)

        def test_it(measure, late):
            measure("early", 1, at_least=2)
    """)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1, errors=1)
    lines = [line.partition(":")[0] for line in result.outlines if "expected at least 2" in line]
    assert lines[:2] == ["late", "early"]  # pytest shows errors first


def test_a_test_that_runs_again_is_judged_anew(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, log=False, nextitem=None)
    """)
    pytester.makepyfile("""
        values = [1, 3]
        def test_it(request):
            request.getfixturevalue("measure")("x", values.pop(0), at_least=2)
    """)
    pytester.runpytest().assert_outcomes(passed=1)


def test_measure_is_of_its_own_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        kept = []
        def test_a(measure): kept.append(measure)
        def test_b(): kept[0]("x", 1, at_least=2)
        def test_c(): kept[0].record([])
    """)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*RuntimeError: measure of *::test_a was used after the end of*"])
