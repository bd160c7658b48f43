"""The default scheduler: a gang is an Indexed Job, and nothing keeps it whole.

The code that all kinds share is here as well.
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
    """A kind of API object. group: "" for v1. kind: name in manifests. plural: name in paths."""

    group: str
    kind: str
    plural: str


JOB = Resource("batch", "Job", "jobs")


@dataclass(frozen=True, slots=True)
class PodGang:
    """A gang to create.

    name: of its root object. size: number of pods. least: number of pods with which it may start.
    template: complete pod template. labels: labels of its objects. limit_s: time limit. requeue:
    whether it restarts after it lost a node. queue, priority: "" if the spec names none.
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
    """A kind of gang. Its objects have the gang's name unless a controller makes them.

    root: the object that creates the pods. beside: objects created before it and deleted with it.
    quoted: objects whose conditions are shown with the pods' and the root's; None for none.
    rank_variable: environment variable with the rank. restarts_from: path of the pod's field with
    the number of restarts; "" if a gang has only one start.
    """

    name: ClassVar[str] = "default"
    root: ClassVar[Resource] = JOB
    beside: ClassVar[tuple[Resource, ...]] = ()
    quoted: ClassVar[Resource | None] = None
    rank_variable: ClassVar[str] = "JOB_COMPLETION_INDEX"
    restarts_from: ClassVar[str] = ""

    def manifests(self, gang: PodGang) -> dict[Resource, Manifest]:
        """The objects of a gang, in order of creation; without apiVersion, and without metadata
        except labels and annotations specific to the kind."""
        return {JOB: {"spec": job_spec(gang)}}

    def state(self, root: Object, quoted: Object | None) -> RootState:
        """State from the root object and the quoted object; None if there is none."""
        return job_state(root, words_of(quoted, "status") if quoted else "")

    def quoted_by(self, run_id: str, roots: Iterable[Object]) -> str:  # noqa: ARG002
        """Label selector of the quoted objects."""
        return f"{RUN_LABEL}={run_id}"

    def root_of(self, quoted: Object) -> str:
        """Name of the root object that a quoted object belongs to."""
        owners = quoted["metadata"].get("ownerReferences") or []
        mine = (o["name"] for o in owners if o["kind"] == self.root.kind)
        return str(next(mine, quoted["metadata"]["name"]))


def job_spec(gang: PodGang) -> Manifest:
    """Spec of an Indexed Job that fails with its first failed pod."""
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
    """State of a Job of batch/v1. words: status from the component that admits it."""
    found = conditions(root)
    failed = is_true(found, "Failed") or is_true(found, "FailureTarget")
    over = is_true(found, "Complete") or is_true(found, "Failed")
    ends = next((name for name in ("Failed", "Complete") if is_true(found, name)), "")
    reason = found.get(ends, {}).get("reason") if ends == "Failed" else ""
    shown = f"{ends} ({reason})" if reason else ends
    return RootState(shown or words, over, failed)


def words_of(found: Object, *names: str) -> str:
    """The first of these conditions that exists: its type if it is true, else its reason."""
    every = conditions(found)
    for name in names:
        if (one := every.get(name)) is None:
            continue
        if one["status"] == "True":
            return name
        reason = " ".join(str(one.get("message") or one.get("reason") or "").split())
        return f"not {name} ({reason})"
    return ""


def ended(root: Object, complete: str, words: str) -> RootState:
    """State of an object that ends with the condition `complete` or Failed."""
    found = conditions(root)
    end = next((name for name in ("Failed", complete) if is_true(found, name)), "")
    return RootState(end or words, bool(end), end == "Failed")
