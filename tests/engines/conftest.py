"""Real engines on a rack, each started once for all tests that use it."""

from __future__ import annotations

import pytest

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the slowest files first, so that no worker waits for the others' last file."""
    order = {f"tests/engines/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
