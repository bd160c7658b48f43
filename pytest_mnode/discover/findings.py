"""Check of the nodes against the page drafted from them, by preflight's checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec


@dataclass(frozen=True, slots=True)
class Findings:
    """Failed and inconclusive measurements, one line each; measured: number of all measurements."""

    broken: tuple[str, ...]
    unknown: tuple[str, ...]
    measured: int

    def paragraphs(self) -> Iterator[str]:
        """Paragraphs for the head of the page."""
        done = f"preflight was run with this page, and made {self.measured} measurements"
        if not self.broken and not self.unknown:
            yield f"Then {done}: all nodes meet it."
            return
        yield f"Then {done}. Measurements that failed, or could not be made:"
        yield from (f"- {line}" for line in self.broken)
        yield from (f"- could not be measured: {line}" for line in self.unknown)


def findings(survey: Survey, spec: Spec) -> Findings:
    """Judge each node from a survey that was made with this page."""
    broken, unknown, measured = [], [], 0
    checks = promised_checks(spec, (one for one in catalogue() if one.on == "node"))
    for node in survey.nodes:
        found = [measured for one in checks for measured in one.judge(survey, node.name)]
        measured += len(found)
        broken += [_line(m, node.name) for m in found if m.verdict is Verdict.FAIL]
        unknown += [_line(m, node.name) for m in found if m.verdict is Verdict.INCONCLUSIVE]
    return Findings(tuple(broken), tuple(unknown), measured)


def _line(one: Measurement, node: str) -> str:
    """Description of a measurement with the node that it concerns."""
    if one.value is None:
        return f"{one.name} on {node}: {one.note}"
    note = f" ({one.note})" if one.note else ""
    return f"{one.culprit or node}: {one.name} {one.measured}{note}"
