"""Real engines on a rack, each started once for all tests that talk to it."""

from __future__ import annotations

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
