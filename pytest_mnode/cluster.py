"""The nodes of the run for tests and criteria: commands, worlds, jobs, power, links."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import cloudpickle
import pytest

from pytest_mnode.backends.registry import named
from pytest_mnode.errors import MnodeError, RankError, UsageError
from pytest_mnode.jobs import Job, LaunchedJob
from pytest_mnode.jobs.job import check_named
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.options import RUN
from pytest_mnode.outcome.merge import function_error
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    LinkRates,
    PowerOff,
    PowerOn,
    SetLinkRate,
)
from pytest_mnode.protocol.messages import Lease, WorldInfo

if TYPE_CHECKING:
    from pytest_mnode.outcome.outcome import Outcome
    from pytest_mnode.spec import Spec


class NodesOfRun(Protocol):
    """The run as tests and criteria use it; the controller's session implements it."""

    spec: Spec
    switched_off: set[str]
    """Nodes that tests powered off on purpose since the criterion began."""

    def passed_at(self) -> Mapping[str, str]:
        """When the latest kept run ended in which a node passed, by its name in certificates."""

    def all_nodes(self) -> Nodes:
        """All nodes of the run, without a lease."""

    def lease_cluster(self, item: pytest.Item) -> Cluster:
        """The nodes that a test requests, leased to it until the cluster is closed."""

    def ask_launcher(self, request: LauncherRequest) -> Any:
        """The launcher's answer to `request`. Raises ClusterError if the launcher cannot do it."""

    def open_world(
        self, lease: Lease, procs_per_node: int, fresh: bool, nodes: tuple[str, ...]
    ) -> WorldInfo:
        """A world on `nodes` of the lease, with its ranks started."""

    def close_world(self, world: WorldInfo, reusable: bool, new_group: bool) -> None:
        """Return a world; later tests may get it if `reusable`. new_group: see WorldInfo."""

    def release(self, lease: Lease) -> None:
        """Return the nodes of a lease."""

    def call_in_ranks(
        self, world: WorldInfo, blob: bytes, timeout_s: float, *, group: bool, keep_group: bool
    ) -> Outcome:
        """Call a function pickled by cloudpickle in every rank of a world."""


def nodes_of_run(config: pytest.Config) -> NodesOfRun:
    """The run of this pytest process."""
    run: NodesOfRun = config.stash[RUN]
    return run


class Cluster(Nodes):
    """The nodes of a controller-side test, leased to it until the test ends."""

    def __init__(
        self, run: NodesOfRun, lease: Lease, procs_per_node: int, timeout_s: float
    ) -> None:
        """timeout_s: limit of a function in ranks, unless the call gives one."""
        super().__init__(run.ask_launcher, lease.nodes, run.spec.accelerators.per_node)
        self._run = run
        self._lease = lease
        self._procs_per_node = procs_per_node
        self._timeout_s = timeout_s
        self._worlds: list[RankWorld] = []
        self._jobs: list[LaunchedJob] = []
        self._off: list[str] = []
        self._rates: dict[tuple[str, str], tuple[float, float]] = {}

    @property
    def procs_per_node(self) -> int:
        """Default number of ranks per node in this test."""
        return self._procs_per_node

    def world(
        self,
        nodes: int | Sequence[str] | None = None,
        procs_per_node: int | None = None,
        *,
        fresh: bool = False,
    ) -> RankWorld:
        """A world on the first `nodes` nodes of this test, on the named ones, or on all if None.

        Use it as a context manager, or let it end with the test.
        """
        names = self.nodes[:nodes] if isinstance(nodes, int) else self._names(nodes)
        if isinstance(nodes, int) and not 1 <= nodes <= len(self.nodes):
            raise UsageError(f"nodes={nodes}: this test has {count(len(self.nodes))}")
        check_named(names)
        procs = self.procs_per_node if procs_per_node is None else procs_per_node
        if procs < 1:
            raise UsageError(f"procs_per_node={procs}: give 1 or more")
        info = self._run.open_world(self._lease, procs, fresh, tuple(names))
        world = RankWorld(self._run, info, self._timeout_s, fresh)
        self._worlds.append(world)
        return world

    def launch(self, job: Job | Sequence[str]) -> LaunchedJob:
        """Start a job by the torchrun command, with processes of its own on every node.

        A plain sequence is a job's argv: a script and its arguments, on all nodes. The job is
        submitted to the scheduler that gave the nodes, unless it would never start beside this run:
        then it runs by commands on the run's own nodes, and its first event says why.
        """
        if not isinstance(job, Job):
            job = Job(job)
        running = named(self.backend).submit(self, job)
        self._jobs.append(running)
        return running

    def power_off(self, node: str) -> None:
        """Cut the power of a node. The node is booted again when the test ends, if not before."""
        (name,) = self._names(node)
        self._ask(PowerOff(name))
        self._off.append(name)
        self._run.switched_off.add(name)

    def power_on(self, node: str) -> None:
        """Boot a node again, with the same name and links."""
        self._ask(PowerOn(self._names(node)[0]))
        if node in self._off:
            self._off.remove(node)

    def set_rate(self, node: str, link: str, rate_mbit_s: float) -> None:
        """Change the rate of a node's link at both ends; it is restored when the test ends."""
        before = self._ask(LinkRates(self._names(node)[0], link))
        self._ask(SetLinkRate(node, link, rate_mbit_s))
        self._rates.setdefault((node, link), before)

    def close(self) -> None:
        """End the test's jobs and worlds, undo its changes and return its nodes.

        Warns of what could not be undone, which later tests may meet.
        """
        try:
            left = self._undo()
        finally:
            self._run.release(self._lease)
        for why in left:
            warnings.warn(f"left behind by this test: {why}", stacklevel=2)

    def _undo(self) -> list[str]:
        left: list[str] = []
        for job in self._jobs:
            with _told(left):
                job.close()
        for world in self._worlds:
            with _told(left):
                world.close()
        for place, before in self._rates.items():
            for way, rate in zip(("tx", "rx"), before, strict=True):
                with _told(left):
                    self._ask(SetLinkRate(*place, rate, way))
        for node in [*self._off]:
            with _told(left):
                self.power_on(node)
        return left


@contextlib.contextmanager
def _told(left: list[str]) -> Iterator[None]:
    """What cannot be undone goes to `left`, and the rest is undone."""
    try:
        yield
    except (MnodeError, OSError) as error:
        left.append(str(error))


class RankWorld:
    """Ranks that wait for functions to run."""

    def __init__(self, run: NodesOfRun, info: WorldInfo, timeout_s: float, fresh: bool) -> None:
        self._run = run
        self._info = info
        self._timeout_s = timeout_s
        self._clean = True
        self._fresh = fresh
        self._closed = False
        self._new_group = info.new_group
        self._keep_group = not info.new_group

    @property
    def size(self) -> int:
        return self._info.shape.size

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._info.nodes

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        group: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Call `function(*args, **kwargs)` in every rank; one result per rank, in rank order.

        A keyword-only parameter named `world` gets the rank's World. With `group` the default
        process group is initialised. Raises RankError with every rank's outcome if one fails; the
        world cannot be used after that.
        """
        if self._closed or not self._clean:
            raise RankError("this world has ended; open another one")
        limit = self._timeout_s if timeout is None else timeout
        if limit <= 0:
            raise UsageError(f"timeout={limit:g}: give more than 0 seconds")
        try:
            blob = cloudpickle.dumps((function, args, kwargs))
        except Exception as error:  # what is pickled may be anything
            what = getattr(function, "__qualname__", function)
            raise UsageError(
                f"{what} cannot be sent to ranks with its arguments: {error}"
            ) from None
        # Unclean until all ranks have returned: another plugin's limit may interrupt the call.
        self._clean = False
        outcome = self._run.call_in_ranks(
            self._info, blob, limit, group=group, keep_group=self._keep_group
        )
        self._keep_group, self._new_group = True, outcome.new_group
        states = [outcome.states[rank] for rank in sorted(outcome.states)]
        if not outcome.returned:
            raise function_error(outcome)
        self._clean = True
        return [cloudpickle.loads(s.torn_down.value) for s in states if s.torn_down is not None]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            reusable = self._clean and not self._fresh
            self._run.close_world(self._info, reusable, self._new_group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
