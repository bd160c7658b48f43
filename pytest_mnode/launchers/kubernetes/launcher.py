"""Nodes that are pods: one per Kubernetes node, created for the run and deleted with it."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.cleanup.client import Connections
from pytest_mnode.launchers.kubernetes import pod_wait
from pytest_mnode.launchers.kubernetes.api import in_pod
from pytest_mnode.launchers.kubernetes.bridge import PULL_S, BridgeSettings
from pytest_mnode.launchers.kubernetes.manifest import keep_on
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.kubernetes.run_in_pods import RunInPods
from pytest_mnode.launchers.kubernetes.template import read_manifest
from pytest_mnode.launchers.node import Node, count
from pytest_mnode.launchers.remote import bootstrap
from pytest_mnode.launchers.remote.launcher import POWERED_OFF, RemoteLauncher, RemoteOptions
from pytest_mnode.launchers.remote.run_all import unusable_nodes
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec

SILENCE_S = 120.0
"""Silence of the run after which its pods end."""
CONNECT_S = 40.0
RELAY_S = 45.0
DELETE_S = 9.0
REPLACED_S = 60.0
"""Time in which a Job replaces a lost pod: its controller waits 10 s and more."""
KEEP_PODS = "nodeAffinity in the template keeps pods on their nodes"
_SLACK_S = 10.0
_BRIDGE = "pytest_mnode.launchers.kubernetes.bridge"


class Kubernetes(RemoteLauncher):
    """Pods of one namespace, reached only through the API server. Thread-safe.

    on: names of the nodes that may have a pod; () for any.
    """

    name = "kubernetes"
    relays = True
    starts_late = "the Python of its container is slow to start, or hangs"

    def __init__(
        self,
        nodes: int,
        spec: Spec,
        remote: RemoteOptions,
        options: KubernetesOptions,
        on: Sequence[str] = (),
    ) -> None:
        # An image has its Python in PATH; a run in a pod uses the image of its own pod.
        python = remote.python or (sys.executable if in_pod() else "python3")
        super().__init__(spec, dataclasses.replace(remote, python=python))
        self._options = options
        self._count = nodes
        self._run_id = uuid.uuid4().hex[:10]
        self._socket = str(Path(self._run_dir) / "kube")
        self._connections = Connections(self._bridge_ended)
        manifest = read_manifest(options, spec.accelerators.per_node)
        self._manifest = keep_on(manifest, on) if on else manifest
        self._owner: Mapping[str, str] = {}
        self._lost: dict[str, str] = {}
        self._moved: dict[str, str] = {}
        """By lost host, where its new pod is, if that is on another node."""
        self._relay_ports: dict[str, int] | None = None
        self._news = threading.Condition()
        self._events_ended = False
        """Whether the bridge has stopped sending events."""
        self._bridge_why = ""
        self._events: socket.socket | None = None

    def _start(self) -> None:
        """Create the pods, wait until they run, and get a report of each. Raises ClusterError."""
        daemon_pid = self._connections.start(self._prepare())
        settings = Path(self._run_dir) / "bridge.json"
        settings.write_text(json.dumps(dataclasses.asdict(self._bridge_settings())))
        argv = [sys.executable, "-P", "-m", _BRIDGE, str(settings), self._socket]
        problems = self._connections.connect(
            {self.name: (argv, self._socket)}, CONNECT_S, end_s=DELETE_S
        )
        if problems:
            raise ClusterError(f"kubernetes: {problems[self.name]}")
        events = self._listen()
        pods = self._await_pods(events)
        there = [self.python, "-I", "-S", "-c", bootstrap.BOOTSTRAP]
        self._write_config(daemon_pid, dict.fromkeys(pods, there), self._socket)
        reports, problems = self._reports(list(pods))
        if problems:
            named = {_shown(pods[host]): why for host, why in problems.items()}
            raise unusable_nodes(named, len(pods), "kubernetes")
        # A pod's host name is not the operator's name of the node.
        reports = {
            host: dataclasses.replace(reports[host], hostname=pod["node"])
            for host, pod in pods.items()
        }
        addresses = {host: pod["address"] for host, pod in pods.items()}
        self._take(reports, addresses, "kubernetes")
        scheduler = self._spec.scheduler
        self.pods = RunInPods(
            self._options.context,
            self._options.namespace,
            self._manifest,
            self._owner,
            {name: self._package_dirs[host] for name, host in self._hosts_by_name.items()},
            scheduler.engine if scheduler else None,
            scheduler.queue if scheduler else None,
        )
        threading.Thread(
            target=self._hear, args=(events,), name="kubernetes-events", daemon=True
        ).start()

    def relay(self, port: int) -> dict[str, int]:
        with self._news:
            self._ask_bridge({"relay": port})
            self._news.wait_for(
                lambda: self._relay_ports is not None or self._events_ended, RELAY_S
            )
            if self._relay_ports is None:
                why = self._bridge_why or f"no relay within {RELAY_S:g} s"
                raise ClusterError(f"kubernetes: pods cannot reach this machine: {why}")
            ports = self._relay_ports
        names = {host: name for name, host in self._hosts_by_name.items()}
        lost = {name: self._lost.get(h, "") for h, name in names.items() if h not in ports}
        if lost:
            raise unusable_nodes(lost, len(names), self.name)
        return {names[host]: port for host, port in ports.items()}

    def _bridge_settings(self) -> BridgeSettings:
        alive = f"/tmp/.mnode-{self._run_id}"
        text = Path(pod_wait.__file__).read_text()
        return BridgeSettings(
            context=self._options.context,
            namespace=self._options.namespace,
            manifest=self._manifest,
            run_id=self._run_id,
            nodes=self._count,
            python=self.python,
            wait=[
                *(self.python, "-I", "-S", "-c", text, alive),
                *(f"{self._options.wait_s + PULL_S + SILENCE_S:g}", f"{SILENCE_S:g}"),
            ],
            wait_s=self._options.wait_s,
            alive=alive,
            scratch=self._run_dir,
        )

    # What the bridge reports.

    def _listen(self) -> Iterator[Mapping[str, Any]]:
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._events.connect(self._socket)
        self._ask_bridge({"events": True})
        return (json.loads(line) for line in self._events.makefile("rb"))

    def _ask_bridge(self, order: Mapping[str, Any]) -> None:
        assert self._events is not None
        try:
            self._events.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise ClusterError(f"kubernetes: the bridge has ended: {error.strerror}") from None

    def _await_pods(self, events: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
        assert self._events is not None
        end = time.monotonic() + self._options.wait_s + PULL_S + _SLACK_S
        self._events.settimeout(self._options.wait_s + _SLACK_S)
        problem = ""
        try:
            for event in events:
                match event:
                    case {"owner": owner}:
                        self._owner = owner
                    case {"pods": pods}:
                        self._check_apart(pods)
                        self._events.settimeout(None)
                        return dict(pods)
                    case {"failed": reasons}:
                        raise unusable_nodes(reasons, self._count, self.name)
                    case {"problem": why}:
                        problem = f": {why}"
                    case {"waiting": text}:
                        progress(f"pods are not up yet: {text}")
                if time.monotonic() > end:
                    break
        except TimeoutError:
            pass
        why = f": {self._bridge_why}" if self._bridge_why else problem
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

    def _hear(self, events: Iterator[Mapping[str, Any]]) -> None:
        try:
            for event in events:
                self._note(event)
        except (OSError, ValueError):
            pass
        with self._news:
            self._events_ended = True
            self._news.notify_all()

    def _note(self, event: Mapping[str, Any]) -> None:
        names = {host: name for name, host in self._hosts_by_name.items()}
        with self._news:
            match event:
                case {"relays": ports}:
                    self._relay_ports = ports
                case {"lost": host, "why": why}:
                    self._lost.setdefault(host, why)
                    self._moved.pop(host, None)
                case {"back": host, "node": node, "pod": pod} if names.get(host) != node:
                    self._moved[host] = f"its new pod {pod} is on {node}"
                case {"back": host, "address": address}:
                    self._lost.pop(host, None)
                    self._moved.pop(host, None)
                    self.nodes = tuple(
                        dataclasses.replace(n, address=address) if n.name == names[host] else n
                        for n in self.nodes
                    )
            self._news.notify_all()
        if "lost" in event and event["lost"] in names and not self._closed:
            self._watchers.lost(names[event["lost"]], event["why"])

    def _bridge_ended(self, _: str, why: str) -> None:
        self._bridge_why = f"the connection to the API server ended: {why}"
        for name, host in self._hosts_by_name.items():
            self._lost.setdefault(host, self._bridge_why)
            self._watchers.lost(name, self._lost[host])

    # See RemoteLauncher.

    def _why_gone(self, node: Node) -> str | None:
        host = self._host_of(node.name)
        return "the run is over" if self._closed else self._moved.get(host) or self._lost.get(host)

    def _went_off(self, node: Node) -> None:
        self._lost[self._host_of(node.name)] = POWERED_OFF

    def _power_on(self, node: Node) -> None:
        """The Job replaces a lost pod; the node's power is switched only if it was switched off, or
        if no new pod comes."""
        host = self._host_of(node.name)
        if self._lost.get(host) == POWERED_OFF:
            super()._power_on(node)
            return
        end = time.monotonic() + REPLACED_S
        while problem := self._problem_with(node, end - time.monotonic()):
            if self._spec.power is not None and time.monotonic() > end:
                super()._power_on(node)
                return
            if time.monotonic() > end or self._closed or self._events_ended:
                raise ClusterError(f"{node.name} was not back {REPLACED_S:g} s later: {problem}")
            time.sleep(0.5)

    def _problem_with(self, node: Node, limit_s: float) -> str | None:  # noqa: ARG002
        host = self._host_of(node.name)
        if moved := self._moved.get(host):
            raise ClusterError(f"{node.name} has no pod any more: {moved}; {KEEP_PODS}")
        if why := self._lost.get(host):
            return why
        _, problems = self._reports([host])
        return problems.get(host)

    def _give_back(self) -> None:
        """The bridge deletes the object, and with it the pods."""
        try:
            self._connections.close()
        finally:
            if self._events is not None:
                self._events.close()


def _shown(pod: Mapping[str, str]) -> str:
    return f"{pod['node']} ({pod['pod']})"
