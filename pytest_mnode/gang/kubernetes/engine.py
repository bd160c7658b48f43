"""The engine for Kubernetes: a gang is a root object with one pod per node.

Each observation lists the run's root objects and pods, so that its time is known; changes of pods
between observations come from a watch. Ranks print their heartbeats. All objects of a run have a
common label, by which they are found, and deleted by `cleanup` even if the controller dies.
"""

from __future__ import annotations

import copy
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang import heartbeat_rank
from pytest_mnode.gang.engine import (
    Capacity,
    GangRequest,
    Heartbeat,
    JobRecord,
    Observation,
    Refused,
)
from pytest_mnode.gang.heartbeats import read_heartbeats
from pytest_mnode.gang.kubernetes.kinds import KINDS, Plain, PodGang, Resource
from pytest_mnode.gang.kubernetes.pods import GANG_LABEL, GangPod, RootState, record_of
from pytest_mnode.gang.kubernetes.served import NodeView, admitted, served_views
from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.cleanup import api_version, delete
from pytest_mnode.launchers.kubernetes.manifest import (
    RUN_LABEL,
    Manifest,
    keep_apart,
    only_on,
    pod_template,
    set_command,
)
from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams, check_logs
from pytest_mnode.options import Settings
from pytest_mnode.spec import Scheduler


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod as the server reported it at `at_s`. gone: whether it was deleted."""

    at_s: float
    pod: GangPod
    gone: bool


class Streams(PodStreams):
    """Pod events and heartbeats of one run, as the server reports them. Thread-safe."""

    def __init__(self, api: Api, selector: str) -> None:
        """Raises ApiError if pods cannot be watched."""
        self._lock = threading.Condition()
        self._events: list[PodEvent] = []
        self._newest: dict[str, int] = {}
        self._beats: list[Heartbeat] = []
        self._unreadable = 0
        self._watch_of_call = 1
        """The watch that reported everything up to the last call of `events`; 0 if none did. The
        first watch missed nothing, because no pod had this new label before."""
        super().__init__(api, selector)

    def events(self, versions: Mapping[str, int], limit_s: float) -> tuple[list[PodEvent], bool]:
        """Events since the last call, and whether they are complete.

        versions: by name, of pods known to exist. The call waits up to `limit_s` until these were
        reported: events come in order, so all earlier ones were reported too. If there is no pod,
        the server has to answer on the watch's connection (bookmarks come only once a minute).
        """

        def reported() -> bool:
            return all(self._newest.get(name, 0) >= v for name, v in versions.items())

        alive = bool(versions) or self.answers(limit_s)
        with self._lock:
            every = self._lock.wait_for(reported, limit_s) and alive
            watch = self.watches if self.watches % 2 else 0
            before, self._watch_of_call = self._watch_of_call, watch if every else 0
            events, self._events = self._events, []
            return events, before == self._watch_of_call != 0

    def heartbeats(self) -> tuple[tuple[Heartbeat, ...], int]:
        """Heartbeats since the last call, and the number of lines that are no heartbeats, plus one
        while the watch is down, because new pods are not read then."""
        with self._lock:
            beats, unreadable = tuple(self._beats), self._unreadable
            self._beats, self._unreadable = [], 0
        return beats, unreadable + self.away

    def changed(self, pod: Mapping[str, Any], gone: bool) -> bool:
        seen, now = GangPod.read(pod), time.time()
        with self._lock:
            if seen.version <= self._newest.get(seen.name, 0):
                return False
            self._newest[seen.name] = seen.version
            self._events.append(PodEvent(now, seen, gone))
            self._lock.notify_all()
        return True

    def printed(self, uid: str, text: str) -> None:  # noqa: ARG002
        beats, unreadable = read_heartbeats(text)
        with self._lock:
            self._beats += beats
            self._unreadable += unreadable


_GANG, _RESTARTS, _NODE = "MNODE_GANG", "MNODE_RESTARTS", "MNODE_NODE"
_GRACE_S = 2


def rank_template(
    given: Mapping[str, object],
    labels: Mapping[str, str],
    *,
    python: str,
    runs_s: float,
    kind: Plain,
    nodes: Sequence[str],
    priority: str,
) -> Manifest:
    """A pod template whose main container prints heartbeats for `runs_s` seconds.

    given: the user's template, kept except for the command and other containers. labels: the
    gang's. nodes: the only ones that the pod may have; () for any. priority: "" for none.
    """
    made: Manifest = copy.deepcopy(dict(given))
    metadata = made.setdefault("metadata", {})
    metadata.setdefault("labels", {}).update(labels)
    spec = made["spec"]
    text = Path(heartbeat_rank.__file__).read_text()
    variables = [_GANG, _RESTARTS, kind.rank_variable, _NODE]
    command = [python, "-I", "-S", "-c", text, "-", f"{runs_s:.3f}", *variables]
    main = set_command(made, command)
    spec["containers"] = [main]  # another one would keep the pod after its rank has ended
    restarts: Manifest = {"value": "0"}
    if path := kind.restarts_from:
        restarts = {"valueFrom": {"fieldRef": {"fieldPath": path}}}
    node_name = {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    main.setdefault("env", []).extend(
        [
            {"name": _GANG, "value": labels[GANG_LABEL]},
            {"name": _RESTARTS, **restarts},
            {"name": _NODE, **node_name},
        ]
    )
    spec["restartPolicy"] = "Never"
    spec.setdefault("terminationGracePeriodSeconds", _GRACE_S)
    spec.setdefault("enableServiceLinks", False)
    if priority:
        spec["priorityClassName"] = priority
    affinity = spec.setdefault("affinity", {})
    keep_apart(affinity, RUN_LABEL, labels[RUN_LABEL])
    if nodes:
        only_on(affinity, nodes)
    return made


_REPORTED_S = 3.0
_BUSY = frozenset({0, 408, 429})


class KubernetesEngine:
    """An `Engine` for Kubernetes; `close` deletes all of its objects.

    manifest: the user's; its first pod template is used for the ranks. leftovers: see Backend.
    python: path in their image; "" for python3.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        manifest: Mapping[str, Any],
        *,
        leftovers: Callable[..., Leftovers],
        python: str = "",
    ) -> None:
        """Raises UsageError, ClusterError."""
        assert scheduler.engine is not None
        self._kind: Plain = KINDS[scheduler.engine]
        self.name = f"kubernetes, {self._kind.name}"
        self._scheduler = scheduler
        self._python = python or "python3"
        self._given = pod_template(manifest)
        self._api = Api(settings.k8s_context, settings.k8s_namespace or scheduler.namespace or "")
        self.run_id = uuid.uuid4().hex[:10]
        self._selector = f"{RUN_LABEL}={self.run_id}"
        resources = [self._kind.root, *self._kind.beside, self._kind.quoted]
        self._versions = {
            one: api_version(self._api, one.group, one.plural) for one in resources if one
        }
        self._owners = self._api.owners()
        self._pod = admitted(self._api, self._given)
        check_logs(self._api)  # heartbeats are read from logs
        self._count = 0
        self._unanswered = self._submitted = False
        self._known: dict[str, GangPod] = {}
        self._roots: dict[str, RootState] = {}
        self._early: list[PodEvent] = []
        self._made: list[str] = []
        kinds = (f"{one.group}/{one.plural}" for one in (self._kind.root, *self._kind.beside))
        left = leftovers(self.run_id, settings.k8s_context, self._api.namespace, *kinds)
        self._streams = Streams(self._api, self._selector)
        self._read_s = time.time()  # no object existed before
        self._cleanup = Cleanup(left)

    def capacity(self) -> Capacity:
        """Nodes on which a rank's pod can run; free are those with room for it."""
        there = [view for view in self._views() if view.suits(self._pod)]
        free = [v.name for v in there if not v.ours and not v.taken(self._pod)]
        return Capacity(tuple(view.name for view in there), tuple(free))

    def others(self, nodes: Sequence[str]) -> dict[str, str]:
        found = {v.name: v.taken(self._pod) for v in self._views()}
        return {node: why for node in nodes if (why := found.get(node, "no such node"))}

    def _views(self) -> list[NodeView]:
        return served_views(self._api, {RUN_LABEL: self.run_id})

    def submit(self, request: GangRequest) -> tuple[str, ...]:
        self._count += 1
        name = f"mnode-gang-{self.run_id}-{self._count}"
        labels = {RUN_LABEL: self.run_id, GANG_LABEL: name}
        least = request.nodes
        if self._scheduler.min_available is not None:
            least = min(least, self._scheduler.min_available)
        gang = PodGang(
            name=name,
            size=request.nodes,
            least=least,
            template=rank_template(
                self._given,
                labels,
                python=self._python,
                runs_s=request.runs_s,
                kind=self._kind,
                nodes=request.among,
                priority=self._scheduler.priority or "",
            ),
            labels=labels,
            limit_s=math.ceil(request.limit_s),
            requeue=request.requeue,
            queue=self._scheduler.queue or "",
            priority=self._scheduler.priority or "",
        )
        for resource, manifest in self._kind.manifests(gang).items():
            self._create(resource, self._filled(resource, manifest, gang))
        self._made.append(name)
        return (name,)

    def _filled(self, resource: Resource, manifest: Manifest, gang: PodGang) -> Manifest:
        metadata = manifest.pop("metadata", {})
        labels = {**metadata.pop("labels", {}), **gang.labels}
        return {
            "apiVersion": self._versions[resource],
            "kind": resource.kind,
            "metadata": {
                **{"name": gang.name, "labels": labels, **metadata},
                **({"ownerReferences": self._owners} if self._owners else {}),
            },
            **manifest,
        }

    def _create(self, resource: Resource, manifest: Manifest) -> None:
        self._submitted = self._unanswered = True  # the object may exist even without an answer
        path = self._api.path(resource.plural, self._versions[resource])
        try:
            self._api.request("POST", path, manifest)
        except ApiError as error:
            if error.status in _BUSY or error.status >= 500:
                raise
            self._unanswered = False
            raise Refused(str(error)) from None
        self._unanswered = False

    def cancel(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            for resource in (self._kind.root, *self._kind.beside):
                delete(self._api, self._api.path(resource.plural, self._versions[resource], job))

    def observe(self) -> Observation:
        asked = time.time()
        try:
            roots = self._root_states()
            answer = self._api.request("GET", self._api.path("pods"), query=self._ours)
        except ClusterError as error:
            return Observation(
                asked, time.time(), None, *self._streams.heartbeats(), why=str(error)
            )
        answered = time.time()
        pods = {pod.name: pod for pod in map(GangPod.read, answer["items"])}
        versions = {name: pod.version for name, pod in pods.items()}
        events, every = self._streams.events(versions, _REPORTED_S)
        newest = int(answer["metadata"]["resourceVersion"])
        reported = self._reported_changes(events, newest, asked)
        changes = tuple(replace(one, complete=every) for one in reported)
        self._known, self._roots = pods, roots
        heartbeats = self._streams.heartbeats()
        observation = Observation(asked, answered, records_of(roots, pods), *heartbeats)
        self._read_s = time.time()
        return replace(observation, reported_changes=changes, complete=every)

    @property
    def _ours(self) -> dict[str, str]:
        return {"labelSelector": self._selector}

    def _root_states(self) -> dict[str, RootState]:
        """States of the root objects, by name. Raises ApiError."""
        kind = self._kind
        path = self._api.path(kind.root.plural, self._versions[kind.root])
        roots = self._api.request("GET", path, query=self._ours)["items"]
        quoted: dict[str, Any] = {}
        if kind.quoted and roots:
            path = self._api.path(kind.quoted.plural, self._versions[kind.quoted])
            query = {"labelSelector": kind.quoted_by(self.run_id, roots)}
            found = self._api.request("GET", path, query=query)["items"]
            quoted = {kind.root_of(one): one for one in found}
        names = [(root["metadata"]["name"], root) for root in roots]
        # A root that is being deleted creates no more pods.
        return {
            name: replace(state, over=True) if root["metadata"].get("deletionTimestamp") else state
            for name, root in names
            for state in (kind.state(root, quoted.get(name)),)
        }

    def _reported_changes(
        self, events: Sequence[PodEvent], newest: int, asked: float
    ) -> Iterator[Observation]:
        """An observation for each change of records that the watch reported since the last list,
        with the words of the root objects in that list."""
        # A gang created since then is waiting; any other without a root object was deleted.
        known, roots = dict(self._known), {**dict.fromkeys(self._made, RootState()), **self._roots}
        self._made = []
        before = records_of(roots, known)
        events, self._early = [*self._early, *events], []
        for event in events:
            pod, old = event.pod, known.get(event.pod.name)
            if pod.version > newest:
                self._early.append(event)  # newer than this list: part of the next observation
                continue
            if old is not None and pod.version <= old.version:
                continue
            known[pod.name] = pod
            if event.gone:
                del known[pod.name]
            records = records_of(roots, known)
            if records != before:
                at_s = min(max(event.at_s, self._read_s), asked)
                yield Observation(at_s, at_s, records, reported=True)
            before = records

    def close(self) -> None:
        """Delete all objects of this run. Raises ClusterError."""
        self._streams.close()
        left = self._cleanup.end(not self._unanswered)
        if left and self._submitted:
            raise ClusterError(left)


def records_of(roots: Mapping[str, RootState], pods: Mapping[str, GangPod]) -> dict[str, JobRecord]:
    """The record of each gang, by the name of its root object."""
    names = dict.fromkeys([*roots, *(pod.gang for pod in pods.values() if pod.gang)])
    found = {
        name: record_of(name, roots.get(name), [pod for pod in pods.values() if pod.gang == name])
        for name in names
    }
    return {name: record for name, record in found.items() if record is not None}
