"""A job whose torchruns are the main processes of its own pods, as a test uses it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.jobs import job_processes
from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.kubernetes.pod_start import PLACED_S, PORT, UP_S, NotPlaced, Order, PodStart
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.jobs.torchrun import Start
from pytest_mnode.launchers.kubernetes.api import ApiError
from pytest_mnode.launchers.kubernetes.manifest import RunInPods
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.launchers.remote.bootstrap import sent
from pytest_mnode.launchers.remote.node_report import as_there


class PodJob(RunningJob):
    """A torchrun job with one torchrun per pod. It ends with its test, at the latest with the run.

    Requeues happen in `poll` and `wait`: its object is deleted, and a new one is created. `start`
    waits until its pods run, and raises NotPlaced too.
    """

    def __init__(self, cluster: Nodes, job: Job, pods: RunInPods) -> None:
        """Raises UsageError."""
        super().__init__(cluster, job)
        self._run = pods
        self._pod_start: PodStart | None = None
        self._made = ""
        self._earlier: dict[tuple[str, int], str] = {}

    @property
    def name(self) -> str:
        """Name of the object of its current or last start; "" before the first start."""
        return self._made

    @property
    def _places(self) -> job_processes.Places:
        assert self._pod_start is not None
        return self._pod_start.pods

    def _start_torchruns(self, nodes: tuple[str, ...]) -> None:
        name = f"mnode-job-{self._id[:10]}-{self._requeue}"
        again_s = max(PLACED_S, self._job.back_within_s)
        try:
            start = PodStart(
                self._cluster, self._run, name, nodes, again_s if self._requeue else PLACED_S
            )
        except (ApiError, UsageError) as error:
            if self._requeue or getattr(error, "status", 1) == 0:
                raise
            raise NotPlaced(str(error)) from None
        self._pod_start, self._made = start, name
        self._note("submitted", detail=f"{start.what} for {', '.join(nodes)}")
        if self._requeue:
            # The job that preempted it may still hold its nodes.
            start.await_run(again_s + UP_S)
        else:
            start.await_placed()
            start.await_run()
        self._order(start, nodes)

    def _order(self, made: PodStart, nodes: tuple[str, ...]) -> None:
        """Send each pod its torchrun command. Raises ClusterError."""
        cluster, job, addresses = self._cluster, self._job, made.addresses()
        first = nodes[0]
        own = addresses[first] != cluster.address(first)
        port = PORT if own else cluster.free_port(first)
        start = Start(self._id, nodes, self._requeue, addresses[first], port, cluster.python)
        orders = {}
        for node in nodes:
            argv = start.argv(job, node, addresses[node], f"/tmp/.mnode-{self._id}-ranks")
            defaults = start.defaults(job, cluster.fabric_interface(node))
            variables = sent(cluster.env(start.own(job, node), defaults), os.environ)
            orders[node] = Order(
                as_there(argv, cluster.python, self._run.packages.get(node, "")),
                variables.env,
                str(Path.cwd()),
                {**variables.defaults, **variables.passed},
            )
        made.order(orders)

    def _end(self, on: Iterable[str]) -> None:
        """Kill all processes, and delete the object. Raises ClusterError."""
        start = self._pod_start
        if start is None:
            return
        ended = start.pods.statuses()
        try:
            self._kill([node for node in on if node not in ended])
        finally:
            self._remove(start)

    def _remove(self, start: PodStart) -> None:
        if not self._made:
            return
        start.close()
        self._made = ""
        for node in self.nodes:
            self._earlier[node, self._requeue] = start.pods.output(node)

    def _exit_statuses(self) -> dict[str, int]:
        assert self._pod_start is not None
        self._preempted = self._preempted or any(map(self._disturbed, self.nodes))
        return self._pod_start.pods.statuses()

    def _disturbed(self, node: str) -> str:
        """Why Kubernetes ends the job's pod on a node; "" if it does not."""
        pod = self._pod_start.pods.by_node().get(node) if self._pod_start else None
        return pod.disturbed if pod is not None and self._made else ""

    def _how_ended(self, node: str, status: int) -> str:
        why = self._disturbed(node)
        return f"status {status}{', ' * bool(why)}{why}"

    def _printed(self, node: str, requeue: int) -> str:
        known = self._earlier.get((node, requeue))
        if known is not None or self._pod_start is None or requeue != self._requeue:
            return known or ""
        return self._pod_start.pods.output(node)
