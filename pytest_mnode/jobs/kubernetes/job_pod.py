"""The state of a job's pod, from the API server's JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pytest_mnode.launchers.kubernetes.pods import DELETED, PodState, why_disrupted

LOST = 128 + 9
"""Exit status of torchrun in a pod that ended without one, or whose node is lost."""


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod. runs: commands can be run in its main container. code: exit status of that container;
    None while it may run. ended: no container runs any more. disturbed: why Kubernetes ends or
    ended the pod; "" if it does not."""

    state: PodState
    runs: bool
    code: int | None
    ended: bool
    disturbed: str

    @classmethod
    def read(cls, pod: Mapping[str, Any], container: str | None, *, gone: bool) -> Self:
        """A pod from the API server's JSON. gone: it was deleted."""
        state, status = PodState.read(pod, container), pod.get("status", {})
        statuses = status.get("containerStatuses") or []
        states = {one["name"]: one["state"] for one in statuses}
        found = states.get(container, {})
        code = found["terminated"]["exitCode"] if "terminated" in found else None
        ended = gone or code is not None or status.get("phase") in ("Succeeded", "Failed")
        disturbed = why_disrupted(pod) or (state.over if status.get("reason") else "")
        if not disturbed and (gone or pod["metadata"].get("deletionTimestamp")):
            disturbed = DELETED
        runs = "running" in found and not ended
        code = LOST if ended and code is None else code
        return cls(state, runs, code, ended, disturbed)
