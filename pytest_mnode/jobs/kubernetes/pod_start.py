"""One start of a job on Kubernetes: its object, its pods, their orders."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.kubernetes import in_pod
from pytest_mnode.jobs.kubernetes.job_pods import JobPods
from pytest_mnode.jobs.kubernetes.manifest import JOB_LABEL, job_manifest, of_engine
from pytest_mnode.launchers.kubernetes.api import Api
from pytest_mnode.launchers.kubernetes.cleanup import delete
from pytest_mnode.launchers.kubernetes.manifest import GROUPS, RunInPods
from pytest_mnode.launchers.kubernetes.pod_streams import check_logs
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.processes import last_line

REFUSED_S, PLACED_S = 6.0, 30.0
"""How long pods of a first start may wait for nodes: if the scheduler gives a reason, because the
run's own pods may hold the resources; and if it gives none, as a queue does."""
UP_S = 90.0
PORT = 29500
"""Port of the rendezvous in a pod with its own address: torchrun's default."""
_ORDERED_S = 30.0
_ENDED_S = 45.0


class NotPlaced(ClusterError):
    """Kubernetes does not start the job beside the run's pods; the text is its reason."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command for a pod's main process.

    env: variables that replace the container's own. passed: variables that count where it has
    none. text: standard input of the command.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    passed: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


class PodStart:
    """One start of a job; its pods are watched until `close` ends it.

    what: kind and name of its object, for messages.
    """

    def __init__(
        self, cluster: Nodes, run: RunInPods, name: str, nodes: Sequence[str], placed_s: float
    ) -> None:
        """Create the object. placed_s: limit for its pods to get nodes.

        Raises UsageError, ApiError.
        """
        self._api = Api(run.context, run.namespace)
        self._nodes, self._placed_s = tuple(nodes), placed_s
        self._program = (cluster.python, "-I", "-S", "-c", Path(in_pod.__file__).read_text())
        self._order_at = f"/tmp/.{name}"
        limit_s = placed_s + UP_S + _ORDERED_S
        waits = [*self._program, "wait", self._order_at, f"{limit_s:g}"]
        given = of_engine(run.manifest, run.engine, run.queue)
        manifest, container = job_manifest(given, name, run.owner, nodes, waits)
        self.what = f"{manifest['kind']} {name}"
        every = self._api.path(GROUPS[manifest["kind"]], manifest["apiVersion"])
        self._path = f"{every}/{name}"
        self.pods = JobPods(
            self._api,
            f"{JOB_LABEL}={name}",
            container,
            nodes=nodes,
            python=cluster.python,
            check=partial(cluster.commands, ["true"]),
        )
        try:
            check_logs(self._api)
            self._api.request("POST", every, manifest)
        except BaseException:
            self.pods.close()
            raise

    def await_placed(self) -> None:
        """Wait until each pod has its node. Raises NotPlaced."""
        pods = self.pods

        def placed() -> bool:
            return len(pods.by_node()) >= len(self._nodes)

        if not pods.await_that(placed, REFUSED_S):
            pods.await_that(lambda: placed() or pods.refused(), self._placed_s - REFUSED_S)
        if not placed():
            raise NotPlaced(f"Kubernetes would not start it beside this run ({pods.problem()})")

    def await_run(self, limit_s: float = UP_S) -> None:
        """Wait until all pods run. Raises ClusterError."""
        if not self.pods.await_that(self.pods.run, limit_s):
            raise ClusterError(f"{self.what}: not all pods run: {self.pods.problem()}")

    def addresses(self) -> dict[str, str]:
        return {node: pod.state.address for node, pod in self.pods.by_node().items()}

    def order(self, orders: Mapping[str, Order]) -> None:
        """Send each pod its order. Raises ClusterError."""
        data = {node: json.dumps(asdict(one)).encode() for node, one in orders.items()}
        given = {node: b"%d\n%s" % (len(text), text) for node, text in data.items()}
        take = [*self._program, "order", self._order_at]
        done = self.pods.run_each(dict.fromkeys(orders, take), timeout=_ORDERED_S, given=given)
        for result in done:
            if not result.ok:
                why = last_line(result.stderr) or f"not within {_ORDERED_S:g} s"
                raise ClusterError(f"{result.node}: its pod took no order: {why}")

    def close(self) -> None:
        """Delete the object, and wait until its pods have ended, unless their nodes are lost; their
        output is kept. Raises ClusterError.
        """
        try:
            self._delete()
            for node in self._nodes:
                self.pods.output(node)  # waits until the output is complete
        finally:
            self.pods.close()

    def _delete(self) -> None:
        pods = self.pods
        delete(self._api, self._path)
        end = time.monotonic() + _ENDED_S
        placed = [node for node in self._nodes if node in pods.by_node()]
        while left := [node for node in placed if node not in pods.statuses()]:
            if time.monotonic() > end:
                raise ClusterError(f"{self.what}: its pods still run on {', '.join(left)}")
            pods.await_that(lambda: False, 0.2)
