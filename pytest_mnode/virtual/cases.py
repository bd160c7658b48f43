"""Cases of a rehearsal: results of the acceptance suite's tests, by their names and questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.results import Outcome
from pytest_mnode.measurement import Curve, Measurement, Verdict
from pytest_mnode.path_rates import PathRates

NOT_REHEARSED = "not rehearsed"
_BAD = (Verdict.FAIL, Verdict.INCONCLUSIVE)


def case(
    test: str,
    question: str,
    found: Sequence[Measurement] = (),
    nodes: Iterable[str] = (),
    *,
    why: str = "",
    stopped: str = "",
    charts: Sequence[Curve] = (),
    paths: Sequence[PathRates] = (),
) -> CaseResult:
    """A case that measured these. why: reason why it could not be rehearsed; "" if it was.
    stopped: why it did not run at all."""
    outcome: Outcome = "not promised" if why else "passed"
    if bad := [one for one in found if one.verdict in _BAD]:
        failed = any(one.verdict is Verdict.FAIL for one in bad)
        outcome, why = ("failed" if failed else "error"), "\n".join(map(str, bad))
    if stopped:
        outcome, why = "error", stopped
    return CaseResult(
        test=test,
        question=question,
        outcome=outcome,
        message=why,
        measurements=tuple(found),
        nodes=tuple(nodes),
        charts=tuple(charts),
        paths=tuple(paths),
        by_bounds=bool(bad),
        stopped_by="failure" if stopped else None,
    )
