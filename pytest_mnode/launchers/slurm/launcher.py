"""Nodes of a Slurm allocation, the current one or the run's own; each has a step for the run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers import slurm
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.dial_in.bridge import DialSettings
from pytest_mnode.launchers.dial_in.launcher import BRIDGE, END_S, NODE
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote.launcher import RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.run_all import unusable_nodes
from pytest_mnode.launchers.slurm.allocation import Granted, OwnAllocation, on_first, surrounding
from pytest_mnode.launchers.slurm.allocation_state import Watch, not_back, present, too_few_gpus
from pytest_mnode.launchers.slurm.command_lines import on_nodes, step_command
from pytest_mnode.launchers.slurm.commands import NodesHidden
from pytest_mnode.spec import Spec


@dataclass(frozen=True, slots=True)
class RunInSlurm:
    """What jobs of the run need: Slurm's names of its nodes, and arguments of each job step."""

    names: Mapping[str, str]
    srun_arguments: tuple[str, ...] = ()


class Slurm(RemoteLauncher):
    """N nodes of an allocation; the spec's commands switch their power. Thread-safe.

    arguments: for salloc, only outside an allocation. on: names of the nodes to use; () for any.
    leftovers: of its own allocation. srun_arguments: of each step of the run and its jobs.
    """

    name = "slurm"
    starts_late = "its Prolog or its Python is slow, or hangs"

    def __init__(
        self,
        nodes: int,
        spec: Spec,
        remote: RemoteOptions,
        arguments: Sequence[str] = (),
        on: Sequence[str] = (),
        *,
        leftovers: Leftovers,
        srun_arguments: Sequence[str] = (),
    ) -> None:
        if (missing := slurm.Slurm.unavailable()) is not None:
            raise UsageError(f"--mnode-launcher=slurm: {missing}")
        super().__init__(spec, remote)
        self.slurm = slurm.Slurm()
        self.allocation: OwnAllocation | None = None
        """None if the run is inside of another one."""
        if "SLURM_JOB_ID" not in os.environ:
            self.allocation = OwnAllocation(
                self.slurm, leftovers, on_nodes(arguments, on), spec.accelerators.per_node
            )
        elif arguments:
            job = os.environ["SLURM_JOB_ID"]
            raise UsageError(
                f"--mnode-slurm-args={' '.join(arguments)}: this run is inside allocation {job}, "
                "which they cannot change; leave them out, or run outside of it"
            )
        self.granted: Granted | None = None
        self._count = nodes
        self._on = tuple(on)
        self._srun_arguments = tuple(srun_arguments)
        self._gpus: Mapping[str, int] = {}
        """GPUs that the allocation holds on nodes without having requested them, by node."""
        self._watch: Watch | None = None
        self._starting: dict[str, threading.Thread] = {}
        """The last thread that started a step again, by host."""

    @property
    def _job(self) -> int:
        assert self.job_id is not None
        return self.job_id

    def _start(self) -> None:
        """Get the nodes, and a report of each. Raises ClusterError that names what is missing."""
        self._bridge.start_daemon(self._prepare())
        if (own := self.allocation) is not None:
            granted = own.get(self._count)
        else:
            granted = surrounding(os.environ, self._count)
        self.granted = on_first(granted, self._on)
        self.job_id = self.granted.job_id
        states = self._states(self.granted.names)
        names = present(self.granted, states, self._count)
        self.unused = [name for name in self.granted.names if name not in names]
        self._check_gpus(states or {}, names)
        self._gpus = self.slurm.gpus_beside_requests(self._job)
        addresses = {n: (states and states[n].address) or n for n in names}
        what = f"slurm: allocation {self.job_id}"
        try:
            self._start_steps(names, addresses)
        except ClusterError as error:
            raise ClusterError(f"{what}: {error}{self._waits_for()}") from None
        reports, problems = self._reports(names)
        if problems:
            raise unusable_nodes(problems, len(names), what)
        self._take({name: reports[name] for name in names}, addresses, what)
        self.job_facts = RunInSlurm(dict(self._hosts_by_name), self._srun_arguments)
        guard = own.guard if own is not None else lambda: None
        self._watch = Watch(self.slurm, self._job, self._slurm_lost, guard)
        self._watch.start(self._hosts_by_name)

    def _waits_for(self) -> str:
        """What Slurm itself waits for before steps start, such as a Prolog or nodes that boot, to
        follow the error; "" if for nothing, or if it does not answer."""
        try:
            job = self.slurm.job(self._job)
        except ClusterError:
            return ""
        if job is None or job.state != "CONFIGURING":
            return ""
        return f"; Slurm says CONFIGURING ({job.reason or 'no reason given'})"

    def _start_steps(self, names: Sequence[str], addresses: Mapping[str, str]) -> None:
        """Start a step on each node, for the whole run. Raises ClusterError.

        Not one for all: Slurm cancels a step on all nodes once one of them has rebooted.
        """
        settings = DialSettings(
            hosts=tuple(names),
            nodes=len(names),
            commands=[self._way(name) for name in names],
            order="",
            start_s=self.limits.start_s,
            silence_s=self.limits.silence_s,
            connect_s=self.limits.connect_s,
            env={},
            python=self.python,
            addresses=addresses,
            step=True,
        )
        self._start_bridge(BRIDGE, asdict(settings), END_S, self.limits.start_s)

    def _way(self, host: str) -> list[str]:
        argv = (self.python, "-P", "-m", NODE, "-")
        return step_command(self._job, host, argv, self._gpus.get(host, 0), self._srun_arguments)

    def _check_gpus(self, states: Mapping[str, slurm.NodeState], names: Sequence[str]) -> None:
        """Raise ClusterError now: ranks without accelerators fail with a less helpful message."""
        promised = self._spec.accelerators.per_node if states else 0
        others = [state for name, state in states.items() if name not in names]
        job = self.slurm.job(self._job) if promised else None
        if why := too_few_gpus(job, [states[name] for name in names], promised, others):
            raise ClusterError(why)

    def _states(self, names: Sequence[str]) -> dict[str, slurm.NodeState] | None:
        """States by Slurm's names; None if Slurm hides nodes from this user."""
        try:
            return {state.name: state for state in self.slurm.nodes(names)}
        except NodesHidden:
            return None

    def _slurm_lost(self, name: str, why: str) -> None:
        self._lose(self._host_of(name), why)

    def _stream_lost(self, host: str, why: str) -> None:
        """See RemoteLauncher. In a thread: the bridge's own hears whether a step has started."""
        starting = threading.Thread(
            target=self._start_again, args=(host, why), name="mnode-step", daemon=True
        )
        starting.start()
        self._starting[host] = starting  # started: others join it

    def _why_gone(self, node: Node) -> str | None:
        """See RemoteLauncher. Waits for a step that is being started again."""
        if (starting := self._starting.get(self._host_of(node.name))) is not None:
            starting.join(2 * self.limits.connect_s)
        return super()._why_gone(node)

    def _start_again(self, host: str, why: str) -> None:
        """Start a step on the host again: Slurm may still have the node. If not, it is lost."""
        if self._closed or self._watch is None or host in self._gone:
            return
        try:
            problem = self._open([host], self.limits.connect_s).get(host)
        except ClusterError as error:
            problem = str(error)
        if problem:
            self._watch.look()  # a reason of Slurm's comes first
            self._lose(host, f"{why}; a new step did not start: {problem}")

    def _problem_with(self, node: Node, limit_s: float) -> str | None:
        """The node must be up again within SlurmdTimeout: Slurm removes a node that it reports as
        DOWN from the allocation for good."""
        name = self._host_of(node.name)
        try:
            job, states = self.slurm.job(self._job), (self._states([name]) or {}).values()
        except ClusterError as error:  # the caller tries again
            return str(error)
        why = not_back(job, self._job, node.name, name, states)
        return why or super()._problem_with(node, limit_s)

    def _give_back(self) -> None:
        if self._watch is not None:
            self._watch.close()
        try:
            super()._give_back()
        finally:
            if self.allocation is not None:
                self.allocation.close()
