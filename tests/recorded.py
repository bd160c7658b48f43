"""Recorded machines, each unpacked on first use, once for all workers of a session."""

from __future__ import annotations

import contextlib
import os
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


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Root directories of recorded machines, by name."""

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def root(name: str) -> Path:
        place = shared / f"recorded-{name}"
        if not place.exists():
            folder = tmp_path_factory.mktemp(name)
            with tarfile.open(RECORDINGS / f"{name}.tar.gz") as archive:
                members = [m for m in archive if not _MORE_OF_THE_SAME.fullmatch(m.name)]
                # Files of this repository: a look at each path would take a third of the time.
                archive.extractall(folder, members, filter="fully_trusted")
            with contextlib.suppress(OSError):  # another worker was faster
                folder.rename(place)
        return place

    return root
