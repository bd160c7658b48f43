"""The certificate of a run: its verdict follows from its criteria and is never stored. So do the
chance that it accuses a healthy cluster, and the buyer's clauses that its tests answer."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from statistics import NormalDist
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticSerializationError

from pytest_mnode.certificate.coverage import Coverage, coverage_of, merged
from pytest_mnode.certificate.history import History
from pytest_mnode.certificate.results import (
    CaseResult,
    CriterionResult,
    CriterionVerdict,
    criterion_name,
)
from pytest_mnode.certificate.run_facts import RunFacts, UtcTime
from pytest_mnode.detection import PROBABILITY
from pytest_mnode.installed import Fact
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import Measurement, listed

_AT_ONCE = 1 - PROBABILITY
"""Chance that noise alone takes a value across its bound from the end of its interval."""
_MANY = 30
"""So many intervals of two degrees of freedom each, or more, show their noise to a tenth."""
_ERRORS = NormalDist().inv_cdf(PROBABILITY)
"""Half an interval is at least so many standard errors: with few repeats it is some times more."""


@dataclass(frozen=True)
class Family:
    """The judgements of one criterion that rest on noise.

    judgements: their number. chance: that noise breaks any of their bounds, at most: the sum of
    their chances (Bonferroni), and 1 at most.
    """

    criterion: str
    judgements: int
    chance: float


@dataclass(frozen=True)
class FalseAlarms:
    """The judgements of a certificate that rest on noise, by criterion.

    A healthy cluster is one as good as this one where it kept its bound, and one that just keeps
    it elsewhere. Exact judgements, such as counts, add nothing.
    """

    families: tuple[Family, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def judgements(self) -> int:
        """Number of judgements that rest on noise."""
        return sum(one.judgements for one in self.families)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def chance(self) -> float:
        """Chance that a healthy cluster fails any of them, at most."""
        return min(1.0, sum(one.chance for one in self.families))

    @property
    def text(self) -> str:
        """The chance of the whole and of each family; "" if no judgement rests on noise."""
        if not self.families:
            return ""
        each = ", ".join(
            f"{one.criterion} {_percent(one.chance)} of {one.judgements}" for one in self.families
        )
        several = "judgements that rest" if self.judgements > 1 else "judgement that rests"
        return (
            f"a healthy cluster fails with a chance of {_percent(self.chance)} at most, by "
            f"{self.judgements} {several} on noise ({each})"
        )


def false_alarms(criteria: Sequence[CriterionResult]) -> FalseAlarms:
    """The chances of all judged values of these criteria."""
    return FalseAlarms(tuple(_families(criteria)))


def _families(criteria: Sequence[CriterionResult]) -> Iterator[Family]:
    for criterion in criteria:
        chances = [chance for case in criterion.judged for chance in _chances(case.measurements)]
        if chances:
            yield Family(criterion.name, len(chances), min(1.0, sum(chances)))


def _chances(of_case: Iterable[Measurement]) -> Iterator[float]:
    """Chances of the values of one test that rest on noise, at most.

    Few repeats do not show how far the noise of a value reaches, so that thousands of values would
    add up to certainty. Many values with one bound show it together: their noise is normal, by the
    root mean square of their intervals. An interval counts by itself that is so much longer that
    chance makes it so in 1 of 100 certificates, of three repeats.
    """
    alike = defaultdict[tuple[float, str], list[Measurement]](list)
    for one in of_case:
        if one.expected is not None:
            alike[one.expected.limit, one.unit].append(one)
    for those in alike.values():
        halves = [half for one in those if (half := _half_interval(one))]
        usual = math.hypot(*halves) / math.sqrt(len(halves)) if len(halves) >= _MANY else None
        # The square of the deviation of three normal values is exponential.
        by_chance = math.sqrt(math.log(len(halves) / _AT_ONCE)) if halves else 1.0
        for one in those:
            chance = chance_of(one)
            if chance is not None and usual and (own := _half_interval(one)):
                error = max(own / by_chance, usual) / _ERRORS
                chance = min(chance, NormalDist().cdf(-max(0.0, one.margin or 0.0) / error))
            if chance is not None:
                yield chance


def _half_interval(one: Measurement) -> float | None:
    """The longer part of a value's interval; None if it has none."""
    if one.interval is None or one.known is None:
        return None
    return max(abs(end - one.known) for end in one.interval)


def chance_of(one: Measurement) -> float | None:
    """Chance that noise breaks the bound of a healthy cluster, at most; None for exact values.

    At the bound it is what its judge says (`Measurement.false_alarm`), else 1 of 100. The distance
    of a value from its bound makes it smaller, in units of the longer part of its interval, or of
    what its noise exceeds in 1 of 100 cases: by the square, as the tail of Student's t with two
    degrees of freedom falls, which three repeats have; that of more repeats falls faster.
    """
    if one.expected is None:
        return None
    at_bound = _AT_ONCE if one.false_alarm is None else one.false_alarm
    margin = max(0.0, one.margin or 0.0)
    if (half := _half_interval(one)) is not None:
        # A value breaks its bound if its whole interval does.
        return at_bound / (1 + margin / half) ** 2 if half else 0.0
    if one.false_alarm is not None:
        return one.false_alarm
    blur = one.detection.blur if one.detection else None
    if blur is None or one.known is None:
        return None
    noise = blur * abs(one.known)
    if not noise:
        return 0.0
    return min(0.5, _AT_ONCE * (noise / margin) ** 2) if margin else 0.5


def _percent(share: float) -> str:
    if share < 1e-4:
        return "less than 0.01 %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


_WORST_FIRST = (
    CriterionVerdict.FAIL,
    CriterionVerdict.INCONCLUSIVE,
    CriterionVerdict.DID_NOT_RUN,
    CriterionVerdict.NOT_REHEARSED,
    CriterionVerdict.NOT_PROMISED,
    CriterionVerdict.PASS,
)


@dataclass(frozen=True)
class Clause:
    """A clause of a buyer's list, which names promises by their keys. It is kept only if each of
    them was judged and kept: of a clause about two promises, one of which the spec does not make,
    nobody knows half.

    keys: of its promises. open: those that no test answered. tests: ids of the tests that did.
    """

    name: str
    keys: tuple[str, ...]
    verdict: CriterionVerdict
    open: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        left = f" ({', '.join(self.open)} not judged)" if self.open else ""
        return f"{self.name} {self.verdict.value}{left}"


def clauses_of(
    requirements: Mapping[str, Sequence[str]],
    criteria: Sequence[CriterionResult],
    page: Mapping[str, Any],
) -> tuple[Clause, ...]:
    """Clauses by what a run found. requirements: keys by clause. page: the spec, all its values."""
    return tuple(_clause(name, tuple(keys), criteria, page) for name, keys in requirements.items())


def asks_for(case: CaseResult, criterion: str, key: str) -> bool:
    """Whether a test is about the promise `key`, or about a part of it.

    A test of fabric.all_reduce_busbw answers for fabric, and for a key below that; one that asks
    for the whole criterion does not answer for a key of it.
    """
    if key == criterion:
        return True
    asked = [case.lacks, *case.promises]
    return any(
        one == key or one.startswith(f"{key}.") or ("." in one and key.startswith(f"{one}."))
        for one in asked
        if one
    )


def _clause(
    name: str,
    keys: tuple[str, ...],
    criteria: Sequence[CriterionResult],
    page: Mapping[str, Any],
) -> Clause:
    found = {key: tuple(_answers(key, criteria)) if _is_promised(key, page) else () for key in keys}
    return Clause(
        name,
        keys,
        _worst(_verdict(key, cases, criteria) for key, cases in found.items()),
        tuple(key for key, cases in found.items() if not cases),
        tuple(dict.fromkeys(case.test for cases in found.values() for case in cases)),
    )


def _is_promised(key: str, page: Mapping[str, Any]) -> bool:
    """Whether a spec has the key: a test of preflight.versions judges only what it promises."""
    value: Any = page.get("criteria", {})
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None


def _answers(key: str, criteria: Sequence[CriterionResult]) -> Iterator[CaseResult]:
    """The tests about a promise that were judged."""
    for criterion in criteria:
        if criterion.name == key.partition(".")[0] and criterion.excuse is None:
            yield from (one for one in criterion.judged if asks_for(one, criterion.name, key))


def _verdict(
    key: str, cases: Sequence[CaseResult], criteria: Sequence[CriterionResult]
) -> CriterionVerdict:
    whole = (
        one.verdict for one in criteria if one.name == key
    )  # such as: its tests judged nothing
    return _worst([*(case.verdict for case in cases), *(whole if cases else ())])


def _worst(verdicts: Iterable[CriterionVerdict]) -> CriterionVerdict:
    """The worst of verdicts; not promised if there are none."""
    return min(verdicts, key=_WORST_FIRST.index, default=CriterionVerdict.NOT_PROMISED)


_TITLE = "Certificate of a training cluster"
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
_CONSISTENT: dict[str, Any] = {
    "if": {"properties": {"verdict": {"const": "certified"}}},
    "then": {"properties": {"expiry": _TIME, "reasons": {"maxItems": 0}}},
    "else": {"properties": {"expiry": {"type": "null"}, "reasons": {"minItems": 1}}},
}
"""Only a certified run has an expiry and no reasons."""


SCHEMA_VERSION: Final = 5
"""Of certificate.json. Readers ignore keys that they do not know, so that a new key is no new
version; changing or removing one is. `files.READ_VERSIONS` are read."""


class CertificateVerdict(StrEnum):
    """The outcome of a run, worst first: the first that applies is the verdict.

    not certified: a criterion failed.
    incomplete: a promised criterion did not run, the run was cut short, a test of a criterion was
    left out or ran more than once, or nothing is promised.
    inconclusive: a criterion could not be judged.
    rehearsal: none of these applies, but all values come from a virtual cluster.
    partly certified: none of these applies, but some nodes of the cluster have no unexpired pass,
    or no path was measured between some of them and the others, or a path failed when it was last
    measured.
    certified: every promised criterion and every other that ran passed, every node of the cluster
    has an unexpired pass, and measured paths, if there are any, connect all nodes.
    """

    NOT_CERTIFIED = "not certified"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"
    REHEARSAL = "rehearsal"
    PARTLY_CERTIFIED = "partly certified"
    CERTIFIED = "certified"


@dataclass(frozen=True, config=ConfigDict(title=_TITLE, json_schema_extra=_CONSISTENT))
class Certificate:
    """All verdicts of a run, with the data that they were judged on."""

    run: RunFacts
    criteria: tuple[CriterionResult, ...]
    coverage: Coverage
    installed: tuple[Fact, ...] = ()
    """Installed versions and settings of this run's nodes; empty if preflight did not read them."""
    history: History | None = None
    """None for a run without --mnode-history."""
    schema_version: Literal[5] = SCHEMA_VERSION
    read_version: Annotated[int, Field(exclude=True)] = SCHEMA_VERSION
    """The schema version of the file that it was read from."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> CertificateVerdict:
        """See `CertificateVerdict` for the order. Only `CERTIFIED` certifies."""
        found = {c.verdict for c in self.criteria}
        if CriterionVerdict.FAIL in found:
            return CertificateVerdict.NOT_CERTIFIED
        promises = any(c.promised for c in self.criteria)
        if CriterionVerdict.DID_NOT_RUN in found or self.run.incomplete or not promises:
            return CertificateVerdict.INCOMPLETE
        if CriterionVerdict.INCONCLUSIVE in found:
            return CertificateVerdict.INCONCLUSIVE
        if self.run.rehearsal is not None:
            return CertificateVerdict.REHEARSAL
        cover = self.coverage
        whole = cover.all_passed and len(cover.parts) < 2 and not cover.failed_paths
        return CertificateVerdict.CERTIFIED if whole else CertificateVerdict.PARTLY_CERTIFIED

    @computed_field  # type: ignore[prop-decorator]
    @property
    def false_alarms(self) -> FalseAlarms:
        """The judgements that rest on noise, and the chance that they fail a healthy cluster."""
        return false_alarms(self.criteria)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def requirements(self) -> tuple[Clause, ...]:
        """The buyer's clauses that the spec names, each with its verdict."""
        page = self.run.spec.page
        return clauses_of(page.get("requirements", {}), self.criteria, page)

    @property
    def kept(self) -> bool:
        """Whether the run kept every promise on the nodes that it tested."""
        return self.verdict in (CertificateVerdict.CERTIFIED, CertificateVerdict.PARTLY_CERTIFIED)

    @property
    def count(self) -> str:
        """How much of the cluster has an unexpired pass, such as "2 of 16 nodes"."""
        passed = self.coverage.nodes_by_state.passed
        if self.run.cluster_nodes is None:
            return f"{count(passed)} (the spec names no number)"
        return f"{passed} of {count(self.coverage.total_nodes)}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def expiry(self) -> UtcTime | None:
        """When the first pass of a certified cluster expires; None if it is not certified."""
        return self.until if self.verdict is CertificateVerdict.CERTIFIED else None

    @property
    def until(self) -> datetime:
        """When the first pass of a node expires; if none has one, when the run's validity ends."""
        return self.coverage.until or self.run.from_end(1)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons why the run is not certified, in the order of verdicts."""

        def of(verdict: CriterionVerdict) -> list[str]:
            return [c.reason for c in self.criteria if c.verdict is verdict and c.reason]

        missing = [*self.run.incomplete]
        if not any(c.promised for c in self.criteria):
            missing.append("the spec promises nothing")
        if self.verdict is CertificateVerdict.PARTLY_CERTIFIED:
            missing += self._only_partly()
        return (
            *of(CriterionVerdict.FAIL),
            *of(CriterionVerdict.DID_NOT_RUN),
            *missing,
            *of(CriterionVerdict.INCONCLUSIVE),
            *(
                [f"every value is from {self.run.rehearsal}"]
                if self.run.rehearsal is not None
                else []
            ),
        )

    def _only_partly(self) -> Iterator[str]:
        if not self.coverage.total_nodes:
            yield "no node was tested"
        elif not self.coverage.all_passed:
            yield f"not every node has a pass: {self.coverage.nodes_in_words()}"
        if len(parts := self.coverage.parts) > 1:
            yield f"no path was measured between {listed(map(compress, parts), 4, ' and ')}"
        if self.coverage.failed_paths:
            yield f"not every path has passed: {self.coverage.paths_in_words()}"


def build_certificate(
    *,
    run: RunFacts,
    cases: Sequence[CaseResult],
    promised: Sequence[str],
    not_promised: Mapping[str, str],
    earlier: Sequence[Coverage] = (),
    not_rehearsed: Mapping[str, str] | None = None,
) -> Certificate:
    """The certificate of a run, with promised criteria first, then others that ran, then the rest.

    `not_promised` maps a criterion to the spec's reason. A criterion that is in both is promised.
    earlier: coverage by earlier runs of the same cluster against the same spec. not_rehearsed: maps
    promised criteria of which a rehearsal has no values to the reason.
    """
    grouped: dict[str, list[CaseResult]] = {name: [] for name in promised}
    for case in cases:
        grouped.setdefault(criterion_name(case.test), []).append(case)
    excused = {name: why for name, why in not_promised.items() if name not in promised}
    judged = [name for name in grouped if name not in excused]
    criteria = tuple(
        CriterionResult(
            name,
            name in promised,
            excused.get(name),
            tuple(grouped.get(name, ())),
            (not_rehearsed or {}).get(name),
        )
        for name in (*judged, *excused)
    )
    found = coverage_of(run, criteria)
    if run.cluster_nodes is not None and len(found.nodes) >= run.cluster_nodes:
        earlier = [_without_others(one, found) for one in earlier]
    coverage = merged(found, earlier, run.end, run.from_end(-1))
    facts = [fact for case in cases for fact in case.facts]
    return Certificate(run, criteria, coverage, tuple(facts))


def _without_others(earlier: Coverage, now: Coverage) -> Coverage:
    """Earlier coverage of the nodes of `now`, which names as many nodes as the cluster has: others
    have left it, or have another name now."""
    names = {node.name for node in now.nodes}
    nodes = tuple(node for node in earlier.nodes if node.name in names)
    blocks = (replace(block, rates=block.rates.of(names)) for block in earlier.paths)
    return Coverage(nodes, paths=tuple(block for block in blocks if block.rates.nodes))


_ADAPTER: TypeAdapter[Certificate] = TypeAdapter(Certificate)


def certificate_json(certificate: Certificate) -> dict[str, Any]:
    """Plain values for certificate.json."""
    data: dict[str, Any] = _ADAPTER.dump_python(certificate, mode="json")
    return data


def certificate_text(certificate: Certificate) -> str:
    """The same as text, indented: of a thousand nodes it has 80 MB, a third as long to write so."""
    try:
        return _ADAPTER.dump_json(certificate, indent=2).decode()
    except PydanticSerializationError:  # text that is no UTF-8, which a file has with "?"
        return json.dumps(certificate_json(certificate), indent=2, ensure_ascii=False)


def certificate_schema() -> dict[str, Any]:
    """JSON Schema of certificate.json, from the models: all keys are required, others allowed."""
    schema = _ADAPTER.json_schema(mode="serialization")
    for described in (schema, *schema["$defs"].values()):
        if properties := described.get("properties"):
            described |= {"required": list(properties)}
            for one in properties.values():
                one.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
