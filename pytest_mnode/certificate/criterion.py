"""Cases and criteria: what became of each test, and of each question of the suite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pytest_mnode.certificate.text import first_line
from pytest_mnode.measurement import Curve, Measurement, Verdict

Outcome = Literal["passed", "failed", "error", "skipped", "not promised"]
"""How a test ended; "not promised" is a skip that says so (`not_promised`)."""


class CriterionVerdict(StrEnum):
    """What became of a criterion, or of one of its cases. Only `PASS` counts for a certificate."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    DID_NOT_RUN = "did not run"
    NOT_PROMISED = "not promised"


_WORST_FIRST = {
    CriterionVerdict.FAIL: 0,
    CriterionVerdict.INCONCLUSIVE: 1,
    CriterionVerdict.PASS: 2,
}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one test.

    test: node id. question: first line of its docstring. message: why it did not pass.
    culprit: what to blame where no measurement says so. nodes: where it ran.
    curves: what was measured over sizes; recorded, never judged.
    """

    test: str
    question: str
    outcome: Outcome
    message: str = ""
    culprit: str | None = None
    measurements: tuple[Measurement, ...] = ()
    nodes: tuple[str, ...] = ()
    duration_s: float | None = None
    curves: tuple[Curve, ...] = ()

    @property
    def verdict(self) -> CriterionVerdict:
        """Fail before inconclusive; pass only for a test that passed with nothing unmeasured."""
        verdicts = {m.verdict for m in self.measurements}
        if self.outcome == "failed" or Verdict.FAIL in verdicts:
            return CriterionVerdict.FAIL
        if Verdict.INCONCLUSIVE in verdicts:
            return CriterionVerdict.INCONCLUSIVE
        if self.outcome == "not promised":
            return CriterionVerdict.NOT_PROMISED
        return CriterionVerdict.PASS if self.outcome == "passed" else CriterionVerdict.INCONCLUSIVE

    @property
    def worst(self) -> Measurement | None:
        """The measurement that decided the verdict; None where none did."""
        decisive = [m for m in self.measurements if _has(m, self.verdict)]
        return min(decisive, key=_relative_margin, default=None)

    @property
    def told(self) -> str:
        """What was met, in few words: the value that decided, else why the test did not pass."""
        if (worst := self.worst) is None:
            return first_line(self.message) or self.outcome
        why = f": {worst.note}" if worst.verdict is Verdict.INCONCLUSIVE and worst.note else ""
        return first_line(f"{worst.name} {worst.measured}{why}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the verdict."""
        return {
            "test": self.test,
            "question": self.question,
            "verdict": self.verdict.value,
            "outcome": self.outcome,
            "message": self.message,
            "culprit": self.culprit,
            "nodes": list(self.nodes),
            "duration_s": self.duration_s,
            "measurements": [m.to_dict() for m in self.measurements],
            "curves": [curve.to_dict() for curve in self.curves],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; the verdict is judged anew."""
        fields = {k: v for k, v in data.items() if k != "verdict"}
        fields["nodes"] = tuple(data["nodes"])
        fields["measurements"] = tuple(map(Measurement.from_dict, data["measurements"]))
        fields["curves"] = tuple(map(Curve.from_dict, data["curves"]))
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """One question of the suite: its cases, and whether the spec promises it.

    not_promised: the spec's reason not to promise it; it is then not judged, whatever ran.
    Neither promised nor not promised is a criterion the spec is silent about: judged if it ran.
    """

    name: str
    promised: bool
    not_promised: str | None = None
    cases: tuple[CaseResult, ...] = ()

    @property
    def verdict(self) -> CriterionVerdict:
        """The worst verdict of its cases, those aside that are not promised.

        A criterion that is promised and of which no case is, did not run.
        """
        if self.not_promised is not None:
            return CriterionVerdict.NOT_PROMISED
        if judged := [c.verdict for c in self.judged]:
            return min(judged, key=_WORST_FIRST.__getitem__)
        left_open = self.cases and not self.promised
        return CriterionVerdict.NOT_PROMISED if left_open else CriterionVerdict.DID_NOT_RUN

    @property
    def judged(self) -> tuple[CaseResult, ...]:
        """The cases that are promised."""
        return tuple(c for c in self.cases if c.verdict is not CriterionVerdict.NOT_PROMISED)

    @property
    def deciding(self) -> tuple[CaseResult, ...]:
        """The cases that have the criterion's verdict; none where it was not judged."""
        return tuple(c for c in self.cases if c.verdict is self.verdict)

    @property
    def worst(self) -> CaseResult | None:
        """The case to show: one that a measurement decided, by the least margin, comes first."""

        def rank(case: CaseResult) -> tuple[bool, float]:
            worst = case.worst
            return (True, 0.0) if worst is None else (False, _relative_margin(worst))

        return min(self.deciding, key=rank, default=None)

    @property
    def culprits(self) -> tuple[str, ...]:
        """Who is to blame, each once; nobody where it passed."""
        if self.verdict is CriterionVerdict.PASS:
            return ()
        named = [
            name
            for case in self.deciding
            for name in (
                *(m.culprit for m in case.measurements if _has(m, case.verdict)),
                case.culprit,
            )
            if name
        ]
        return tuple(dict.fromkeys(named))

    @property
    def reason(self) -> str | None:
        """Why this criterion stands in the way of a certificate; None where it does not."""
        match self.verdict:
            case CriterionVerdict.DID_NOT_RUN:
                return f"{self.name} did not run"
            case CriterionVerdict.FAIL:
                said = f"{self.name} failed"
            case CriterionVerdict.INCONCLUSIVE:
                said = f"{self.name} inconclusive"
            case _:
                return None
        told = first_line(self.worst.told, 80) if self.worst else ""
        return f"{said} ({', '.join(self.culprits) or told})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the verdict."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "promised": self.promised,
            "not_promised": self.not_promised,
            "cases": [c.to_dict() for c in self.cases],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; the verdict is judged anew."""
        cases = tuple(map(CaseResult.from_dict, data["cases"]))
        return cls(data["name"], data["promised"], data["not_promised"], cases)


def criterion_name(test: str) -> str:
    """The criterion a node id belongs to: "acceptance/test_fabric.py::test_x[4]" is "fabric"."""
    return PurePosixPath(test.partition("::")[0]).stem.removeprefix("test_")


def _has(measurement: Measurement, verdict: CriterionVerdict) -> bool:
    return measurement.verdict is not None and measurement.verdict.value == verdict.value


def _relative_margin(measurement: Measurement) -> float:
    """To sort by, worst first: a broken exact bound is worst of all, a kept one tells least."""
    if measurement.margin is None or measurement.expected is None or measurement.value is None:
        return 0.0
    relative = measurement.expected.relative_margin(measurement.value)
    if relative is not None:
        return relative
    return math.copysign(math.inf, measurement.margin)
