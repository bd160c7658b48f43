"""A job described, submitted, judged and recorded: what the launch criterion's tests do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.contract import (
    Expected,
    Wrong,
    leaked,
    missing_ranks,
    not_met,
    not_reported,
)
from pytest_mnode.criteria.launching.described import LaunchJob, read_job
from pytest_mnode.criteria.launching.devices import more_visible
from pytest_mnode.criteria.launching.paths import Outcome, SubmissionPath, Submitted, outside_names
from pytest_mnode.criteria.launching.variables import FACTS, wrong_variables
from pytest_mnode.errors import UsageError
from pytest_mnode.logs.causes import first_cause

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.launch import StartPromise

_SHOWN = 6
_TAIL_LINES = 15
_BY_TORCH = "--meet=torch"


@dataclass(frozen=True, slots=True)
class Started:
    """A job that ran, and what it had to find. `what` heads its measurements."""

    what: str
    job: LaunchJob
    expected: Expected
    submitted: Submitted
    outcome: Outcome

    @property
    def overdue(self) -> list[str]:
        """Nodes on which the job had not ended at its limit."""
        return [node for node, code in self.outcome.codes.items() if code is None]

    @property
    def late(self) -> str | None:
        """What to blame for a job that had not ended: the queue it is in, else those nodes."""
        return self.outcome.waits or ", ".join(self.overdue) or None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done otherwise than a reader would think, and what the scheduler says."""
        return (*self.submitted.notes, *filter(None, [self.outcome.waits]))

    def text(self) -> str:
        """For a reader of the report: who ran where as whom, and what else the nodes printed."""
        lines = [
            f"{self.what}: {self.expected.size} ranks on {', '.join(self.submitted.nodes)}, "
            f"{len(self.outcome.reports)} reported, {self.outcome.seconds:.1f} s",
            *self.notes,
            *self.logins(),
        ]
        failed = any(self.outcome.codes.values()) or self.overdue
        if failed and (cause := first_cause(self.outcome.output)):
            lines.append(cause.text)
        for node, output in self.outcome.output.items():
            rest = [line for line in output.splitlines() if not line.startswith("{")]
            lines += [f"{node}: {line}" for line in rest[-_TAIL_LINES:]]
        return "\n".join(lines)

    def logins(self) -> list[str]:
        """As whom the job ran, once for all nodes of which that is the same."""
        said: dict[str, list[str]] = {}
        for login in self.outcome.logins:
            why = f": {login.why}" if login.why else ""
            said.setdefault(f"ran as {login.user} (uid {login.uid}){why}", []).append(login.node)
        return [f"{line} [{', '.join(nodes)}]" for line, nodes in said.items()]

    def record(self, measure: Measure, promise: StartPromise, key: str) -> None:
        """Record all that is judged; key: of the spec, for sources."""
        self._record_ranks(measure, key)
        reports, expected = self.outcome.reports, self.expected
        _count(
            measure,
            f"{self.what}: variables wrong",
            wrong_variables(expected, reports),
            f"contract of {expected.style}",
            unread=not_reported(reports, FACTS),
            besides=more_visible(expected, reports),
        )
        _count(
            measure,
            f"{self.what}: variables leaked",
            leaked(expected, reports),
            "HOME, USER, PATH, LANG and the job's",
            unread=not_reported(reports, ["names"]),
        )
        measure(
            f"{self.what}: submission to end",
            None if self.overdue else self.outcome.seconds,
            "s",
            at_most=promise.within_s,
            source=f"{key}.within {promise.within_s:g} s",
            culprit=self.late,
            note="; ".join((*self.notes, *self.logins())),
        )

    def _record_ranks(self, measure: Measure, key: str) -> None:
        expected, outcome = self.expected, self.outcome
        short = missing_ranks(expected, outcome.reports)
        waits = outcome.waits
        measure(
            f"{self.what}: ranks that reported",
            len(outcome.reports) if not short or not self.overdue else None,
            equals=expected.size,
            source=f"{len(expected.nodes)} nodes × {expected.per_node}",
            culprit=waits or _first(short),
            note="" if waits else _all(short),
        )
        apart = not_met(expected, outcome.reports)
        sizes = [report.met.size for report in outcome.reports if report.met]
        measure(
            f"{self.what}: ranks that met all others",
            len(outcome.reports) - len(apart) if outcome.reports else None,
            equals=expected.size,
            source="a sum over all ranks",
            culprit=_first(apart),
            note=_all(apart) or "",
        )
        if sizes:
            measure(
                f"{self.what}: ranks in the smallest group that met",
                min(sizes),
                equals=expected.size,
                source="a sum of ones over all ranks",
                culprit=_first(apart),
                note=f"{expected.size} jobs of one rank" if max(sizes) == 1 < expected.size else "",
            )
        # Where one fails, the others often wait for it until the limit.
        failed = [f"{node} (exit {code})" for node, code in outcome.codes.items() if code]
        overdue = "" if waits else ", ".join(self.overdue)
        measure(
            f"{self.what}: nodes on which the job failed",
            None if self.overdue and not failed else len(failed),
            equals=0,
            source=key,
            culprit=", ".join(failed) or self.late,
            note=f"not over at the limit on {overdue}" if overdue else "",
        )


def job_of(
    style: str,
    promise: StartPromise,
    folder: Path,
    spec: Spec,
    nodes: int,
    *,
    every: int | None = None,
) -> LaunchJob:
    """The job of a style: the cluster's own, else ours of that folder; placed on so many nodes.

    every: for how many nodes `all` stands, where that is not `nodes`. Ours meet by torch on
    accelerators, whatever the style, and where the spec has none they use none. Raises UsageError
    for a job file that cannot be used.
    """
    path = Path(promise.job) if promise.job else folder / f"{style}.yaml"
    job = read_job(path)
    if job.style != style:
        raise UsageError(f"{path}: style: {job.style}; accepted: {style}, which it is named for")
    placed = job.placed(nodes, spec.accelerators.per_node, every=every)
    if promise.job is not None:
        return placed
    words = placed.command
    if placed.accelerators_per_node:
        words = (*words, _BY_TORCH)
    elif _BY_TORCH in words:
        # The machine may have some that the spec does not promise, fewer than it has ranks.
        words = (*words, "--meet=gloo")
    return placed.model_copy(update={"command": words})


def start(
    path: SubmissionPath, job: LaunchJob, nodes: Sequence[str], what: str, limit_s: float
) -> Started:
    """Submit a job that is placed, and wait for its end. Raises UsageError, ClusterError."""
    submission = path.submit(job, nodes)
    try:
        outcome = submission.wait(limit_s)
        submitted = submission.submitted
    finally:
        submission.close()
    expected = Expected(
        style=job.style,
        nodes=submitted.nodes,
        per_node=job.rank_count,
        accelerators=int(job.accelerators_per_node),
        pins=submitted.pins,
        outside=outside_names(),
        own=frozenset(job.env),
        hosts=outcome.hosts,
        added=submitted.adds,
        profile=submitted.profile,
    )
    return Started(what, job, expected, submitted, outcome)


def _count(
    measure: Measure,
    name: str,
    found: Sequence[Wrong],
    source: str,
    *,
    unread: str,
    besides: Sequence[str] = (),
) -> None:
    """unread: what was not reported; what was found all the same counts. besides: no fault."""
    measure(
        name,
        None if unread and not found else len(found),
        equals=0,
        source=source,
        culprit=_first(found),
        note="; ".join(line for line in (_all(found), unread, *besides) if line),
    )


def _first(found: Sequence[Wrong]) -> str | None:
    return str(found[0]) if found else None


def _all(found: Sequence[Wrong]) -> str:
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(map(str, found[:_SHOWN])) + more if len(found) > 1 else ""
