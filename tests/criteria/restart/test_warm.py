"""A part of the job in existing ranks: settings during the run, and after it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_mnode.criteria.restart import warm_runs
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job import device
from pytest_mnode.reference_job.config import JobConfig

NAME = "CUBLAS_WORKSPACE_CONFIG"
ALONE = World(rank=0, size=1, local_rank=0, local_size=1, node="node0", nodes=("node0",))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("set_before", [None, ":16:8"])
def test_a_deterministic_run_is_so_on_accelerators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, set_before: str | None
) -> None:
    from pytest_mnode.reference_job import trainer  # takes seconds, in each worker

    seen: list[tuple[str, str | None, bool]] = []

    def note(when: str) -> None:
        seen.append((when, os.environ.get(NAME), torch.are_deterministic_algorithms_enabled()))

    class Trained:
        finished_steps = 9
        model: Any = torch.nn.Linear(1, 1)

        def __init__(self, *_: Any) -> None:
            note("made")

        def resume(self) -> None:
            note("resumed")

        end = close = resume

    monkeypatch.setattr(device, "device_of", lambda *_: note("device"))
    monkeypatch.setattr(trainer, "Trainer", Trained)
    monkeypatch.delenv(NAME, raising=False)
    if set_before:
        monkeypatch.setenv(NAME, set_before)
    config = replace(JobConfig(str(tmp_path)), steps=9, deterministic=deterministic)
    warm_runs.train(config, world=ALONE)
    while_it_ran = set_before or (":4096:8" if deterministic else None)
    assert {one[1:] for one in seen} == {(while_it_ran, deterministic)}
    assert seen[0][0] == "device"
    assert os.environ.get(NAME) == set_before
    assert not torch.are_deterministic_algorithms_enabled()
