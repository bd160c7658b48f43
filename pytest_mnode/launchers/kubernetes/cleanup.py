"""Shows or deletes the objects of a run: `cleanup.py show|delete RUN CONTEXT NAMESPACE KIND…`.

The clean-up process runs it when whoever made them is gone, for whatever reason, or could not
delete them. KIND is GROUP/PLURAL.
`show` prints a line for each object that is left, pods included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from pytest_mnode.errors import MnodeError, UsageError
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL


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


def left(api: Api, run_id: str, kinds: Sequence[str]) -> Iterator[str]:
    """Paths of a run's objects. Raises ApiError."""
    for kind in kinds:
        group, _, plural = kind.rpartition("/")
        path = api.path(plural, api_version(api, group, plural))
        found = api.request("GET", path, query={"labelSelector": f"{RUN_LABEL}={run_id}"})
        yield from (f"{path}/{one['metadata']['name']}" for one in found["items"])


def delete(api: Api, path: str) -> None:
    """Delete an object and its dependents; a missing object is no error. Raises ApiError."""
    try:
        api.request("DELETE", path, {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != 404:
            raise


def main(what: str, run_id: str, context: str, namespace: str, *kinds: str) -> None:
    try:
        api = Api(context, namespace)
        for path in list(left(api, run_id, [*kinds, "pods"] if what == "show" else kinds)):
            if what == "show":
                print(path)
            else:
                delete(api, path)
    except MnodeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
