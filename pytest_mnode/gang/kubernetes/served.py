"""Which version of a group's objects a server has."""

from __future__ import annotations

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.api import Api, ApiError


def api_version(api: Api, group: str, plural: str) -> str:
    """Such as "batch/v1": the one that the server prefers among those with these objects.

    Raises UsageError where it has none, ApiError.
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
    has = f"only {', '.join(versions)}" if versions else "nothing of that group"
    raise UsageError(f"this Kubernetes has no {plural} of {group}: it serves {has}")
