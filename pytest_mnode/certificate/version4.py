"""What certificates of schema version 4 say in words, and those of version 5 as data. Pure.

Version 4 told from the message of a case why it did not pass. Goes when version 4 is read no more.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.results import CaseResult, StoppedBy
from pytest_mnode.measurement import Verdict

_BY_FAILURE = "not run: "
_BY_INTERRUPTION = "the test was interrupted before it ended"


def from_version_4(certificate: Certificate) -> Certificate:
    """The certificate with `stopped_by`, `by_bounds` and `lacks` of its cases."""
    return replace(
        certificate,
        criteria=tuple(
            replace(one, cases=tuple(map(_case, one.cases))) for one in certificate.criteria
        ),
    )


def _case(case: CaseResult) -> CaseResult:
    said = case.message.removeprefix("Failed: ")
    stopped_by: StoppedBy | None = None
    if said.startswith(_BY_FAILURE):
        stopped_by = "failure"
    elif said.startswith(_BY_INTERRUPTION):
        stopped_by = "interruption"
    failing = [one for one in case.measurements if one.verdict is Verdict.FAIL]
    told = bool(failing) and str(replace(failing[0], where="")) in case.message
    return replace(
        case,
        stopped_by=stopped_by,
        by_bounds=case.outcome == "failed" and told,
        lacks=case.message.rpartition(": ")[2] if case.outcome == "not promised" else None,
    )
