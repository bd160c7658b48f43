"""A part of the job in existing ranks: settings during the run, and after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.criteria.restart import warm_runs
from pytest_mnode.measuring import algorithms
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job import device
from pytest_mnode.reference_job.config import JobConfig


class Trained:
    """A trainer that trains nothing."""

    finished_steps = 9
    model: Any = torch.nn.Linear(1, 1)

    def resume(self) -> None: ...

    end = close = resume


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

    class Noting(Trained):
        def __init__(self, *_: Any, **__: Any) -> None:
            note("made")

        def resume(self) -> None:
            note("resumed")

        end = close = resume

    monkeypatch.setattr(device, "device_of", lambda *_: note("device"))
    monkeypatch.setattr(trainer, "Trainer", Noting)
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


@pytest.mark.parametrize(
    ("deterministic", "backend", "set_before", "pinned"),
    [
        (True, "nccl", None, True),
        (True, "nccl", "Tree", False),
        (False, "nccl", None, False),
        (True, "gloo", None, False),
    ],
)
def test_a_deterministic_run_on_nccl_sums_in_rings(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: bool,
    backend: str,
    set_before: str | None,
    pinned: bool,
) -> None:
    """Reductions in switches (NVLS) would differ from call to call."""
    from pytest_mnode.reference_job import trainer

    used: list[Any] = []

    class Grouped(Trained):
        def __init__(self, *_: Any, group: Any) -> None:
            used.append(group)

    @contextlib.contextmanager
    def fresh_group(algorithm: algorithms.Algorithm, _: Any) -> Iterator[Any]:
        assert algorithm.pinned
        yield "ring"

    monkeypatch.setattr(device, "device_of", lambda *_: None)
    monkeypatch.setattr(trainer, "Trainer", Grouped)
    monkeypatch.setattr(algorithms, "fresh_group", fresh_group)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    if set_before:
        monkeypatch.setenv("NCCL_ALGO", set_before)
    config = replace(JobConfig(str(tmp_path)), steps=9, deterministic=deterministic)
    assert config.settings.get("NCCL_ALGO") == ("Ring" if deterministic else None)
    warm_runs.train(config, world=ALONE)
    assert used == ["ring" if pinned else None]
