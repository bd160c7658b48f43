"""The default scheduler: a gang is an Indexed Job, and nothing keeps it whole.

What the others have in common is here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_mnode.gang.kubernetes.pods import RootState
from pytest_mnode.launchers.kubernetes.conditions import Object, conditions, is_true
from pytest_mnode.launchers.kubernetes.manifest import KEPT_S, RUN_LABEL, Manifest


@dataclass(frozen=True, slots=True)
class Resource:
    """Objects of one kind. group: "" for those of v1. kind: in manifests; plural: in paths."""

    group: str
    kind: str
    plural: str


JOB = Resource("batch", "Job", "jobs")


@dataclass(frozen=True, slots=True)
class PodGang:
    """A gang to be made.

    name: of its root object. size: number of pods. least: from how many on it may start. template:
    of its pods, with everything filled in. labels: of its objects. limit_s: then it is ended.
    queue, priority: "" where the spec names none.
    """

    name: str
    size: int
    least: int
    template: Manifest
    labels: Mapping[str, str]
    limit_s: int
    requeue: bool = False
    queue: str = ""
    priority: str = ""


class Plain:
    """A kind. Objects have the gang's name where they are not made by a controller.

    root: the object that brings the pods up. beside: what is made before it and deleted with it.
    quoted: objects whose conditions are shown beside the pods; those of the root are always.
    rank_variable: of a container's environment. restarts_from: path of the pod's field with the
    number of restarts; "" where a gang has one start only.
    """

    name: ClassVar[str] = "default"
    root: ClassVar[Resource] = JOB
    beside: ClassVar[tuple[Resource, ...]] = ()
    quoted: ClassVar[Resource | None] = None
    rank_variable: ClassVar[str] = "JOB_COMPLETION_INDEX"
    restarts_from: ClassVar[str] = ""

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        """The objects of a gang in the order in which they are made; without apiVersion, metadata
        but for labels and annotations of the kind's own."""
        return {JOB: {"spec": job_spec(gang)}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        """What the root object says, and the quoted one beside it."""
        return job_state(root, words_of(quoted, "status") if quoted else "")

    def quoted_by(self, run_id: str, roots: Iterable[Object]) -> str:  # noqa: ARG002
        """A selector of labels for the quoted objects."""
        return f"{RUN_LABEL}={run_id}"

    def root_of(self, quoted: Object) -> str:
        """The name of the root that a quoted object belongs to."""
        owners = quoted["metadata"].get("ownerReferences") or []
        mine = (o["name"] for o in owners if o["kind"] == self.root.kind)
        return str(next(mine, quoted["metadata"]["name"]))


def job_spec(gang: PodGang) -> Manifest:
    """An Indexed Job that is over with the first pod that fails."""
    return {
        "parallelism": gang.size,
        "completions": gang.size,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": gang.limit_s,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": gang.template,
    }


def job_state(root: Object, words: str = "") -> RootState:
    """Of a Job of batch/v1. words: of who admits it."""
    found = conditions(root)
    failed = is_true(found, "Failed") or is_true(found, "FailureTarget")
    over = is_true(found, "Complete") or is_true(found, "Failed")
    ends = next((name for name in ("Failed", "Complete") if is_true(found, name)), "")
    reason = found.get(ends, {}).get("reason") if ends == "Failed" else ""
    shown = f"{ends} ({reason})" if reason else ends
    return RootState(shown or words, over, failed)


def words_of(found: Object, *names: str) -> str:
    """The first of these conditions that is there: its type where it is true, else its reason."""
    every = conditions(found)
    for name in names:
        if (one := every.get(name)) is None:
            continue
        if one["status"] == "True":
            return name
        reason = " ".join(str(one.get("message") or one.get("reason") or "").split())
        return f"not {name} ({reason})"
    return ""
