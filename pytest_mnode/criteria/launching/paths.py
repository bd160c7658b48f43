"""The protocol of a submission path: the way in which users of a cluster start jobs.

`Direct` logs in to each node and runs commands there. `Sbatch` submits a batch script: Slurm then
orders the nodes, starts the tasks, and runs images. A path never replaces another one: a job that
the scheduler does not start proves nothing, however well it runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_mnode.criteria.launching.reports import Login, RankReport
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import ClusterError


class NotSubmittedError(ClusterError):
    """The scheduler that gave the run its nodes does not start the job beside the run."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(
            f"not submitted: {why}; {remedy}, or set criteria.launch.path: direct in the spec if "
            "users start jobs without the scheduler"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a job.

    codes: exit status by node; None if the job had not ended there at the limit. reports: of all
    ranks, with the controller's names of nodes. hosts: each node's own host name. output: by node.
    seconds: from submission to end. waits: the scheduler's text about a job that was still in its
    queue, for which no node is to blame; "" for any other job.
    """

    codes: Mapping[str, int | None]
    reports: tuple[RankReport, ...]
    logins: tuple[Login, ...]
    hosts: Mapping[str, str]
    output: Mapping[str, str]
    seconds: float
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job as a path submitted it.

    nodes: in the order of ranks. pins: variables that the site adds, by node. notes: facts that a
    reader would not expect. adds: prefixes of variables that the path adds. profile: whether the
    user's profile on the node adds more variables.
    """

    nodes: tuple[str, ...]
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    profile: bool = False


class Submission(Protocol):
    """A submitted job."""

    @property
    def submitted(self) -> Submitted:
        """Final once `wait` has returned, because a scheduler may choose the order of the nodes."""

    def wait(self, timeout_s: float) -> Outcome:
        """Wait for the job's end. At the limit, or at once if it would never start, the job is
        ended, and its codes are None."""

    def close(self) -> None:
        """End what is left of the job; idempotent."""


class SubmissionPath(Protocol):
    """A way to start jobs."""

    name: str
    """Name for messages, such as "direct" or "sbatch"."""

    @property
    def runs_images(self) -> bool:
        """Whether jobs run in their image; if not, `submit` rejects a job with an image."""

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> Submission:
        """Start a placed job on these nodes, in this order if the path can choose it.

        The submitting environment has CANARY. Raises UsageError for a job that this path cannot
        run, NotSubmittedError for one that does not start beside the run, ClusterError.
        """
