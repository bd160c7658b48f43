"""Kills after which a scheduler starts the job again, where the run submits no jobs to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.restart.experiments import judge_killed, kill_in_run
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.spec.restart import Kill, RestartCriterion

PROMISE = RestartCriterion.model_validate({"within": "60 s"})


@pytest.mark.parametrize("kill", ["node", "preemption"])
def test_a_restart_by_the_scheduler_is_inconclusive(kill: Kill, tmp_path: Path) -> None:
    cluster: Any = SimpleNamespace(
        why_not_submitted="no jobs to pbs", share_kernel=False, share_files=True
    )
    cluster.scratch = tmp_path
    found = kill_in_run(kill, PROMISE, cluster, load_spec(default_spec_path()), tmp_path)
    assert isinstance(found, str)
    assert found.startswith("no jobs to pbs")
    [measured] = judge_killed(kill, PROMISE, found, tmp_path)
    assert measured.verdict is Verdict.INCONCLUSIVE
