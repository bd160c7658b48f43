"""Which path starts a job, and what a job that its scheduler does not start proves: nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.launching import kubernetes as pods_module
from pytest_mnode.criteria.launching.paths import NotSubmittedError
from pytest_mnode.criteria.launching.starting import (
    judged_place,
    judged_start,
    measured_image,
    path_of,
    started_by_path,
)
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced
from pytest_mnode.launchers.kubernetes.api import ApiError
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec, default_spec_path, profile_spec
from pytest_mnode.spec.inventory import Scheduler
from pytest_mnode.spec.launch import LaunchCriterion, StartPromise

JOB = LaunchJob.model_validate(
    {"name": "a", "nodes": 1, "accelerators_per_node": 0, "command": ["x"], "style": "plain"}
)


def spec(**launch: Any) -> Spec:
    page = profile_spec("rack")
    launch = {"torchrun": {"within": "60 s"}, **launch}
    criteria = page.criteria.model_copy(update={"launch": LaunchCriterion.model_validate(launch)})
    return page.model_copy(update={"criteria": criteria})


def cluster(**changes: Any) -> Any:
    facts: dict[str, Any] = {"backend": "rack", "why_not_submitted": ""}
    facts |= {"share_files": True, "nodes": ("n1",)}
    return SimpleNamespace(**{**facts, **changes})


IN_SLURM = {"backend": "slurm", "allocation": 7}
SOON = StartPromise.model_validate({"within": "60 s"})
SLURM = Scheduler.model_validate({"kind": "slurm"})


@pytest.mark.parametrize(
    ("there", "otherwise"),
    [({}, "direct"), (IN_SLURM, "sbatch"), ({"backend": "kubernetes", "job_facts": 1}, "pods")],
)
def test_the_scheduler_starts_jobs_unless_the_spec_says_otherwise(
    there: dict[str, Any], otherwise: str
) -> None:
    assert path_of(cluster(**there)).name == otherwise
    assert path_of(cluster(**there), spec()).name == otherwise
    direct = spec(path="direct").model_copy(update={"scheduler": SLURM})
    assert path_of(cluster(**there), direct).name == "direct"


@pytest.mark.parametrize(
    ("changes", "scheduler", "message"),
    [
        ({**IN_SLURM, "share_files": False}, None, "give one with --mnode-shared-dir"),
        ({"why_not_submitted": "no jobs to pbs"}, None, "not submitted: no jobs to pbs; try it by"),
        ({}, SLURM, "the scheduler of the spec is slurm, .*; give --mnode-launcher=slurm"),
    ],
)
def test_a_scheduler_that_cannot_be_asked_is_inconclusive(
    changes: dict[str, Any], scheduler: Scheduler | None, message: str
) -> None:
    page = spec(image="x/y").model_copy(update={"scheduler": scheduler})
    with pytest.raises(NotSubmittedError, match=message):
        path_of(cluster(**changes), page)
    found = started_by_path(cluster(**changes), page, JOB, ["n1"], what="torchrun", limit_s=9.0)
    assert isinstance(found, Measurement)
    [measured] = judged_start(found, SOON, "criteria.launch.torchrun")
    assert measured.verdict is Verdict.INCONCLUSIVE
    assert "criteria.launch.path: direct" in measured.note
    assert judged_place(found, ["n1"], {}) == []
    image = measured_image(cluster(**changes), page, default_spec_path().parent)
    assert image.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "error", [NotPlaced("4 Insufficient nvidia.com/gpu"), ApiError(403, "jobs is forbidden")]
)
def test_pods_that_do_not_start_beside_the_run_are_inconclusive(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(pods_module, "PodSubmission", refuse)
    there = cluster(backend="kubernetes", job_facts=object())
    found = started_by_path(there, spec(), JOB, ["n1"], what="torchrun", limit_s=9.0)
    assert isinstance(found, Measurement)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.note.startswith(f"not submitted: {error}; let the run's template request a part")


def test_a_path_alone_promises_nothing() -> None:
    with pytest.raises(ValueError, match="path promises nothing without a style"):
        LaunchCriterion.model_validate({"path": "direct"})
