"""The base class of backends, and what it is asked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.hosts import read_hostfile, slots_of
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.criteria.launching.paths import SubmissionPath
    from pytest_mnode.gang.engine import Engine
    from pytest_mnode.jobs.job import Job
    from pytest_mnode.jobs.launched import LaunchedJob
    from pytest_mnode.launchers.nodes import Nodes


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a run wants of a backend: `nodes` nodes, as the settings and the spec describe them.

    cleanup_dirs: removed once the controller has ended, however it ended.
    """

    settings: Settings
    nodes: int
    spec: Spec
    remote: RemoteOptions
    cleanup_dirs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Here:
    """Where a run starts: what the user set for it, and the environment of its process."""

    settings: Settings
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A free node. name: its name for the launcher. hostname: its name in certificates."""

    name: str
    hostname: str


@dataclass(frozen=True, slots=True)
class FreeNodes:
    """The nodes that are free now. others: a text on the nodes that are not."""

    nodes: list[FreeNode]
    others: str


class Backend:
    """A kind of nodes: which there are and which are free, how commands and jobs start on them."""

    name: ClassVar[str]
    """--mnode-launcher=NAME."""
    reads_hostfile: ClassVar[bool] = False
    """Whether --mnode-hostfile names its nodes."""

    def option(self, settings: Settings) -> str | None:  # noqa: ARG002
        """The given option by which alone a user means this backend; None if there is none."""
        return None

    def unused(self, settings: Settings, spec: Spec, used: Backend, by: str) -> str | None:  # noqa: ARG002
        """Error, with remedy, for an option of this backend where `by` chose another; or None."""
        option = self.option(settings)
        return (
            option and f"{option}: other nodes are used ({by}); give --mnode-launcher={self.name}"
        )

    def meant(self, here: Here) -> str | None:
        """Why `auto` takes this backend, in a few words; None if it does not."""
        return self.option(here.settings)

    def names(self, here: Here) -> tuple[str, ...] | None:  # noqa: ARG002
        """Names of the nodes that are there to be used; None if the run makes or requests its own.

        Raises UsageError if they are named wrongly.
        """
        return None

    def count(self, here: Here) -> int | None:
        """Number of `names`, where it is known without them too."""
        names = self.names(here)
        return None if names is None else len(names)

    def slots(self, settings: Settings) -> int | None:
        """Ranks per node that the user gave with the nodes: the fewest slots of any host of the
        hostfile that the run uses; None if not given."""
        if not self.reads_hostfile or settings.hostfile is None:
            return None
        hosts = read_hostfile(settings.hostfile)
        on = [host for host in hosts if not settings.on or host.name in settings.on]
        return slots_of(on[: settings.nodes])

    def requests_nodes(self, here: Here) -> bool:  # noqa: ARG002
        """Whether the run requests its nodes from a scheduler, which then cannot give them to
        others."""
        return False

    def free(self, settings: Settings, spec: Spec) -> FreeNodes | None:  # noqa: ARG002
        """The nodes that the run could request now; None if it makes its own.

        Raises UsageError, ClusterError.
        """
        return None

    def scheduler(self, environ: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """For the spec's `scheduler`: the kind of what gives the nodes, and names of the run's own
        allocation by their keys, and `cluster`; {} if the spec can name none."""
        return {}

    def launcher(self, request: NodeRequest) -> Launcher:
        """An unstarted launcher. Raises UsageError if it cannot work here."""
        raise NotImplementedError

    def leftovers(self, name: str, *where: str) -> Leftovers | None:  # noqa: ARG002
        """What of this name the scheduler may still have when the run has ended: a `Cleanup` is
        started with it before anything is submitted. None if the scheduler is given nothing.

        where: in words of the scheduler, what else it takes to find it.
        """
        return None

    def submit(self, cluster: Nodes, job: Job) -> LaunchedJob:
        """Start a torchrun job: by the scheduler that gave the nodes if it would start it now, else
        by commands on them, and then the job's first event says why.

        Raises UsageError for nodes that this test does not have, ClusterError.
        """
        return RunningJob.start(cluster, job, cluster.why_not_submitted)

    def path(self, cluster: Nodes) -> SubmissionPath:
        """How users start their own job scripts. Raises NotSubmittedError if the scheduler that
        gave the nodes cannot be tried."""
        from pytest_mnode.criteria.launching.direct import Direct
        from pytest_mnode.criteria.launching.paths import NotSubmittedError

        if cluster.why_not_submitted:
            raise NotSubmittedError(cluster.why_not_submitted, "try it by hand")
        return Direct(cluster)

    def gangs(self, spec: Spec, settings: Settings, root: Path) -> Engine:  # noqa: ARG002
        """What submits gangs to this scheduler and watches them; `close` ends them.

        Raises UsageError, ClusterError.
        """
        raise ClusterError(f"scheduler.kind: {self.name} has no engine for gangs")
