"""`cluster`: the nodes from the controller's side. Commands, worlds, jobs, power, links."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import cloudpickle

from pytest_mnode.errors import ClusterError, MnodeError, RankError, UsageError
from pytest_mnode.job import Job, RunningJob
from pytest_mnode.world.messages import CallFunction, WorldInfo

if TYPE_CHECKING:
    from pytest_mnode.marks import Need
    from pytest_mnode.run import Run
    from pytest_mnode.world.client import Lease


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended on one node. `returncode` is None where its limit ended it."""

    node: str
    returncode: int | None
    stdout: str
    stderr: str
    duration_s: float

    @property
    def ok(self) -> bool:
        return self.returncode == 0


class Cluster:
    """The nodes of a controller-side test, its own until the test ends."""

    def __init__(self, run: Run, lease: Lease, need: Need) -> None:
        self._run = run
        self._lease = lease
        self._need = need
        self._worlds: list[RankWorld] = []
        self._jobs: list[RunningJob] = []
        self._off: list[str] = []
        self._rates: list[tuple[str, str]] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of this test's nodes, in the order in which worlds are filled."""
        return self._lease.nodes

    def run(
        self,
        argv: Sequence[str],
        nodes: Sequence[str] | str | None = None,
        *,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> list[CommandResult]:
        """Run a command on nodes (None: all) at the same time; one result each, in their order.

        A command that is not over after `timeout` seconds is killed, and its returncode is None.
        """
        names = self._names(nodes)
        started = time.monotonic()
        running = [self.start(argv, name, env=env) for name in names]
        results = []
        for name, process in zip(names, running, strict=True):
            left = max(0.0, started + timeout - time.monotonic())
            code: int | None
            try:
                out, err = process.communicate(timeout=left)
                code = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                code = None
            results.append(CommandResult(name, code, out, err, time.monotonic() - started))
        return results

    def start(
        self,
        argv: Sequence[str],
        node: str,
        *,
        env: Mapping[str, str] | None = None,
        output: int | Any = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a node and leave it running; it is the caller's to end."""
        [command] = self._ask("commands", (node,), tuple(argv))
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if output is subprocess.PIPE else subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
        )

    def world(
        self,
        nodes: int | Sequence[str] | None = None,
        procs_per_node: int | None = None,
        *,
        fresh: bool = False,
    ) -> RankWorld:
        """A world on the first `nodes` of this test's nodes, or on those named.

        Use it as a context manager, or leave it: it ends with the test.
        """
        names = self.nodes[:nodes] if isinstance(nodes, int) else self._names(nodes)
        if isinstance(nodes, int) and not 1 <= nodes <= len(self.nodes):
            raise UsageError(f"nodes={nodes}: this test has {len(self.nodes)} nodes")
        procs = procs_per_node or self._need.procs_per_node or self._run.procs_per_node
        assert self._run.client is not None
        info = self._run.client.open_world(self._lease, procs, fresh, tuple(names))
        world = RankWorld(self._run, info, self._need.timeout_s, fresh)
        self._worlds.append(world)
        return world

    def launch(self, job: Job | Sequence[str]) -> RunningJob:
        """Start a job by the torchrun command, with processes of its own on every node.

        A plain sequence is a job's argv: a script and its arguments, on all nodes.
        """
        if not isinstance(job, Job):
            job = Job(job)
        running = RunningJob.start(self, job)
        self._jobs.append(running)
        return running

    def power_off(self, node: str) -> None:
        """As a pulled plug. The node is booted again when the test ends, if not before."""
        self._ask("power_off", self._names(node)[0])
        self._off.append(node)

    def power_on(self, node: str) -> None:
        """Boot a node again, with the same name and links."""
        self._ask("power_on", self._names(node)[0])
        if node in self._off:
            self._off.remove(node)

    def set_rate(self, node: str, link: str, rate_mbit_s: float) -> None:
        """Change the rate of a node's link, at both ends; set back when the test ends."""
        self._ask("set_rate", self._names(node)[0], link, rate_mbit_s)
        self._rates.append((node, link))

    def address(self, node: str) -> str:
        """Where other nodes reach this one for control traffic (MASTER_ADDR)."""
        return str(self._ask("address_of", self._names(node)[0]))

    def close(self) -> None:
        """End what the test left running, undo what it changed, give the nodes back."""
        for job in self._jobs:
            with contextlib.suppress(MnodeError, OSError):
                job.close()
        for world in self._worlds:
            world.close()
        spec = self._run.spec
        for node, link in self._rates:
            line = (
                spec.management
                if spec.management and spec.management.has_interface(link)
                else spec.fabric
            )
            with contextlib.suppress(MnodeError):
                self._ask("set_rate", node, link, line.line_rate_mbits_s)
        for node in list(self._off):
            with contextlib.suppress(MnodeError):
                self.power_on(node)
        if self._run.client is not None:
            self._run.client.release(self._lease)

    def _names(self, nodes: Sequence[str] | str | None) -> tuple[str, ...]:
        names = (
            self.nodes if nodes is None else (nodes,) if isinstance(nodes, str) else tuple(nodes)
        )
        for name in names:
            if name not in self.nodes:
                raise UsageError(f"no node {name!r} in this test; it has {', '.join(self.nodes)}")
        return names

    def _ask(self, method: str, *args: Any) -> Any:
        if self._run.client is None:
            raise ClusterError("the run is over")
        return self._run.client.ask_launcher(method, *args)


class RankWorld:
    """Ranks that wait for functions to run."""

    def __init__(self, run: Run, info: WorldInfo, timeout_s: float, fresh: bool) -> None:
        self._run = run
        self._info = info
        self._timeout_s = timeout_s
        self._clean = True
        self._fresh = fresh
        self._closed = False

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
        """Call `function(*args, **kwargs)` in every rank; one result a rank, by rank.

        A keyword-only parameter named `world` gets the rank's World. With `group` the default
        process group is there. Raises RankError with every rank's account where one fails; the
        world cannot be used after that.
        """
        if self._closed or not self._clean:
            raise RankError("this world has ended; open another one")
        blob = cloudpickle.dumps((function, args, kwargs))
        limit = timeout or self._timeout_s
        outcome = self._run.run_function(
            self._info,
            limit,
            lambda ordinal, name: CallFunction(ordinal, name, blob, group),
        )
        states = [outcome.states[rank] for rank in sorted(outcome.states)]
        if any(s.failed_at is not None or s.stuck_in or s.gone or not s.pong for s in states):
            from pytest_mnode.world.merge import function_error

            self._clean = False
            raise RankError(function_error(outcome))
        return [cloudpickle.loads(s.returned.value) for s in states if s.returned is not None]

    def close(self) -> None:
        if not self._closed and self._run.client is not None:
            self._closed = True
            self._run.client.close_world(self._info, self._clean and not self._fresh)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
