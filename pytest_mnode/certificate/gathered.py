"""What a run has shown so far, as its evidence keeps it, and the certificate of that.

A run and `python -m pytest_mnode certificate` make their certificates here, from the same values.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_mnode.certificate.certificate import Certificate, build_certificate
from pytest_mnode.certificate.coverage import Coverage
from pytest_mnode.certificate.results import (
    CaseResult,
    Outcome,
    charts_from_json,
    criterion_name,
    measurements_from_json,
    measurements_to_json,
)
from pytest_mnode.certificate.run_facts import RunFacts
from pytest_mnode.certificate.text import Recorded
from pytest_mnode.criteria.preflight import answers as answers_of_nodes
from pytest_mnode.criteria.preflight import environment
from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.environment import RankEnvironment, Ranks
from pytest_mnode.criteria.soak.found import KEY as SOAK
from pytest_mnode.criteria.soak.found import kept_in
from pytest_mnode.criteria.soak.judging import judge
from pytest_mnode.errors import UsageError
from pytest_mnode.evidence import file
from pytest_mnode.evidence.check import Place
from pytest_mnode.evidence.row import MeasuredRows, Row
from pytest_mnode.installed import Installed, RequestedKeys
from pytest_mnode.machine.encoding import decode
from pytest_mnode.path_rates import PathRates
from pytest_mnode.spec.soak import SoakCriterion

KILLED = "interrupted (its controller wrote no end of the run)"
_CUT_OFF = "the test was interrupted before it ended"
_SILENT = "not promised by the spec"


@dataclass(slots=True)
class CaseRecord:
    """What is known of a test so far.

    culprit: as `Culprit.record`. facts: as `report_record.describe` attaches them. phases: those
    that were reported, in order. reruns: runs after which a plugin announced another. stopped:
    whether the failure of another test stopped it. by_bounds: whether nothing but measurements kept
    it from passing so far.
    """

    outcome: Outcome = "passed"
    message: str = ""
    culprit: dict[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    recorded: tuple[Recorded, ...] = ()
    stopped: bool = False
    by_bounds: bool = True
    lacks: str | None = None
    reruns: int = 0

    @property
    def ran(self) -> bool:
        """Whether its body was run: a plugin may report a test as passed that it never ran."""
        return self.outcome != "passed" or bool(self.facts.get("runs"))

    @property
    def repeated(self) -> bool:
        """Whether it ran more than once, besides the reruns that a plugin announced.

        A plugin may report one of several runs only, such as the one that passed.
        """
        recorded: int = self.facts.get("runs", 0)
        return max(self.phases.count("setup"), recorded) - self.reruns > 1

    def result(self, test: str) -> CaseResult:
        """Of a test that passed so far, and has not ended, the end is unknown: pytest does not
        report a phase that Ctrl-C ends."""
        cut_off = self.outcome == "passed" and not {"call", "teardown"} <= set(self.phases)
        charts = charts_from_json(self.facts.get("charts", ()))
        beside = PathRates | Installed | RequestedKeys | MeasuredRows
        return CaseResult(
            test=test,
            question=self.facts.get("question", ""),
            outcome="error" if cut_off else self.outcome,
            message=_CUT_OFF if cut_off else self.message,
            **self.culprit,
            measurements=measurements_from_json(self.facts.get("measurements", ())),
            charts=tuple(one for one in charts if not isinstance(one, beside)),
            paths=tuple(one for one in charts if isinstance(one, PathRates)),
            promises=tuple(k for one in charts if isinstance(one, RequestedKeys) for k in one.keys),
            facts=tuple(f for one in charts if isinstance(one, Installed) for f in one.facts),
            nodes=tuple(self.facts.get("nodes", ())),
            duration_s=self.duration_s,
            recorded=self.recorded,
            stopped_by="interruption" if cut_off else "failure" if self.stopped else None,
            by_bounds=self.by_bounds and self.outcome in ("failed", "error"),
            lacks=self.lacks,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, without empty ones."""
        plain: dict[str, Any] = _RECORD.dump_python(self, mode="json", exclude_defaults=True)
        measured = [_short(one) for one in self.facts.get("measurements", ())]
        facts = {k: v for k, v in {**self.facts, "measurements": measured}.items() if v}
        return {**plain, "facts": facts}


_RECORD: TypeAdapter[CaseRecord] = TypeAdapter(CaseRecord)


def _short(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement in JSON without what follows from it, and without empty values."""
    own = {k: v for k, v in measurement.items() if k not in {"verdict", "margin"}}
    if own.get("expected"):
        own["expected"] = {k: v for k, v in own["expected"].items() if v or k == "limit"}
    return {k: v for k, v in own.items() if k in {"value", "unit"} or v not in (None, "", [], ())}


@dataclass(slots=True)
class Gathered:
    """A run so far. promised, not_promised: by its spec; see `build_certificate`."""

    run: RunFacts
    promised: tuple[str, ...]
    not_promised: dict[str, str]
    cases: dict[str, CaseRecord] = field(default_factory=dict)

    def certificate(self, earlier: Sequence[Coverage] = ()) -> Certificate:
        """earlier: as for `build_certificate`."""
        cases = [record.result(test) for test, record in self.cases.items()]
        silent = _skipped_whole(cases) - set(self.promised)
        return build_certificate(
            run=self.run,
            cases=cases,
            promised=self.promised,
            not_promised={**dict.fromkeys(silent, _SILENT), **self.not_promised},
            earlier=earlier,
        )

    def run_to_json(self) -> dict[str, Any]:
        """Plain values of all but the cases."""
        run = _FACTS.dump_python(self.run, mode="json")
        return {"facts": run, "promised": self.promised, "not_promised": self.not_promised}


_FACTS: TypeAdapter[RunFacts] = TypeAdapter(RunFacts)


def _skipped_whole(cases: Sequence[CaseResult]) -> set[str]:
    """Criteria whose tests were all skipped."""
    ran = {criterion_name(c.test) for c in cases if c.outcome not in ("skipped", "not promised")}
    return {criterion_name(case.test) for case in cases} - ran


@dataclass(frozen=True, slots=True)
class FromEvidence:
    """The certificate of a run, from its evidence.

    tests, rows: numbers of tests that had begun, and of rows that checks read. torn_bytes: of a
    last row without an end, which was ignored. ended: whether the run itself ended.
    """

    certificate: Certificate
    tests: int
    rows: int
    torn_bytes: int
    ended: bool


def _add_killed_soak(cases: Mapping[str, CaseRecord], rows: Sequence[Row], facts: RunFacts) -> None:
    """Give a soak whose controller was killed the measurements of its whole rounds."""
    kept, page = kept_in(rows), facts.spec.page.get("criteria", {}).get(SOAK)
    promise = SoakCriterion.model_construct(**page) if page else None
    shared = facts.emulated is not None
    for test, record in cases.items():
        if criterion_name(test) == SOAK and not record.facts and kept.rounds:
            found = judge(kept.rounds, promise, for_s=kept.asked_s, cut=KILLED, shared=shared)
            record.facts = {"measurements": measurements_to_json(found)}


@dataclass(slots=True)
class Kept:
    """What was read in a run. rows: that tests measured, by the test, and of other checks. nodes:
    what the survey found on them. ranks: their environments, or `why` not."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    nodes: dict[str, NodeSurvey] = field(default_factory=dict)
    ranks: dict[int, RankEnvironment] = field(default_factory=dict)
    why: str = ""

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row of the file. Raises UsageError for one that is none."""
        answers = json.dumps(values.get("answers"))
        try:
            match values.get("check"):
                case answers_of_nodes.KEPT:
                    node = decode(NodeSurvey, answers)
                    self.nodes[node.name] = node
                case environment.KEPT if "why" in values:
                    self.why = str(values["why"])
                case environment.KEPT:
                    rank = decode(RankEnvironment, answers)
                    self.ranks[rank.number] = rank
                case _:
                    check, row = file.rows_from_json(values)
                    self.rows.setdefault(check, []).append(row)
        except ValueError as error:
            first = " ".join(str(error).split())[:200]
            raise UsageError(f"a row of {file.NAME}: {first}") from None

    def has(self, on: Place) -> bool:
        """Whether anything of nodes, or of ranks, is there."""
        return bool(self.nodes) if on == "node" else bool(self.ranks or self.why)

    def survey(self, names: Sequence[str]) -> Survey | None:
        """The survey of these nodes; None if one of them is not there."""
        there = all(name in self.nodes for name in names)
        return Survey(tuple(self.nodes[name] for name in names)) if there else None

    def environments(self, names: Sequence[str], ranks: int) -> Ranks | None:
        """Those of all ranks; None if one is not there."""
        every = sorted(self.ranks.items())
        if not self.why and [number for number, _ in every] != [*range(ranks)]:
            return None
        return Ranks(names, tuple(rank for _, rank in every), self.why)


def kept_of(directory: Path, run: RunFacts) -> Kept:
    """What a run read, from the evidence in the directory of its report; nothing if that has none,
    or that of another run, or lacks the end of a run that ended. Raises UsageError, one line, for
    damaged evidence."""
    path, kept, same, kind = directory / file.NAME, Kept(), False, ""
    with _one_line(path):
        for values in file.read(path) if path.is_file() else ():
            kind = values["kind"]
            match kind:
                case file.RUN:
                    same = same or _FACTS.validate_python(values["facts"]).start == run.start
                case file.ROWS:
                    kept.add(values)
                case file.TEST:
                    charts = charts_from_json(values["record"]["facts"].get("charts", ()))
                    if measured := [one.rows for one in charts if isinstance(one, MeasuredRows)]:
                        kept.rows[values["test"]] = [*chain(*measured)]
    return kept if same and (kind == file.END or KILLED in run.cut_short) else Kept()


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Raise UsageError, one line, for values in a file that no run writes."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{path}: no {error}; accepted: the evidence of a run") from None
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {at}: {first['msg'].lower()}") from None
    except (AttributeError, OSError, OverflowError, TypeError, ValueError) as error:
        # Such as a number where a text is, or a time after the last year.
        why = " ".join(str(error).split())
        raise UsageError(f"{path}: {why}; accepted: the evidence of a run") from None


def certificate_from(path: Path) -> FromEvidence:
    """The certificate of the run whose evidence is in a file, or in the directory of its report.

    A run without an end was cut short where its last row was written; a test that had begun there
    was interrupted. Raises UsageError, one line, for a file that is no evidence of a run.
    """
    path = path / file.NAME if path.is_dir() else path
    cases: dict[str, CaseRecord | None] = {}
    rows = torn = 0
    last, run, kind, due = 0.0, dict[str, Any](), "", set[str]()
    soak = list[Row]()
    with _one_line(path):
        for values in file.read(path):
            kind, last = values["kind"], values.get("at", last)
            match kind:
                case file.RUN | file.END:
                    run = values
                case file.COLLECTED:
                    due = set(values["tests"])
                case file.BEGAN:
                    cases.setdefault(values["test"], None)
                case file.TEST:
                    cases[values["test"]] = _RECORD.validate_python(values["record"])
                case file.ROWS:
                    rows += 1
                    soak += [file.rows_from_json(values)[1]] if values.get("check") == SOAK else []
                case file.TORN:
                    torn = values["bytes"]
        facts = _FACTS.validate_python(run["facts"])
        if not (ended := kind == file.END):
            until = max(datetime.fromtimestamp(last, UTC), facts.start)
            not_run = tuple(sorted(due - cases.keys() - set(facts.manifest.removed)))
            facts = replace(
                facts,
                end=until,
                cut_short=(*facts.cut_short, KILLED),
                manifest=replace(facts.manifest, not_run=not_run),
            )
        begun = {t: one or CaseRecord() for t, one in cases.items() if one or not ended}
        _add_killed_soak(begun, soak, facts)
        gathered = Gathered(facts, tuple(run["promised"]), run["not_promised"], begun)
        return FromEvidence(gathered.certificate(), len(begun), rows, torn, ended)
