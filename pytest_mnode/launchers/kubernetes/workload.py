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
    """The last warnings about a run's object, such as a quota that is used up."""
    query = {"fieldSelector": f"involvedObject.name={run.name},type=Warning"}
    try:
        items = api.request("GET", api.path("events"), query=query)["items"]
    except ApiError:  # reading events may not be allowed
        return []
    texts = [" ".join(str(item.get("message", "")).split()) for item in items]
    return list(dict.fromkeys(texts))[-_MOST_EVENTS:]
