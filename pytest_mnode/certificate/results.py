"""The results in a certificate: measurements, cases and criteria.

These are pydantic dataclasses, because the JSON schema of a certificate is made from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
    computed_field,
)
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.criterion_headline import CriterionHeadline, answered, said
from pytest_mnode.certificate.text import Recorded, first_line, one_line
from pytest_mnode.charts import Chart
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.installed import Fact
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict
from pytest_mnode.path_rates import PathRates

Outcome = Literal["passed", "failed", "error", "skipped", "not promised"]
"""How a test ended; "not promised" is a skip by `not_promised`."""
StoppedBy = Literal["failure", "interruption"]
"""What ended a test before it showed anything: the failure of another, or the end of the run."""


class CriterionVerdict(StrEnum):
    """The verdict of a criterion, or of one of its cases. Only `PASS` counts for a certificate."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    DID_NOT_RUN = "did not run"
    NOT_PROMISED = "not promised"
    NOT_REHEARSED = "not rehearsed"
    """Promised, and beyond what a virtual cluster has."""


_WORST_FIRST = {
    CriterionVerdict.FAIL: 0,
    CriterionVerdict.INCONCLUSIVE: 1,
    CriterionVerdict.PASS: 2,
}


class DetectionRecord(BaseModel):
    """The smallest fault that would have been found with `probability`, in JSON."""

    model_config = ConfigDict(from_attributes=True, title="Detection")

    kind: Literal["less", "more", "wrong"]
    share: float
    repeats: int
    blur: float | None
    tolerated: float | None
    probability: float
    text: str


class MeasurementRecord(BaseModel):
    """A measurement in JSON, with its verdict and margin.

    culprit_nodes: all nodes to blame for sure. culprit_either: lists of nodes of which one may be
    to blame; an empty list stands for all nodes that took part. culprit_parts: the devices, paths,
    ranks and settings of these; null if none is known. `culprit` may name fewer. interval: lowest
    and highest value that the true one may have; null if it is not known, or exact.
    """

    model_config = ConfigDict(from_attributes=True, title="Measurement")

    name: str
    value: float | None
    unit: str
    expected: Bound | None
    source: str
    culprit: str | None
    culprit_nodes: tuple[str, ...] = ()
    culprit_either: tuple[tuple[str, ...], ...] = ()
    culprit_parts: Parts | None = None
    note: str
    where: str
    detection: DetectionRecord | None
    headline: HeadlineMark | None
    interval: tuple[float, float] | None = None
    false_alarm: float | None = None
    margin: float | None
    verdict: Verdict | None

    @classmethod
    def of(cls, measurement: Measurement) -> MeasurementRecord:
        """The record; a value that is not finite becomes a note, as JSON has no such numbers."""
        if measurement.value is not None and not math.isfinite(measurement.value):
            note = "; ".join(filter(None, [measurement.note, f"measured {measurement.value}"]))
            measurement = replace(measurement, value=None, note=note)
        record = cls.model_validate(measurement)
        culprit = measurement.culprit
        return (
            record
            if culprit is None
            else record.model_copy(
                update={**culprit.record, "culprit_parts": culprit.parts or None}
            )
        )


@plain_dataclass(frozen=True, slots=True)
class _ReadMeasurement(Measurement):
    """A measurement as JSON has it. Older certificates have no nodes or parts of culprits."""

    culprit_nodes: tuple[str, ...] = ()
    culprit_either: tuple[tuple[str, ...], ...] = ()
    culprit_parts: Parts | None = None

    @property
    def whole(self) -> Measurement:
        values = {one.name: getattr(self, one.name) for one in fields(Measurement)}
        if self.culprit is not None:
            values["culprit"] = Culprit(
                self.culprit, self.culprit_nodes, self.culprit_either, self.culprit_parts
            )
        return Measurement(**values)


def _read(given: Measurement) -> Measurement:
    return given.whole if isinstance(given, _ReadMeasurement) else given


RecordedChart = Annotated[Chart, Field(discriminator="kind")]
_CHARTS = TypeAdapter(list[RecordedChart])
RecordedMeasurement = Annotated[
    Measurement,
    GetPydanticSchema(lambda _, handler: handler(_ReadMeasurement | Measurement)),
    AfterValidator(_read),
    PlainSerializer(MeasurementRecord.of, return_type=MeasurementRecord),
]
_MEASUREMENTS = TypeAdapter(list[RecordedMeasurement])


def measurements_to_json(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain values, each with verdict and margin."""
    return [MeasurementRecord.of(one).model_dump(mode="json") for one in measurements]


def measurements_from_json(data: Sequence[dict[str, Any]]) -> tuple[Measurement, ...]:
    """The inverse of `measurements_to_json`; verdict and margin are judged again, not read."""
    return tuple(_MEASUREMENTS.validate_python(data))


def charts_to_json(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """Charts as plain values; rows without empty ones, of which thousands of ranks have many."""
    data: list[dict[str, Any]] = _CHARTS.dump_python(list(charts), mode="json")
    for one in data:
        if one["kind"] == "rows":
            one["rows"] = [
                {k: v for k, v in row.items() if v not in (None, "")} for row in one["rows"]
            ]
    return data


def charts_from_json(data: Sequence[dict[str, Any]]) -> tuple[Chart, ...]:
    """The inverse of `charts_to_json`."""
    return tuple(_CHARTS.validate_python(data))


@dataclass(frozen=True)
class CaseResult:
    """The result of one test.

    test: node id. question: first line of its docstring. message: why it did not pass.
    culprit: the culprit if no measurement names one; its nodes are as in
    `MeasurementRecord`. nodes: where it ran.
    charts: curves, matrices, timelines and so on; recorded, never judged. paths: rates of all
    paths, which the certificate writes only in its coverage. facts: installed versions and settings
    of nodes, which the certificate writes only in `installed`. promises: keys of the spec that it
    requested. recorded: values of its `record_property` calls, never judged.
    stopped_by: None for a test that ended by itself. by_bounds: whether nothing but measurements
    kept it from passing. lacks: the key of the spec for lack of which it is not promised; None if
    it names none.
    """

    test: str
    question: str
    outcome: Outcome
    message: str = ""
    culprit: str | None = None
    measurements: tuple[RecordedMeasurement, ...] = ()
    nodes: tuple[str, ...] = ()
    duration_s: float | None = None
    charts: tuple[RecordedChart, ...] = ()
    paths: Annotated[tuple[PathRates, ...], Field(exclude=True)] = ()
    facts: Annotated[tuple[Fact, ...], Field(exclude=True)] = ()
    promises: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    culprit_nodes: tuple[str, ...] = ()
    culprit_either: tuple[tuple[str, ...], ...] = ()
    culprit_parts: Parts | None = None
    stopped_by: StoppedBy | None = None
    by_bounds: bool = False
    lacks: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def verdict(self) -> CriterionVerdict:
        """Fail before inconclusive; pass only for a test that passed with nothing unmeasured.

        A test that only recorded values, none of which could be measured, does not pass.
        """
        verdicts = {m.verdict for m in self.measurements}
        if self.outcome == "failed" or Verdict.FAIL in verdicts:
            return CriterionVerdict.FAIL
        if Verdict.INCONCLUSIVE in verdicts:
            return CriterionVerdict.INCONCLUSIVE
        if self.outcome == "not promised":
            return CriterionVerdict.NOT_PROMISED
        unread = verdicts == {None} and self.unread
        passed = self.outcome == "passed" and not unread
        return CriterionVerdict.PASS if passed else CriterionVerdict.INCONCLUSIVE

    @property
    def judges(self) -> bool:
        """Whether its passing says something about a promise: it judged a value or, as a test that
        only asserts, it asked for a key of the spec, which promises its question."""
        if not self.measurements:
            return bool(self.promises)
        return any(one.verdict is not None for one in self.measurements)

    @property
    def unread(self) -> str:
        """Its values, if it only recorded values and none of them could be measured; else ""."""
        if any(m.verdict is not None or m.known is not None for m in self.measurements):
            return ""
        return "; ".join(
            f"{m.name} not measured{': ' * bool(m.note)}{m.note}" for m in self.measurements
        )

    @property
    def own_culprit(self) -> Culprit | None:
        """The culprit of the test itself, which counts if no measurement has one."""
        if self.culprit is None:
            return None
        return Culprit(self.culprit, self.culprit_nodes, self.culprit_either, self.culprit_parts)

    @property
    def stopped(self) -> bool:
        """Whether it shows nothing of its nodes: another test failed, which names the culprit, or
        the run was interrupted."""
        known = self.verdict is CriterionVerdict.FAIL or self.outcome != "error"
        return not known and self.stopped_by is not None

    @property
    def worst(self) -> Measurement | None:
        """The measurement that decided the verdict; None if none did."""
        verdict = self.verdict
        decisive = [m for m in self.measurements if _has(m, verdict)]
        return min(decisive, key=_relative_margin, default=None)

    @property
    def summary(self) -> str:
        """The value that decided, in few words, else why the test did not pass."""
        if (worst := self.worst) is None:
            return first_line(self.message) or first_line(self.unread) or self.outcome
        why = worst.doubt or worst.note if worst.verdict is Verdict.INCONCLUSIVE else ""
        why = f": {why}" if why else ""
        return first_line(f"{worst.name} {worst.measured}{why}")


@dataclass(frozen=True)
class CriterionResult:
    """One question of the suite: its cases, and whether the spec promises it.

    not_promised: the spec's reason not to promise it; it is then not judged, whatever ran.
    A criterion that the spec does not mention is neither: it is judged if it judged a value.
    not_rehearsed: why a rehearsal has no values of it; None for a run on nodes.
    """

    name: str
    promised: bool
    not_promised: str | None = None
    cases: tuple[CaseResult, ...] = ()
    not_rehearsed: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def verdict(self) -> CriterionVerdict:
        """The worst verdict of its promised cases.

        A promised criterion without a promised case did not run. If its cases passed and none of
        them judged anything, it does not pass: it is inconclusive if it is promised.
        """
        if self.not_promised is not None:
            return CriterionVerdict.NOT_PROMISED
        if self.not_rehearsed is not None:
            return CriterionVerdict.NOT_REHEARSED
        if judged := self.judged:
            worst = min((case.verdict for case in judged), key=_WORST_FIRST.__getitem__)
            if worst is not CriterionVerdict.PASS or any(case.judges for case in judged):
                return worst
            return CriterionVerdict.INCONCLUSIVE if self.promised else CriterionVerdict.NOT_PROMISED
        left_open = self.cases and not self.promised
        return CriterionVerdict.NOT_PROMISED if left_open else CriterionVerdict.DID_NOT_RUN

    @property
    def excuse(self) -> str | None:
        """Why it is not judged, whatever ran; None if it is."""
        return self.not_promised if self.not_promised is not None else self.not_rehearsed

    @property
    def judged(self) -> tuple[CaseResult, ...]:
        """The cases that are promised."""
        return tuple(c for c in self.cases if c.verdict is not CriterionVerdict.NOT_PROMISED)

    @property
    def silence(self) -> str:
        """Why it did not pass although its cases did; "" if it passed, or they did not."""
        if self.excuse is not None or self.verdict is CriterionVerdict.PASS:
            return ""
        passed = {case.verdict for case in self.judged} == {CriterionVerdict.PASS}
        return "its tests judged no value" if passed else ""

    @property
    def deciding(self) -> tuple[CaseResult, ...]:
        """The cases that have the criterion's verdict; () if it was not judged."""
        verdict = self.verdict  # computed once: there are thousands of cases
        return tuple(c for c in self.cases if c.verdict is verdict)

    @property
    def worst(self) -> CaseResult | None:
        """The case to show: the deciding one with the least margin, else one without a margin."""

        def rank(case: CaseResult) -> tuple[bool, float]:
            worst = case.worst
            return (True, 0.0) if worst is None else (False, _relative_margin(worst))

        return min(self.deciding, key=rank, default=None)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headline(self) -> CriterionHeadline:
        """The finding that answers its question; the failing or unknown one if it did not pass."""
        if self.excuse is not None:
            return CriterionHeadline(first_line(self.excuse))
        if self.verdict is CriterionVerdict.PASS:
            values = [m for case in self.judged for m in case.measurements]
            return answered(values, [case.nodes for case in self.judged])
        if (case := self.worst) is None:
            return CriterionHeadline(self.silence)
        if (worst := case.worst) is None or worst.expected is None:
            return CriterionHeadline(case.summary, case.question)
        return said(worst, case.summary if worst.verdict is Verdict.INCONCLUSIVE else "")

    @property
    def culprits(self) -> tuple[str, ...]:
        """The culprits, each once; () if it passed.

        Suspects are left out where each may be the victim of a node that is to blame for sure: the
        paths to a slow node are slow.
        """
        if self.verdict is CriterionVerdict.PASS:
            return ()
        named = [
            Culprit.of(one)
            for case in self.deciding
            for one in (
                *(m.culprit for m in case.measurements if _has(m, case.verdict)),
                case.own_culprit,
            )
            if one
        ]
        sure = frozenset(node for one in named for node in one.nodes)
        shown = (
            one_line(one)
            for one in named
            if one.nodes or not one.either or not all(map(sure.intersection, one.either))
        )
        return tuple(dict.fromkeys(shown))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def detects(self) -> tuple[str, ...]:
        """Its detection limits (99 %): of its weakest bounds, and of all its calls."""
        weakest: dict[str, tuple[float, str]] = {}
        calls = 0
        for one in (m for case in self.judged for m in case.measurements):
            if one.detection is None or one.expected is None:
                continue
            if one.detection.kind == "wrong":
                calls += one.detection.repeats
                continue
            found = one.detection.share, f"{one.detection.text} ({one.name})"
            weakest[one.detection.kind] = max(found, weakest.get(one.detection.kind, found))
        wrong = smallest_share_wrong(calls)
        every = [f"{wrong.text} (of {calls} checked)"] if wrong else []
        return (*(text for _, text in weakest.values()), *every)

    @property
    def reason(self) -> str | None:
        """Why this criterion prevents a certificate; None if it does not."""
        match self.verdict:
            case CriterionVerdict.DID_NOT_RUN:
                return f"{self.name} did not run"
            case CriterionVerdict.FAIL:
                verdict = f"{self.name} failed"
            case CriterionVerdict.INCONCLUSIVE:
                verdict = f"{self.name} inconclusive"
            case _:
                return None
        met = first_line(self.worst.summary) if self.worst else self.silence
        return f"{verdict} ({', '.join(self.culprits) or met})"


def criterion_name(test: str) -> str:
    """The criterion a node id belongs to: "acceptance/test_fabric.py::test_x[4]" is "fabric"."""
    return PurePosixPath(test.partition("::")[0]).stem.removeprefix("test_")


def _has(measurement: Measurement, verdict: CriterionVerdict) -> bool:
    return measurement.verdict is not None and measurement.verdict.value == verdict.value


def _relative_margin(measurement: Measurement) -> float:
    """Sort key, worst first: a broken exact bound is first, a kept exact bound last."""
    if measurement.margin is None or measurement.expected is None or measurement.value is None:
        return 0.0
    relative = measurement.expected.relative_margin(measurement.value)
    if relative is not None:
        return relative
    return math.copysign(math.inf, measurement.margin)
