"""Recorded machines, each unpacked once per session on first use."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parents[1] / "fixtures/recordings"
NAMES = tuple(sorted(path.name.removesuffix(".tar.gz") for path in RECORDINGS.glob("*.tar.gz")))
Recorded = Callable[[str], Path]
# A thousand empty entries of each GID table make up most of a recording, and unused files of
# every device most of the rest.
_MORE_OF_THE_SAME = re.compile(
    r".*/(gids|gid_attrs/\w+)/\d{2,}"
    r"|.*/(cm_[rt]x_\w+|power|queues?|firmware|hugepages|memory\d+|cpuidle|cpufreq|vulnerabilities"
    r"|sections|msi_irqs|hotplug|parameters|id)/.*"
    r"|.*/(uevent|modalias|config|revision|subsystem_\w+|resource\d\w*|rom|irq|enable|remove|rescan"
    r"|reset\w*|aer_\w+|ari_enabled|broken_parity_status|d3cold_allowed|\w*dma_mask_bits"
    r"|driver_override|msi_bus|power_state|\w+_bus_number)"
)
_UNPACKED: dict[str, Path] = {}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Root directories of recorded machines, by name."""

    def root(name: str) -> Path:
        if name not in _UNPACKED:
            folder = tmp_path_factory.mktemp(name)
            with tarfile.open(RECORDINGS / f"{name}.tar.gz") as archive:
                members = [m for m in archive if not _MORE_OF_THE_SAME.fullmatch(m.name)]
                archive.extractall(folder, members, filter="tar")
            _UNPACKED[name] = folder
        return _UNPACKED[name]

    return root
