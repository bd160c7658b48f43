"""A job whose torchruns are the main processes of pods of its own, as a test uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.jobs import job_processes
from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.kubernetes import in_pod
from pytest_mnode.jobs.kubernetes.job_pods import JobPods
from pytest_mnode.jobs.kubernetes.manifest import JOB_LABEL, job_manifest
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.jobs.torchrun import Start
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.pod_streams import check_logs
from pytest_mnode.launchers.kubernetes.run_in_pods import RunInPods
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.launchers.remote.bootstrap import environment
from pytest_mnode.launchers.remote.node_report import as_there
from pytest_mnode.protocol.world import RUN

REFUSED_S, PLACED_S = 6.0, 30.0
"""How long pods of a first start may be without nodes: where the scheduler says why, because the
run's own pods may hold what they ask for; and where it says nothing, as a queue does."""
UP_S = 90.0
_ORDERED_S = 30.0
_ENDED_S = 45.0
_PORT = 29500
"""Of the rendezvous, in a pod with an address of its own: torchrun's default."""


class NotPlaced(ClusterError):
    """Kubernetes does not start the job beside the run's pods; the text is its reason."""


class PodJob(RunningJob):
    """A torchrun job with one torchrun per pod. It ends with its test, at the latest with its run.

    Requeues happen in `poll` and `wait`: the Job is deleted, and another one is made.
    """

    def __init__(self, cluster: Nodes, job: Job, pods: RunInPods) -> None:
        """Raises UsageError."""
        super().__init__(cluster, job)
        self._run = pods
        self._api = Api(pods.context, pods.namespace)
        self._pods: JobPods | None = None
        self._made = ""
        self._earlier: dict[tuple[str, int], str] = {}

    @classmethod
    def launch(cls, cluster: Nodes, job: Job, pods: RunInPods) -> PodJob:
        """Make the Job, and wait until its pods run.

        Raises NotPlaced, UsageError for nodes that this test does not have, ClusterError.
        """
        nodes = job.placed_on(cluster.nodes)
        made = cls(cluster, job, pods)
        try:
            made._launch(nodes)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def name(self) -> str:
        """Of the Job of its current or last start; "" before the first."""
        return self._made

    @property
    def _places(self) -> job_processes.Places:
        assert self._pods is not None
        return self._pods

    def _start_torchruns(self, nodes: tuple[str, ...]) -> None:
        name = f"mnode-job-{self._id[:10]}-{self._requeue}"
        python, path = self._cluster.python, f"/tmp/.mnode-{self._id}"
        text = Path(in_pod.__file__).read_text()
        program = (python, "-I", "-S", "-c", text)
        wait = [*program, "wait", path, f"{PLACED_S + UP_S + _ORDERED_S:g}"]
        run = self._run
        try:
            manifest, container = job_manifest(run.manifest, name, run.owner, nodes, wait)
            self._pods = JobPods(
                self._api,
                f"{JOB_LABEL}={name}",
                container,
                nodes=nodes,
                python=python,
                check=partial(self._cluster.commands, ["true"]),
            )
            check_logs(self._api)
            self._made = name
            self._api.request("POST", self._api.path("jobs", "batch/v1"), manifest)
        except (ApiError, UsageError) as error:
            if self._requeue or getattr(error, "status", 1) == 0:
                raise
            raise NotPlaced(str(error)) from None
        self._note("submitted", detail=f"Job {name} for {', '.join(nodes)}")
        self._await_pods(self._pods)
        self._order(self._pods, nodes, [*program, "order", path])

    def _await_pods(self, pods: JobPods) -> None:
        """Wait until all run. Raises NotPlaced, ClusterError."""
        if not self._requeue:
            self._await_nodes(pods)
        if not pods.await_that(pods.run, UP_S):
            raise ClusterError(f"Job {self.name}: not all pods run: {pods.problem()}")

    def _await_nodes(self, pods: JobPods) -> None:
        """Wait until each has its node. Raises NotPlaced."""

        def placed() -> bool:
            return len(pods.by_node()) >= len(self.nodes)

        if not pods.await_that(placed, REFUSED_S):
            pods.await_that(lambda: placed() or pods.refused(), PLACED_S - REFUSED_S)
        if not placed():
            raise NotPlaced(f"Kubernetes would not start it beside this run ({pods.problem()})")

    def _order(self, pods: JobPods, nodes: tuple[str, ...], take: list[str]) -> None:
        """Tell each pod its torchrun. Raises ClusterError."""
        cluster, job = self._cluster, self._job
        addresses = {node: pod.state.address for node, pod in pods.by_node().items()}
        first = nodes[0]
        own = addresses[first] != cluster.address(first)
        port = _PORT if own else cluster.free_port(first)
        start = Start(self._id, nodes, self._requeue, addresses[first], port, cluster.python)
        orders = {}
        for node in nodes:
            argv = start.argv(job, node, addresses[node], f"/tmp/.mnode-{self._id}-ranks")
            given = {**node_env(), **job.env}
            env = start.env(job, node, cluster.fabric_interface(node), given)
            order = {
                "argv": as_there(argv, cluster.python, self._run.packages.get(node, "")),
                "env": environment({**node_env(), **env, RUN: cluster.run_id}),
                "cwd": str(Path.cwd()),
            }
            data = json.dumps(order).encode()
            orders[node] = b"%d\n%s" % (len(data), data)
        done = pods.run_each(dict.fromkeys(nodes, take), timeout=_ORDERED_S, given=orders)
        for result in done:
            if not result.ok:
                lines = result.stderr.strip().splitlines() or [f"not within {_ORDERED_S:g} s"]
                raise ClusterError(f"{result.node}: its pod took no order: {lines[-1]}")

    def _end(self, on: Iterable[str]) -> None:
        """Kill all processes, and delete the Job. Raises ClusterError."""
        if self._pods is None:
            return
        ended = self._pods.statuses()
        try:
            self._kill([node for node in on if node not in ended])
        finally:
            self._remove(self.nodes)

    def _remove(self, nodes: Iterable[str]) -> None:
        """Delete the Job; wait until its pods have ended, where their nodes are there."""
        pods = self._pods
        if pods is None or not self._made:
            return
        path = self._api.path("jobs", "batch/v1", self._made)
        try:
            self._api.request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise
        end = time.monotonic() + _ENDED_S
        placed = [node for node in nodes if node in pods.by_node()]
        while left := [node for node in placed if node not in pods.statuses()]:
            if time.monotonic() > end:
                raise ClusterError(f"Job {self._made}: its pods still run on {', '.join(left)}")
            pods.await_that(lambda: False, 0.2)
        self._made = ""
        for node in nodes:
            self._earlier[node, self._requeue] = pods.output(node)
        pods.close()

    def _exit_statuses(self) -> dict[str, int]:
        assert self._pods is not None
        self._preempted = self._preempted or any(map(self._disturbed, self.nodes))
        return self._pods.statuses()

    def _disturbed(self, node: str) -> str:
        """Why Kubernetes ends its pod there; "" where it does not."""
        pod = self._pods.by_node().get(node) if self._pods else None
        return pod.disturbed if pod is not None and self._made else ""

    def _how_ended(self, node: str, status: int) -> str:
        why = self._disturbed(node)
        return f"status {status}{', ' * bool(why)}{why}"

    def _printed(self, node: str, requeue: int) -> str:
        known = self._earlier.get((node, requeue))
        if known is not None or self._pods is None or requeue != self._requeue:
            return known or ""
        return self._pods.output(node)
