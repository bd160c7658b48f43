"""Real engines on a rack, each started as seldom as can be for the tests that use it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.engines.kubernetes.bed import bed
from tests.engines.kubernetes.gang_engines import jobset, kueue, volcano
from tests.engines.slurm import slurm, slurm_on_rack
from tests.engines.ssh import ssh, ssh_on_rack

__all__ = [
    "bed",
    "jobset",
    "kueue",
    "slurm",
    "slurm_on_rack",
    "ssh",
    "ssh_on_rack",
    "volcano",
]  # fmt: skip
LONGEST = (
    *("kubernetes/test_gang.py", "kubernetes/test_jobs.py", "test_whole.py", "test_gang.py"),
    *("kubernetes/test_whole.py", "test_slurm_runs.py", "kubernetes/test_faults.py"),
    *("test_jobs.py", "test_ssh.py"),
)
_FIXTURE = re.compile(r"\b(bed|slurm|ssh)(?:_on_rack)?: ")


class ByEngine(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """As `--dist loadfile`, but a worker goes on with engines that it has started.

    After them it prefers an engine that no other worker has. Only then it starts a second one of a
    kind, since all of them end with their workers, and half the files of Kubernetes take longer
    than its start.
    """

    def _assign_work_unit(self, node: Any) -> None:
        engines = {
            worker: {engine for file in files for engine in self._engines(file)}
            for worker, files in self.assigned_work.items()
        }
        own = engines.get(node, set())
        others = {engine for worker, had in engines.items() if worker != node for engine in had}

        def started_anew(file: str) -> tuple[int, bool]:
            new = self._engines(file) - own
            return len(new & others), not self._engines(file) & own

        self.workqueue.move_to_end(min(self.workqueue, key=started_anew), last=False)
        super()._assign_work_unit(node)

    def _engines(self, file: str) -> frozenset[str]:
        """Engines that a file's tests ask for as fixtures."""
        return engines_of(self.config.rootpath / file)


@functools.cache
def engines_of(file: Path) -> frozenset[str]:
    return frozenset(_FIXTURE.findall(file.read_text(encoding="utf-8")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    return ByEngine(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the slowest files first, so that no worker waits for the others' last file."""
    order = {f"tests/engines/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
