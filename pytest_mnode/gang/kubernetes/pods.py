"""A job's record, from a root object and its pods as the API server shows them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from pytest_mnode.gang.engine import JobRecord, Phase
from pytest_mnode.launchers.kubernetes.pods import Object, why_unscheduled

GANG_LABEL = "pytest-mnode/gang"
"""Label of a gang's pods and objects; its value is the name of the root object."""


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod. node: "" while it has none. phase: the API server's, or Terminating. over: whether it
    has ended, and holds no node any more. why: why it has no node; "" if it has one."""

    name: str
    gang: str
    version: int
    node: str
    phase: str
    over: bool
    why: str = ""

    @classmethod
    def read(cls, pod: Object) -> Self:
        """Read a pod from the API server's JSON."""
        metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
        phase = status.get("phase") or "Pending"
        over = phase in ("Succeeded", "Failed")
        if metadata.get("deletionTimestamp") and not over:
            phase = "Terminating"
        return cls(
            name=metadata["name"],
            gang=(metadata.get("labels") or {}).get(GANG_LABEL, ""),
            version=int(metadata["resourceVersion"]),
            node=spec.get("nodeName") or "",
            phase=phase,
            over=over,
            why="" if spec.get("nodeName") else _first_sentence(why_unscheduled(pod) or ""),
        )

    @property
    def holds(self) -> bool:
        return bool(self.node) and not self.over and self.phase != "Terminating"

    @property
    def leaves(self) -> bool:
        return bool(self.node) and self.phase == "Terminating"


def _first_sentence(text: str) -> str:
    """Further sentences are hints about preemption."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class RootState:
    """State of a root object.

    words: the controller's conditions, such as "Admitted". over: whether it has ended, and creates
    no more pods. blocked: whether it waits for something other than nodes.
    """

    words: str = ""
    over: bool = False
    failed: bool = False
    restarts: int = 0
    blocked: bool = False


def record_of(name: str, root: RootState | None, pods: Iterable[GangPod]) -> JobRecord | None:
    """A gang's record; None if nothing of it is left. root: None if it was deleted."""
    some = sorted(pods, key=lambda pod: pod.name)
    if root is None and not some:
        return None
    holding = tuple(pod.node for pod in some if pod.holds)
    leaving = tuple(pod.node for pod in some if pod.leaves)
    waiting = [pod for pod in some if not pod.node and not pod.over]
    ended = [pod for pod in some if pod.over]
    going = root is None or root.over
    phase, nodes = Phase.WAITING, holding
    if going and not holding and not leaving:
        phase = Phase.OVER
    elif going or (leaving and not holding) or ((ended or leaving) and holding and not waiting):
        phase, nodes = Phase.ENDING, (*holding, *leaving)
    elif holding:
        phase = Phase.HOLDING
    elif ended and not waiting:  # the root's controller has not noticed it yet
        phase = Phase.ENDING
    return JobRecord(
        job=name,
        phase=phase,
        nodes=nodes,
        status=_status(phase, root, some),
        restarts=root.restarts if root else 0,
        failed=bool(root and root.failed and phase is Phase.OVER),
        blocked=bool(root and root.blocked and phase is Phase.WAITING),
    )


def _status(phase: Phase, root: RootState | None, pods: Sequence[GangPod]) -> str:
    """The root's words, numbers of pods by phase, and the waiting pods' most frequent reason."""
    words = "deleted" if root is None else root.words
    if phase is Phase.OVER:
        return words
    counts = Counter(
        f"{pod.phase} on a node" if pod.node and pod.phase == "Pending" else pod.phase
        for pod in pods
    )
    whys = Counter(pod.why for pod in pods if pod.why).most_common(1)
    shown = " + ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    why = f" ({whys[0][0]})" if whys else ""
    return ": ".join(filter(None, (words, shown))) + why
