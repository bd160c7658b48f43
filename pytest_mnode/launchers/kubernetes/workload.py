"""Kinds of objects that create pods: their names in paths, and their events."""

from __future__ import annotations

from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.manifest import PodsOfRun

GROUPS = {
    "Job": "jobs",
    "JobSet": "jobsets",
    "PyTorchJob": "pytorchjobs",
    "TrainJob": "trainjobs",
}
"""Plural of each kind, as in paths; a Job may be of batch/v1 or of Volcano."""
_MOST_EVENTS = 3


def failed_events(api: Api, run: PodsOfRun) -> list[str]:
    """The last warnings about a run's object, such as a quota that is used up, and about objects
    made for it: the Job of a JobSet has its name and more."""
    query = {"fieldSelector": "type=Warning,involvedObject.kind!=Pod"}
    try:
        items = api.request("GET", api.path("events"), query=query)["items"]
    except ApiError:  # reading events may not be allowed
        return []
    ours = [item for item in items if run.name in (item["involvedObject"].get("name") or "")]
    texts = [" ".join(str(item.get("message", "")).split()) for item in ours]
    return list(dict.fromkeys(texts))[-_MOST_EVENTS:]
