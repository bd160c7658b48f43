"""State of a pod, and conditions of any object, read from the API server's JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

Object = Mapping[str, Any]
"""An object's JSON from the API server."""
_HOPELESS = {
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
    "StartError",
}
"""Reasons of a waiting or ended container that waiting does not mend."""
_NO_PROBLEM = (None, "Completed", "ContainerCreating", "PodInitializing")
DELETED = "its pod was deleted"
_OOM_KILLED = "its container was killed for memory (OOMKilled)"
_SIGNALS = {137: "SIGKILL", 143: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class PodState:
    """State of a pod.

    uid: includes the number of its container's restarts, which end the container's processes.
    index: index in its Job; None if its kind has none. ready: whether its main process runs.
    problem: why it is not ready, as the scheduler or kubelet reports it; "" if neither does.
    hopeless: whether waiting does not mend the problem. over: why it will not run any more; ""
    while it may. before: how its container ended before a restart.
    """

    name: str
    uid: str
    index: int | None
    node: str
    address: str
    ready: bool
    problem: str
    hopeless: bool
    over: str
    before: str = ""

    @classmethod
    def read(cls, pod: Object, container: str | None = None) -> Self:
        """Read from the API server's JSON. container: the one that matters; None for all."""
        metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
        # A label only from 1.28 on.
        noted = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
        index = noted.get("batch.kubernetes.io/job-completion-index")
        waiting, unscheduled = _waiting(status), why_unscheduled(pod)
        every = status.get("containerStatuses") or []
        statuses = [one for one in every if one["name"] == container] or every
        over = _why_over(pod, statuses)
        runs = status.get("phase") == "Running" and any("running" in s["state"] for s in statuses)
        return cls(
            name=metadata["name"],
            uid=f"{metadata['uid']}.{sum(s.get('restartCount', 0) for s in statuses)}",
            index=int(index) if index is not None else None,
            node=spec.get("nodeName") or "",
            address=status.get("podIP") or "",
            ready=runs and not over,
            problem=waiting[1] if unscheduled is None else unscheduled or "not scheduled",
            hopeless=waiting[0] in _HOPELESS,
            over=over,
            before=_why_restarted(statuses),
        )


def _waiting(status: Object) -> tuple[str, str]:
    """Reason and message of the first container that cannot start."""
    statuses = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for container in statuses:
        state = container.get("state", {})
        for kind in ("waiting", "terminated"):
            found = state.get(kind)
            if found and found.get("reason") not in _NO_PROBLEM:
                words = [container["name"], found["reason"], found.get("message")]
                return found["reason"], ": ".join(filter(None, words))
    return "", ""


def _why_over(pod: Object, statuses: Sequence[Object]) -> str:
    """Why a pod ended, or is about to: evicted, killed for memory, deleted, its node lost."""
    status = pod.get("status", {})
    ended = [s["state"]["terminated"] for s in statuses if "terminated" in s.get("state", {})]
    if any(state.get("reason") == "OOMKilled" for state in ended):
        return _OOM_KILLED
    if disrupted := why_disrupted(pod):
        return disrupted
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"its pod ended{_how_it_ended(status, ended)}"
    if pod["metadata"].get("deletionTimestamp"):
        return DELETED
    again = pod.get("spec", {}).get("restartPolicy", "Always")
    stays = again == "Never" or (again == "OnFailure" and not (ended and ended[0].get("exitCode")))
    if stays and len(ended) == len(statuses) > 0:
        return f"its container ended{_status(ended[0])}"  # other containers still run
    return ""


def why_disrupted(pod: Object) -> str:
    """Why Kubernetes itself ends a pod, such as preemption by one of a higher priority; "" if it
    does not."""
    found = conditions(pod)
    if not is_true(found, "DisruptionTarget"):
        return ""
    why = found["DisruptionTarget"]
    return f"its pod was disrupted: {why.get('message') or why.get('reason')}"


def _why_restarted(statuses: Sequence[Object]) -> str:
    """How a restarted container ended; "" if none was restarted."""
    ended = [s["lastState"]["terminated"] for s in statuses if s.get("lastState")]
    if not ended:
        return ""
    if any(state.get("reason") == "OOMKilled" for state in ended):
        return f"{_OOM_KILLED}, and was restarted"
    return f"its container ended{_status(ended[0])}, and was restarted"


def _how_it_ended(status: Object, ended: Sequence[Object]) -> str:
    words = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    if words or not ended:
        return f": {': '.join(words) or status['phase']}"
    return _status(ended[0])


def _status(ended: Object) -> str:
    code, message = ended.get("exitCode"), ended.get("message")
    name = f" ({_SIGNALS[code]})" if code in _SIGNALS else ""
    return f" with status {code}{name}{': ' * bool(message)}{message or ''}"


def conditions(found: Object | None) -> dict[str, Object]:
    status = (found or {}).get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or []}


def is_true(found: Mapping[str, Object], name: str) -> bool:
    return found.get(name, {}).get("status") == "True"


def why_unscheduled(pod: Object) -> str | None:
    """The scheduler's reason why a pod has no node, "" if it gives none; None if the scheduler does
    not report a failure."""
    found = conditions(pod).get("PodScheduled", {})
    if found.get("status") != "False":
        return None
    return str(found.get("message") or found.get("reason") or "")
