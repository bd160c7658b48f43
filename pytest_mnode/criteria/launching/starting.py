"""Describes a job, submits it and waits for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.criteria.launching.contract import Expected
from pytest_mnode.criteria.launching.job_file import LaunchJob, read_job
from pytest_mnode.criteria.launching.paths import Outcome, SubmissionPath, Submitted, outside_names
from pytest_mnode.errors import UsageError
from pytest_mnode.logs.causes import first_cause
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import StartPromise

_TAIL_LINES = 15
_BY_TORCH = "--meet=torch"


@dataclass(frozen=True, slots=True)
class Started:
    """A job that ran, and what its ranks must find. `what` begins the names of its measurements."""

    what: str
    expected: Expected
    submitted: Submitted
    outcome: Outcome

    @property
    def overdue(self) -> list[str]:
        """Nodes on which the job had not ended at its limit."""
        return [node for node, code in self.outcome.codes.items() if code is None]

    @property
    def late(self) -> str | None:
        """The culprit of a job that had not ended: the queue it waits in, else those nodes."""
        return self.outcome.waits or ", ".join(self.overdue) or None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader would not expect, and what the scheduler says."""
        return (*self.submitted.notes, *filter(None, [self.outcome.waits]))

    def text(self) -> str:
        """For the report: which ranks ran where, as which user, and the last output of the
        nodes."""
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
        """The user that the job ran as, one line for all nodes where that is the same."""
        users: dict[str, list[str]] = {}
        for login in self.outcome.logins:
            why = f": {login.why}" if login.why else ""
            users.setdefault(f"ran as {login.user} (uid {login.uid}){why}", []).append(login.node)
        return [f"{line} [{', '.join(nodes)}]" for line, nodes in users.items()]


def job_of(
    style: str,
    promise: StartPromise,
    folder: Path,
    spec: Spec,
    nodes: int,
    *,
    every: int | None = None,
) -> LaunchJob:
    """The job of a style, for this number of nodes: the cluster's own job file, or ours in
    `folder`.

    every: the number that `all` means, where that is not `nodes`. Ranks of our jobs meet by torch
    on accelerators, whatever the style, and on CPUs where the spec has no accelerators. Raises
    UsageError for a job file that cannot be used.
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
        # The machine may have accelerators that the spec does not promise, fewer than ranks.
        words = (*words, "--meet=gloo")
    return placed.model_copy(update={"command": words})


def start(
    path: SubmissionPath, job: LaunchJob, nodes: Sequence[str], what: str, limit_s: float
) -> Started:
    """Submit a placed job, and wait for its end. Raises UsageError, ClusterError."""
    progress(f"a job of {what}")
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
    return Started(what, expected, submitted, outcome)
