"""The certificate of a run: its verdict follows from its criteria and is never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pytest_mnode.certificate.criterion import (
    CaseResult,
    CriterionResult,
    CriterionVerdict,
    criterion_name,
)
from pytest_mnode.certificate.facts import RunFacts, utc
from pytest_mnode.errors import UsageError

SCHEMA_VERSION = 2


class CertificateVerdict(StrEnum):
    """The outcome of a run, worst first: the first that applies is the verdict.

    not certified: a criterion failed.
    incomplete: a promised criterion did not run, the run was cut short, or nothing is promised.
    inconclusive: a criterion could not be judged.
    certified: every promised criterion passed, and so did every other that ran.
    """

    NOT_CERTIFIED = "not certified"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"
    CERTIFIED = "certified"


@dataclass(frozen=True, slots=True)
class Certificate:
    """All verdicts of a run, with what they were judged on."""

    run: RunFacts
    criteria: tuple[CriterionResult, ...]

    @property
    def verdict(self) -> CertificateVerdict:
        """See `CertificateVerdict` for the order. Only `CERTIFIED` certifies."""
        found = {c.verdict for c in self.criteria}
        if CriterionVerdict.FAIL in found:
            return CertificateVerdict.NOT_CERTIFIED
        promises = any(c.promised for c in self.criteria)
        if CriterionVerdict.DID_NOT_RUN in found or self.run.cut_short or not promises:
            return CertificateVerdict.INCOMPLETE
        if CriterionVerdict.INCONCLUSIVE in found:
            return CertificateVerdict.INCONCLUSIVE
        return CertificateVerdict.CERTIFIED

    @property
    def expiry(self) -> datetime | None:
        """Until when the cluster is certified; None where it is not."""
        if self.verdict is CertificateVerdict.CERTIFIED:
            return self.run.end + self.run.validity
        return None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that stands in the way of a certificate, in the order of verdicts."""

        def of(verdict: CriterionVerdict) -> list[str]:
            return [c.reason for c in self.criteria if c.verdict is verdict and c.reason]

        missing = [f"cut short by {why}" for why in self.run.cut_short]
        if not any(c.promised for c in self.criteria):
            missing.append("the spec promises nothing")
        return (
            *of(CriterionVerdict.FAIL),
            *of(CriterionVerdict.DID_NOT_RUN),
            *missing,
            *of(CriterionVerdict.INCONCLUSIVE),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `schema.certificate_schema` describes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "expiry": utc(self.expiry) if self.expiry else None,
            "run": self.run.to_dict(),
            "criteria": [c.to_dict() for c in self.criteria],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; verdicts are judged anew. UsageError for another version."""
        if data.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"a certificate of schema_version {data.get('schema_version')!r} cannot be read; "
                f"this version of pytest-mnode reads {SCHEMA_VERSION}"
            )
        criteria = tuple(map(CriterionResult.from_dict, data["criteria"]))
        return cls(RunFacts.from_dict(data["run"]), criteria)


def build_certificate(
    *,
    run: RunFacts,
    cases: Sequence[CaseResult],
    promised: Sequence[str],
    not_promised: Mapping[str, str],
) -> Certificate:
    """The certificate of a run: promised criteria in their order, others that ran, not promised.

    `not_promised` maps a criterion to the spec's reason. One that is in both is promised.
    """
    grouped: dict[str, list[CaseResult]] = {name: [] for name in promised}
    for case in cases:
        grouped.setdefault(criterion_name(case.test), []).append(case)
    excused = {name: why for name, why in not_promised.items() if name not in promised}
    judged = [name for name in grouped if name not in excused]
    return Certificate(
        run,
        tuple(
            CriterionResult(name, name in promised, excused.get(name), tuple(grouped.get(name, ())))
            for name in (*judged, *excused)
        ),
    )
