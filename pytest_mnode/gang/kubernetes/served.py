"""Requests to the API server: API versions, pods as it admits them, nodes with their pods.

Only facts that decide for a whole node are read: readiness, cordons, taints, node selectors,
required node affinity, and the requests of all pods on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.manifest import Manifest
from pytest_mnode.launchers.kubernetes.pods import Object, conditions

Resources = dict[str, Decimal]
_OF_STATE = "node.kubernetes.io/"
"""Prefix of taints that come and go with a node's state."""


def requests_of(spec: Object) -> Resources:
    """Resources that a pod requests of its node; a limit without a request counts as a request.

    An init container that is always restarted (a sidecar) runs together with those after it. A
    request of the pod as a whole replaces the requests of its containers.

    Source: Kubernetes, component-helpers/resource, PodRequests.
    """
    total: Resources = {"pods": Decimal(1)}
    for container in spec.get("containers") or []:
        _add(total, _asked(container))
    most: Resources = {}
    sidecars: Resources = {}
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            asked = {}
        _add(asked, sidecars)
        for name, amount in asked.items():
            most[name] = max(most.get(name, Decimal()), amount)
    total = {name: max(total.get(name, Decimal()), most.get(name, Decimal()))
             for name in {*total, *most}}  # fmt: skip
    total |= _asked(spec)
    _add(total, _amounts(spec.get("overhead") or {}))
    return total


def _asked(container: Object) -> Resources:
    """Requests of a container, or of a pod as a whole."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(given: Object) -> Resources:
    from kubernetes.utils.quantity import parse_quantity

    return {
        name: parse_quantity(amount)  # type: ignore[no-untyped-call]
        for name, amount in given.items()
    }


def _add(total: Resources, more: Resources) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal()) + amount


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. asked_here: requests of other pods on it, by pod. ours: this run's pods on it."""

    node: Object
    asked_here: Mapping[str, Resources]
    ours: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def suits(self, spec: Object) -> bool:
        """Whether a pod with this spec may run on the node, and fits on it when it is empty."""
        lasting = [t for t in _taints(self.node) if not t["key"].startswith(_OF_STATE)]
        return (
            _selected(self.node, spec)
            and not _untolerated(lasting, spec)
            and not self._lacking(spec, {})
        )

    def taken(self, spec: Object) -> str:
        """Why a pod with this spec cannot run there, not counting our pods; "" if it can."""
        if self.node.get("spec", {}).get("unschedulable"):
            return "cordoned"
        ready = conditions(self.node).get("Ready")
        if ready is not None and ready["status"] != "True":
            return f"not ready: {ready.get('message') or ready.get('reason') or ''}"
        if untolerated := _untolerated(_taints(self.node), spec):
            return f"taint {untolerated}"
        if lacking := self._lacking(spec, self.asked_here):
            there = [pod for pod, asked in self.asked_here.items() if asked.get(lacking)]
            return f"{lacking} used by {', '.join(there[:3]) or 'nobody'}"
        return ""

    def _lacking(self, spec: Object, used: Mapping[str, Resources]) -> str:
        """A resource of which too little is left; "" if all suffice."""
        left = _amounts(self.node.get("status", {}).get("allocatable") or {})
        for asked in used.values():
            for name, amount in asked.items():
                left[name] = left.get(name, Decimal()) - amount
        wanted = requests_of(spec)
        return next((n for n, a in wanted.items() if a and left.get(n, Decimal()) < a), "")


def views(nodes: Iterable[Object], pods: Iterable[Object], ours: Object) -> list[NodeView]:
    """Nodes with their pods. pods: of all namespaces. ours: labels that only our pods have."""
    asked: dict[str, dict[str, Resources]] = {}
    own: dict[str, list[str]] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        metadata = pod["metadata"]
        if ours.items() <= (metadata.get("labels") or {}).items():
            own.setdefault(node, []).append(metadata["name"])
        else:
            name = f"pod {metadata['namespace']}/{metadata['name']}"
            asked.setdefault(node, {})[name] = requests_of(pod["spec"])
    named = ((node, node["metadata"]["name"]) for node in nodes)
    return [NodeView(n, asked.get(name, {}), tuple(own.get(name, ()))) for n, name in named]


def _taints(node: Object) -> list[Object]:
    taints = node.get("spec", {}).get("taints") or []
    return [taint for taint in taints if taint["effect"] in ("NoSchedule", "NoExecute")]


def _untolerated(taints: Iterable[Object], spec: Object) -> str:
    """Key of the first taint that the pod does not tolerate; "" if it tolerates all."""
    tolerations = spec.get("tolerations") or []
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            return str(taint["key"])
    return ""


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    exists = toleration.get("operator") == "Exists"
    return toleration["key"] == taint["key"] and (exists or same_value)


def _selected(node: Object, spec: Object) -> bool:
    """Whether nodeSelector and required node affinity select the node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_matches(one, labels) for one in term.get("matchExpressions") or [])
        and all(_matches(one, fields) for one in term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
        if term.get("matchExpressions") or term.get("matchFields")  # an empty term selects no node
    )


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    found = labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    operator: str = expression["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (found is not None) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (found in values) == (operator == "In")
    if found is None or not re.fullmatch(r"[+-]?[0-9]+", found):
        return False
    return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])


def admitted(api: Api, template: Manifest) -> Object:
    """Spec of a pod with this template as the server would store it, by a dry run: some servers add
    tolerations for the GPUs that a pod requests, default requests, or the overhead of a runtime.

    The template's own spec if this user may not try.
    """
    own: Object = template["spec"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template.get("metadata", {}), "generateName": "mnode-"},
        "spec": {**own, "restartPolicy": "Never"},
    }
    try:
        found: Object = api.request("POST", api.path("pods"), pod, {"dryRun": "All"})["spec"]
    except ApiError:
        return own
    return found


def served_views(api: Api, ours: Mapping[str, str]) -> list[NodeView]:
    """All nodes with their pods. ours: labels that only our pods have.

    Raises ApiError, also if nodes, or pods of all namespaces, may not be listed.
    """
    nodes = api.request("GET", "/api/v1/nodes")["items"]
    fields = "status.phase!=Succeeded,status.phase!=Failed"
    pods = api.request("GET", "/api/v1/pods", query={"fieldSelector": fields})["items"]
    return views(nodes, pods, ours)
