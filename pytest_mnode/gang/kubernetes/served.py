"""Requests to the API server: API versions, pods as it admits them, nodes with their pods."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.kubernetes.nodes import NodeView, views
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.conditions import Object
from pytest_mnode.launchers.kubernetes.manifest import Manifest


def api_version(api: Api, group: str, plural: str) -> str:
    """The server's preferred API version with these objects, such as "batch/v1".

    Raises UsageError if no version has them, ApiError.
    """
    if not group:
        return "v1"
    try:
        found = api.request("GET", f"/apis/{group}")
    except ApiError as error:
        if error.status != 404:
            raise
        found = {"versions": []}
    preferred = found.get("preferredVersion", {}).get("groupVersion")
    versions = [one["groupVersion"] for one in found["versions"]]
    for version in sorted(versions, key=lambda one: one != preferred):
        resources = api.request("GET", f"/apis/{version}")["resources"]
        if any(one["name"] == plural for one in resources):
            return str(version)
    has = f"only {', '.join(versions)}" if versions else "no version of that group"
    raise UsageError(f"this cluster has no {plural} of {group}: it serves {has}")


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
