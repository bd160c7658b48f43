"""Describes a job, submits it by the path of the cluster, and waits for its end; judges images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.contract import CANARY, Expected
from pytest_mnode.criteria.launching.direct import Direct
from pytest_mnode.criteria.launching.job_file import LaunchJob, read_job
from pytest_mnode.criteria.launching.paths import (
    NotSubmittedError,
    Outcome,
    SubmissionPath,
    Submitted,
)
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.launch import NO_SHARED_DIR, why_not_submitted
from pytest_mnode.logs.causes import first_cause
from pytest_mnode.measurement import Measurement, equals, listed
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import StartPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.launchers.nodes import Nodes

_TAIL_LINES = 15
_BY_TORCH = "--meet=torch"
_ROOT = "import os; s = os.stat('/'); print(f'{s.st_dev}:{s.st_ino}')"
_STYLES = ("torchrun", "deepspeed", "megatron")
_IN_IMAGE = "ranks in the image"


@dataclass(frozen=True, slots=True)
class Started:
    """A job that ran, and what its ranks must find. what: prefix of its measurements' names."""

    what: str
    expected: Expected
    submitted: Submitted
    outcome: Outcome

    @property
    def overdue(self) -> list[str]:
        return [node for node, code in self.outcome.codes.items() if code is None]

    @property
    def late(self) -> Culprit | None:
        """Culprit of a job that has not ended: its queue, else overdue nodes; None if it ended.

        Nodes may be overdue because they wait for one of them.
        """
        if self.outcome.waits:
            return Culprit(self.outcome.waits)
        overdue = self.overdue
        return Culprit(listed(overdue, 16, ", "), either=[overdue]) if overdue else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that a reader would not expect, and the scheduler's text about a waiting job."""
        return (*self.submitted.notes, *filter(None, [self.outcome.waits]))

    def text(self) -> str:
        """Text for the report: nodes, number of ranks, users, and the last output of each node."""
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
        """The users that the job ran as, one line per user with its nodes."""
        users: dict[str, list[str]] = {}
        for login in self.outcome.logins:
            why = f": {login.why}" if login.why else ""
            users.setdefault(f"ran as {login.user} (uid {login.uid}){why}", []).append(login.node)
        return [f"{line} [{', '.join(nodes)}]" for line, nodes in users.items()]


def path_of(cluster: Nodes, spec: Spec | None = None) -> SubmissionPath:
    """The path of a cluster: the spec's, else Slurm's or Kubernetes' if that gave the run its
    nodes. Raises NotSubmittedError if the scheduler cannot start jobs."""
    promise = spec.criteria.launch if spec else None
    if promise is not None and promise.path == "direct":
        return Direct(cluster)
    if cluster.pods is not None:
        from pytest_mnode.criteria.launching.pods import Pods

        return Pods(cluster, cluster.pods)
    allocation = cluster.allocation
    if allocation is None and spec is not None and spec.scheduler is not None:
        why = f"the scheduler of the spec is {spec.scheduler.kind}, which did not give the nodes"
        raise NotSubmittedError(why, f"give --mnode-launcher={spec.scheduler.kind}")
    if allocation is None and (why := why_not_submitted(cluster)):
        raise NotSubmittedError(why, "try it by hand")
    if allocation is None:
        return Direct(cluster)
    if not cluster.share_files:
        raise NotSubmittedError(NO_SHARED_DIR, "give one with --mnode-shared-dir")
    from pytest_mnode.criteria.launching.sbatch import Sbatch
    from pytest_mnode.launchers.slurm import Slurm

    return Sbatch(cluster, allocation, Slurm())


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

    every: the number that `all` means, if that is not `nodes`. Ranks of our jobs meet by torch on
    accelerators, whatever the style, and on CPUs if the spec has no accelerators. Raises UsageError
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
        outside=frozenset(os.environ) | {CANARY},
        own=frozenset(job.env),
        hosts=outcome.hosts,
        added=submitted.adds,
        profile=submitted.profile,
    )
    return Started(what, expected, submitted, outcome)


def started_by_path(
    cluster: Nodes, spec: Spec, job: LaunchJob, nodes: Sequence[str], *, what: str, limit_s: float
) -> Started | Measurement:
    """Start a placed job by the cluster's path. An inconclusive measurement if the scheduler does
    not start it: a job that something else starts proves nothing. The job's text is printed."""
    try:
        started = start(path_of(cluster, spec), job, nodes, what, limit_s)
    except NotSubmittedError as error:
        return _unsubmitted(what, error)
    print(started.text())
    return started


def _unsubmitted(what: str, error: NotSubmittedError) -> Measurement:
    name, source = f"{what}: nodes on which the job failed", "criteria.launch"
    return Measurement.unknown(name, str(error), expected=equals(0), source=source)


def measured_image(cluster: Cluster, spec: Spec, folder: Path) -> Measurement:
    """Submit a job with the promised image; inconclusive if the path runs no images.

    folder: of our own job files.
    """
    promised = spec.criteria.launch
    assert promised is not None
    source, size = f"criteria.launch.image {promised.image}", len(cluster.nodes)
    try:
        path = path_of(cluster, spec)
    except NotSubmittedError as error:
        return _unsubmitted("image", error)
    if not path.runs_images:
        why = f"the {path.name} path of this launcher starts commands on nodes and runs no images"
        return Measurement.unknown(_IN_IMAGE, why, expected=equals(size), source=source)
    style = next((style for style in _STYLES if promised.start(style)), "torchrun")
    promise = promised.start(style) or StartPromise.model_validate({})
    plain = job_of(style, promise, folder, spec, size)
    job = plain.model_copy(update={"image": promised.image})
    limit_s = 2 * promise.within_s
    nodes = cluster.nodes[: job.node_count]
    started = started_by_path(cluster, spec, job, nodes, what="image", limit_s=limit_s)
    if isinstance(started, Measurement):
        return started
    results = cluster.run([cluster.python, "-I", "-S", "-c", _ROOT])
    roots = {result.node: result.stdout.strip() for result in results if result.ok}
    return judged_image(started.outcome.reports, roots, started.expected.size, source)


def judged_image(
    reports: Sequence[RankReport], roots: Mapping[str, str], size: int, source: str
) -> Measurement:
    """Ranks in the image, whose root file system differs from their node's. roots: by node."""
    outside = [
        Culprit(f"rank {r.rank} on {r.node}", r.node)
        for r in reports
        if not r.root or r.root == roots.get(r.node, r.root)
    ]
    value = len(reports) - len(outside) if reports else None
    culprit = Culprit.merged(outside[0], outside) if outside else None
    return Measurement(_IN_IMAGE, value, "", equals(size), source, culprit)
