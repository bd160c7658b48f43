"""A rank is killed while a checkpoint is written. Run on a rack by test_ranks.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.cluster import Cluster
from pytest_mnode.errors import RankError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import (
    Loaded,
    Saved,
    Store,
    loading,  # noqa: F401  imported once, before ranks are forked
    saving,  # noqa: F401
    shards,
)
from tests.reference_job.checkpoint.saves import load, save

STORES = Path(__file__).parent / "stores"


def test_killed_while_it_writes(cluster: Cluster) -> None:
    """SIGKILL of a rank in the middle of its shard, by itself so that it is the middle."""

    def dies(path: Path, *, world: World) -> None:
        write = shards._Hashed.write

        def cut(self: Any, data: Any) -> int:
            if self.tell() > 20_000:
                self._file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return write(self, data)

        if world.rank == 2:
            shards._Hashed.write = cut  # type: ignore[method-assign]
        save(Store(path), world, 2)

    cut_short(cluster, dies, None)


def test_killed_while_it_is_held(cluster: Cluster) -> None:
    """Shards are written and nothing is committed when a rank is killed."""

    def dies(path: Path, *, world: World) -> None:
        store = Store(path)

        def kill() -> None:
            while store.holding() is None:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        if world.rank == 1:
            threading.Thread(target=kill, daemon=True).start()
        save(store, world, 2, hold=2)

    cut_short(cluster, dies, 2)


def cut_short(cluster: Cluster, dies: Callable[..., None], hold: int | None) -> None:
    store = Store(STORES / f"cut-short-{hold}")

    def first(path: Path, *, world: World) -> None:
        save(Store(path), world, 1)

    def resumes(path: Path, *, world: World) -> tuple[Loaded, float, Saved, float]:
        loaded, found = load(Store(path), world)
        begun = time.monotonic()
        saved = save(Store(path), world, 2, hold=hold)  # held before: not again
        return loaded, found, saved, time.monotonic() - begun

    cluster.world().run(first, store.directory, group=True)
    with pytest.raises(RankError, match="killed by SIGKILL"):
        cluster.world().run(dies, store.directory, group=True, timeout=30)
    [partial] = [f for f in store.survey() if not f.complete]
    assert partial.path.name.startswith("step-00000002.partial-")
    assert store.holding() == (partial.path if hold else None)
    torn = sum(p.stat().st_size for p in partial.path.iterdir())
    assert torn > 40_000
    for loaded, found, saved, seconds in cluster.world().run(resumes, store.directory, group=True):
        assert (loaded.step, found) == (1, 1)
        assert [r.reason for r in loaded.refused] == ["no COMPLETE: writing it was cut short"]
        assert saved.step == 2
        assert seconds < 30
    assert sorted(p.name for p in store.directory.iterdir()) == ["step-00000001", "step-00000002"]
    assert all(f.complete for f in store.survey(verify=True))
