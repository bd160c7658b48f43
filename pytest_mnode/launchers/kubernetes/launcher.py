"""Nodes that are pods: one per Kubernetes node, created for the run and deleted with it."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.kubernetes import pod_wait
from pytest_mnode.launchers.kubernetes.api import REQUEST_S, in_pod
from pytest_mnode.launchers.kubernetes.bridge import PULL_S, BridgeSettings
from pytest_mnode.launchers.kubernetes.manifest import RunInPods, keep_on, kind_of
from pytest_mnode.launchers.kubernetes.template import read_manifest
from pytest_mnode.launchers.node import Node, count
from pytest_mnode.launchers.remote import bootstrap
from pytest_mnode.launchers.remote.launcher import POWERED_OFF, RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.launchers.remote.run_all import unusable_nodes, with_remedy
from pytest_mnode.options import Settings
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec

SILENCE_S = 120.0
"""Silence of the run after which its pods end."""
DELETE_S = 9.0
REPLACED_S = 60.0
"""Time in which a Job replaces a lost pod: its controller waits 10 s and more."""
KEEP_PODS = "nodeAffinity in the template keeps pods on their nodes"
_SLACK_S = 10.0
_BRIDGE = "pytest_mnode.launchers.kubernetes.bridge"


class Kubernetes(RemoteLauncher):
    """Pods of one namespace, reached only through the API server. Thread-safe.

    on: names of the nodes that may have a pod; () for any. leftovers: see Backend.
    """

    name = "kubernetes"
    starts_late = "the Python of its container is slow to start, or hangs"

    def __init__(
        self,
        nodes: int,
        spec: Spec,
        remote: RemoteOptions,
        settings: Settings,
        on: Sequence[str] = (),
        *,
        leftovers: Callable[..., Leftovers],
    ) -> None:
        # An image has its Python in PATH; a run in a pod uses the image of its own pod.
        python = remote.python or (sys.executable if in_pod() else "python3")
        super().__init__(spec, dataclasses.replace(remote, python=python))
        self._settings = settings
        self._count = nodes
        self._run_id = uuid.uuid4().hex[:10]
        manifest = read_manifest(settings, spec.accelerators.per_node)
        self._manifest = keep_on(manifest, on) if on else manifest
        where = settings.k8s_context, settings.k8s_namespace, kind_of(self._manifest)
        self._leftovers = leftovers(self._run_id, *where)
        self._owner: Mapping[str, str] = {}
        self._lost: dict[str, str] = {}
        self._moved: dict[str, str] = {}
        """By lost host, where its new pod is, if that is on another node."""
        self._news = threading.Condition()
        self._pods: Mapping[str, Any] = {}
        """Node, address and pod, by host, once all run."""
        self._failed: Mapping[str, str] = {}
        self._problem = self._bridge_why = ""
        self._heard_at = 0.0

    def _start(self) -> None:
        """Create the pods, wait until they run, and get a report of each. Raises ClusterError."""
        self._bridge.start_daemon(self._prepare())
        settings = dataclasses.asdict(self._bridge_settings())
        try:
            self._start_bridge(_BRIDGE, settings, DELETE_S, REQUEST_S)
        except ClusterError as error:
            raise ClusterError(f"kubernetes: {error}") from None
        pods = self._await_pods()
        opened = self._open(list(pods), self.limits.start_s)
        problems = {host: with_remedy(why) for host, why in opened.items()}
        reports, more = self._reports([host for host in pods if host not in problems])
        if problems := problems | more:
            bad = {host: pod for host, pod in pods.items() if host in problems}
            named = {f"{pod['node']} ({pod['pod']})": problems[host] for host, pod in bad.items()}
            raise unusable_nodes(named, len(pods), "kubernetes")
        # A pod's host name is not the operator's name of the node.
        reports = {
            host: dataclasses.replace(reports[host], hostname=pod["node"])
            for host, pod in pods.items()
        }
        addresses = {host: pod["address"] for host, pod in pods.items()}
        self._take(reports, addresses, "kubernetes")
        scheduler = self._spec.scheduler
        self.job_facts = RunInPods(
            self._settings.k8s_context,
            self._settings.k8s_namespace,
            self._manifest,
            self._owner,
            {name: self._package_dirs[host] for name, host in self._hosts_by_name.items()},
            scheduler.engine if scheduler else None,
            scheduler.queue if scheduler else None,
        )

    def _way(self, host: str) -> list[str]:  # noqa: ARG002
        """The program in a pod."""
        return [self.python, "-I", "-S", "-c", bootstrap.BOOTSTRAP]

    def _bridge_settings(self) -> BridgeSettings:
        alive = f"/tmp/.mnode-{self._run_id}"
        text = Path(pod_wait.__file__).read_text()
        return BridgeSettings(
            context=self._settings.k8s_context,
            namespace=self._settings.k8s_namespace,
            manifest=self._manifest,
            run_id=self._run_id,
            nodes=self._count,
            wait=[
                *(self.python, "-I", "-S", "-c", text, alive),
                *(f"{self._settings.k8s_wait_s + PULL_S + SILENCE_S:g}", f"{SILENCE_S:g}"),
            ],
            wait_s=self._settings.k8s_wait_s,
            alive=alive,
            scratch=self._run_dir,
            leftovers=dataclasses.asdict(self._leftovers),
            silence_s=self.limits.silence_s,
            connect_s=self.limits.connect_s,
            late=self.starts_late,
        )

    # What the bridge reports.

    def _await_pods(self) -> Mapping[str, Any]:
        wait_s = self._settings.k8s_wait_s
        self._heard_at = began = time.monotonic()

        def left_s() -> float:
            longest = began + wait_s + PULL_S + _SLACK_S
            return min(longest, self._heard_at + wait_s + _SLACK_S) - time.monotonic()

        with self._news:
            while not (self._pods or self._failed or self._bridge_why) and left_s() > 0:
                self._news.wait(left_s())
            if self._failed:
                raise unusable_nodes(self._failed, self._count, self.name)
            if self._pods:
                self._check_apart(self._pods)
                return self._pods
            why = f": {self._bridge_why}" if self._bridge_why else self._problem
        raise ClusterError(f"kubernetes: {count(self._count, 'pod')} did not run{why}")

    def _check_apart(self, pods: Mapping[str, Mapping[str, str]]) -> None:
        """Raise ClusterError if two pods are on one node."""
        by_node: dict[str, str] = {}
        for pod in pods.values():
            if (first := by_node.setdefault(pod["node"], pod["pod"])) != pod["pod"]:
                raise ClusterError(
                    f"kubernetes: pods {first} and {pod['pod']} are both on {pod['node']}; a run "
                    "needs one pod per node: remove podAntiAffinity from the template"
                )

    def _hear(self, event: Mapping[str, Any]) -> None:
        """See RemoteLauncher."""
        with self._news:
            self._heard_at = time.monotonic()
            match event:
                case {"owner": owner}:
                    self._owner = owner
                case {"pods": pods}:
                    self._pods = pods
                case {"failed": reasons}:
                    self._failed = reasons
                case {"problem": why}:
                    self._problem = f": {why}"
                case {"waiting": text}:
                    progress(f"pods are not up yet: {text}")
                case {"ended": why}:
                    self._bridge_why = f"the connection to the API server ended: {why}"
            self._news.notify_all()
        match event:
            case {"lost": host, "why": why}:
                self._lost.setdefault(host, why)
                self._moved.pop(host, None)
                self._lose(host, why)
            case {"broken": host, "why": why}:
                self._lose(host, why)
            case {"back": host, "node": node, "pod": pod, "address": address}:
                self._back(host, node, pod, address)
            case {"ended": _}:
                for host in self._hosts_by_name.values():
                    self._lose(host, self._bridge_why)

    def _back(self, host: str, node: str, pod: str, address: str) -> None:
        """A new pod of a host."""
        name = next(name for name, its_host in self._hosts_by_name.items() if its_host == host)
        if name != node:
            self._moved[host] = f"its new pod {pod} is on {node}"
            return
        self._lost.pop(host, None)
        self._moved.pop(host, None)
        with self._lock:
            if self._gone.get(host) != POWERED_OFF:
                self._gone.pop(host, None)
        self.nodes = tuple(
            dataclasses.replace(one, address=address) if one.name == name else one
            for one in self.nodes
        )

    # See RemoteLauncher.

    def _why_gone(self, node: Node) -> str | None:
        host = self._host_of(node.name)
        moved = None if self._closed else self._moved.get(host)
        return moved or super()._why_gone(node)

    def _power_on(self, node: Node) -> None:
        """The Job replaces a lost pod; the node's power is switched only if it was switched off, or
        if no new pod comes."""
        if self._gone.get(self._host_of(node.name)) == POWERED_OFF:
            super()._power_on(node)
            return
        end = time.monotonic() + REPLACED_S
        while problem := self._problem_with(node, end - time.monotonic()):
            if self._spec.power is not None and time.monotonic() > end:
                super()._power_on(node)
                return
            if time.monotonic() > end or self._closed or self._bridge_why:
                raise ClusterError(f"{node.name} was not back {REPLACED_S:g} s later: {problem}")
            time.sleep(0.5)

    def _problem_with(self, node: Node, limit_s: float) -> str | None:
        host = self._host_of(node.name)
        if moved := self._moved.get(host):
            raise ClusterError(f"{node.name} has no pod any more: {moved}; {KEEP_PODS}")
        return self._lost.get(host) or super()._problem_with(node, limit_s)

    def _change(self, node: Node, report: NodeReport) -> str | None:  # noqa: ARG002
        """Its host name is the pod's own."""
        return None
