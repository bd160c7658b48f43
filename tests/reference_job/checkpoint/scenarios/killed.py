"""A rank is killed while a checkpoint is written. Run on a rack by test_ranks.py."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.cluster import Cluster
from pytest_mnode.errors import RankError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store, files
from tests.reference_job.checkpoint.made import steps_in
from tests.reference_job.checkpoint.saves import load, save

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    from pytest_mnode.reference_job.checkpoint.loading import Loaded
    from pytest_mnode.reference_job.checkpoint.saving import Saved

STORES = Path(__file__).parent / "stores"


def test_killed_while_it_writes(cluster: Cluster) -> None:
    """A rank kills itself with SIGKILL in the middle of writing its shard."""

    def dies(path: Path, *, world: World) -> None:
        def cut(self: Any, data: Any) -> int:
            io.FileIO.write(self, memoryview(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        if world.rank == 1:
            files._HashedFile.write = cut  # type: ignore[method-assign]
        save(Store(path), world, 2)

    store = Store(STORES / "cut-short")

    def first(path: Path, *, world: World) -> None:
        save(Store(path), world, 1)

    def resumes(path: Path, *, world: World) -> tuple[Loaded, float, Saved]:
        loaded, found = load(Store(path), world)
        return loaded, found, save(Store(path), world, 2)

    cluster.world(nodes=2).run(first, store.directory, group=True)
    with pytest.raises(RankError, match="killed by SIGKILL"):
        cluster.world(nodes=2).run(dies, store.directory, group=True, timeout=30)
    [partial] = [f for f in store.survey() if not f.complete]
    assert partial.path.name.startswith("step-00000002.1-")
    assert partial.path.name.endswith(".partial")
    torn = sum(p.stat().st_size for p in partial.path.iterdir())
    assert torn > 40_000
    for loaded, found, saved in cluster.world(nodes=2).run(resumes, store.directory, group=True):
        assert (loaded.step, found) == (1, 1)
        assert [r.reason for r in loaded.refused] == ["no COMPLETE: writing it was interrupted"]
        assert saved.step == 2
    assert steps_in(store.directory) == ["00000001.1", "00000002.2"]
    assert all(f.complete for f in store.survey(verify=True))
