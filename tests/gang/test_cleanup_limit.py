"""Engines of the gang experiment whose clean-up does not end: what may be left is named."""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang import slurm
from pytest_mnode.gang.kubernetes import engine


class Endless:
    def finish(self, last: bytes) -> None: ...

    def wait(self, limit_s: float) -> None:
        time.sleep(limit_s)


@pytest.mark.parametrize(
    ("module", "kind", "left"),
    [
        (slurm, slurm.SlurmEngine, "jobs named mine may be left"),
        (engine, engine.KubernetesEngine, "objects labelled mine may be left in namespace n"),
    ],
)
def test_a_cleanup_that_never_ends(
    module: ModuleType, kind: Any, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLEANUP_LIMIT_S", 0.1)
    made: Any = kind.__new__(kind)
    made._cleanup, made._unanswered, made._submitted = Endless(), False, True
    made._job_name = made._selector = "mine"
    made._streams, made._api = SimpleNamespace(close=list), SimpleNamespace(namespace="n")
    with pytest.raises(ClusterError, match=left):
        made.close()
