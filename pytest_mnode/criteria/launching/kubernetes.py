"""The submission path of Kubernetes: each job is an object with its own pods."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching import login, styles
from pytest_mnode.criteria.launching.contract import CANARY
from pytest_mnode.criteria.launching.direct import pins_of
from pytest_mnode.criteria.launching.paths import NotSubmittedError, Outcome, Submission, Submitted
from pytest_mnode.criteria.launching.reports import read_nodes
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.kubernetes.pod_start import PLACED_S, PORT, NotPlaced, Order, PodStart
from pytest_mnode.launchers.kubernetes.api import ApiError
from pytest_mnode.launchers.kubernetes.manifest import RunInPods
from pytest_mnode.launchers.remote.node_report import as_there

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


ROOM = "let the run's template request a part of each node, so that a job's pods fit beside it"


class Pods:
    """Makes pods like those of the run, on the nodes that the job is placed on: ranks have the
    environment of their container, the site's pins, and the job's own variables.
    """

    name = "pods"
    runs_images = False

    def __init__(self, cluster: Nodes, pods: RunInPods) -> None:
        self._cluster = cluster
        self._pods = pods

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> Submission:
        if job.image is not None:
            raise UsageError(
                f"job {job.name}: image {job.image}: the pods of a job have the image of "
                "--mnode-k8s-template; leave image out"
            )
        try:
            return PodSubmission(self._cluster, self._pods, job, nodes)
        except (NotPlaced, ApiError, UsageError) as error:
            raise NotSubmittedError(str(error), ROOM) from None


class PodSubmission:
    """One pod per node, whose main process starts the node's ranks."""

    def __init__(
        self, cluster: Nodes, pods: RunInPods, job: LaunchJob, nodes: Sequence[str]
    ) -> None:
        """Raises NotPlaced, ApiError, UsageError, ClusterError."""
        names = tuple(nodes)
        self._closed = False
        self._began = time.monotonic()
        with _canary():
            name = f"mnode-launch-{uuid.uuid4().hex[:10]}"
            self._start = PodStart(cluster, pods, name, names, PLACED_S)
            try:
                self._start.await_placed()
                self._start.await_run()
                addresses = self._start.addresses()
                first = addresses[names[0]]
                own = first != cluster.address(names[0])
                port = PORT if own else cluster.free_port(names[0])
                pins = {node: pins_of(cluster, node, job.env) for node in names}
                started = styles.processes(job, styles.Placement(names, first, port), pins)
                made = f"a {self._start.what.split()[0]} with pods of its own"
                notes = [f"submitted as {made}"]
                if job.style == "deepspeed":
                    notes.append(
                        "deepspeed's ranks were started one by one, with the variables that its "
                        "launcher sets"
                    )
                # The container's environment adds more variables, of any name.
                self.submitted = Submitted(names, pins, tuple(notes), profile=True)
                self._start.order(_orders(cluster, pods, started))
            except BaseException:
                self.close()
                raise

    def wait(self, timeout_s: float) -> Outcome:
        names, pods = self.submitted.nodes, self._start.pods
        left_s = self._began + timeout_s - time.monotonic()
        pods.await_that(lambda: len(pods.statuses()) == len(names), left_s)
        seconds = time.monotonic() - self._began
        statuses = pods.statuses()
        self.close()
        output = {node: pods.output(node) for node in names}
        reports, logins, hosts = read_nodes(output)
        codes = {node: statuses.get(node) for node in names}
        return Outcome(codes, reports, tuple(logins), hosts, output, seconds)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._start.close()


def _orders(
    cluster: Nodes, pods: RunInPods, started: Mapping[str, Sequence[styles.Process]]
) -> dict[str, Order]:
    beside = Path(cluster.python).parent
    found = {}
    for node, processes in started.items():
        plan = {
            "container": True,
            "path": str(beside) if beside.is_absolute() else "",
            "processes": [{"argv": p.argv, "env": dict(p.env)} for p in processes],
        }
        argv = [cluster.python, "-I", "-S", str(Path(login.__file__))]
        there = as_there(argv, cluster.python, pods.packages.get(node, ""))
        found[node] = Order(there, {}, "/", text=json.dumps(plan))
    return found


@contextmanager
def _canary() -> Iterator[None]:
    """Set CANARY in the submitting environment, no variable of which may reach a pod."""
    os.environ[CANARY] = uuid.uuid4().hex
    try:
        yield
    finally:
        del os.environ[CANARY]
