"""How users start jobs on a cluster, one small class a way.

A path is what the cluster's own documentation tells its users to do. `Direct` is that of launchers
that run commands on nodes: log in to each node, run the command there. A scheduler's path submits a
script (`Sbatch`), and differs in who orders the nodes, who starts a process a rank, and who has
images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_mnode.criteria.launching.contract import CANARY
from pytest_mnode.criteria.launching.described import LaunchJob
from pytest_mnode.criteria.launching.reports import Login, RankReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job.

    codes: exit status by node; None where it had not ended at the limit. reports: of all ranks,
    with the names of nodes as the controller has them. output: what else a reader may want, by
    node. hosts: how each node names itself. seconds: from submission to end. waits: what the
    scheduler says of a job that was still in its queue; no node is to blame for that.
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
    """What a path made of a job.

    nodes: where it runs, in the order of ranks. pins: variables that the site adds, by node.
    notes: what was done otherwise than a reader would think. adds: beginnings of variables that
    the path itself gives every rank. profile: the user's profile on the node adds more.
    """

    nodes: tuple[str, ...]
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    profile: bool = False


class Submission(Protocol):
    """A job on its way."""

    @property
    def submitted(self) -> Submitted:
        """Known once `wait` has returned; earlier where the path chooses the nodes itself."""

    def wait(self, timeout_s: float) -> Outcome:
        """Wait for its end. At the limit the job is ended, and its codes are None; so is one that
        would never start, at once."""

    def close(self) -> None:
        """End what is left of it; idempotent."""


class SubmissionPath(Protocol):
    """The way in which users of this cluster start jobs."""

    name: str
    """For messages, such as "direct" or "sbatch"."""

    @property
    def runs_images(self) -> bool:
        """Whether a job's image is run; else one that has an image is refused."""

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> Submission:
        """Start a job that is placed, on these nodes, in this order where order can be chosen.

        The environment that it is submitted from holds CANARY. Raises UsageError for what this
        path cannot do, ClusterError where the job could not be submitted.
        """


def outside_names() -> frozenset[str]:
    """Names of the variables of the environment that jobs are submitted from."""
    return frozenset(os.environ) | {CANARY}
