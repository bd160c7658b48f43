"""Requests to the API server for served API versions, and for nodes with their pods."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.kubernetes.nodes import NodeView, views
from pytest_mnode.launchers.kubernetes.api import Api, ApiError


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


def served_views(api: Api, ours: Mapping[str, str]) -> list[NodeView]:
    """All nodes with their pods. ours: labels that only our pods have.

    Raises ApiError, also if nodes, or pods of all namespaces, may not be listed.
    """
    nodes = api.request("GET", "/api/v1/nodes")["items"]
    fields = "status.phase!=Succeeded,status.phase!=Failed"
    pods = api.request("GET", "/api/v1/pods", query={"fieldSelector": fields})["items"]
    return views(nodes, pods, ours)
