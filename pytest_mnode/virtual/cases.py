"""Cases of a rehearsal: results of the acceptance suite's tests, by their names and questions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.results import Outcome
from pytest_mnode.measurement import Curve, Measurement, Verdict
from pytest_mnode.path_rates import PathRates

NOT_REHEARSED = "not rehearsed"
_BAD = (Verdict.FAIL, Verdict.INCONCLUSIVE)


def case(
    test: str,
    found: Sequence[Measurement] = (),
    nodes: Iterable[str] = (),
    *,
    question: str = "",
    why: str = "",
    stopped: str = "",
    charts: Sequence[Curve] = (),
    paths: Sequence[PathRates] = (),
) -> CaseResult:
    """A case that measured these. question: by default that of the suite's test. why: reason why
    it could not be rehearsed; "" if it was. stopped: why it did not run at all."""
    outcome: Outcome = "not promised" if why else "passed"
    if bad := [one for one in found if one.verdict in _BAD]:
        failed = any(one.verdict is Verdict.FAIL for one in bad)
        outcome, why = ("failed" if failed else "error"), "\n".join(map(str, bad))
    if stopped:
        outcome, why = "error", stopped
    return CaseResult(
        test=test,
        question=question or _questions()[test.partition("[")[0]],
        outcome=outcome,
        message=why,
        measurements=tuple(found),
        nodes=tuple(nodes),
        charts=tuple(charts),
        paths=tuple(paths),
        by_bounds=bool(bad),
        stopped_by="failure" if stopped else None,
    )


@cache
def _questions() -> Mapping[str, str]:
    """First lines of the docstrings of the suite's tests, by their names."""
    package = Path(__file__).parents[1]
    packed = package / "acceptance"
    folder = packed if packed.is_dir() else package.parent / "acceptance"
    return {
        f"acceptance/{path.name}::{test.name}": (ast.get_docstring(test) or "").partition("\n")[0]
        for path in sorted(folder.glob("test_*.py"))
        for test in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(test, ast.FunctionDef)
    }
