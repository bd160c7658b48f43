"""Runs of the acceptance suite over ssh on two guests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.certified import ACCEPTANCE, Certified, certificate_of
from tests.engines.inside import run_pytest
from tests.machines import pages
from tests.machines.bed import Machines

LIMIT_S = 900.0
"""For hangs: emulated guests beside other work on two cores took over 500 s."""
STALLING = "--mnode-silence-limit=60"
"""Emulated guests on busy cores may not run for many seconds."""
PROJECT = Path(__file__).parents[2]
# A guest that has just booted reads its programs for the first time, which takes a minute on a
# busy machine.
WARM = f"""
cd /tmp
export PYTHONPATH={PROJECT}
{sys.executable} -P -c '
import pytest_mnode.criteria.preflight.node_probe
import pytest_mnode.criteria.port_counters.reading
import pytest_mnode.launchers.remote.remote_exec
import pytest_mnode.measuring.tools.beside_nic
from pytest_mnode.machine.model import Machine
Machine.read(limit_s={LIMIT_S})'
"""


@pytest.fixture(scope="session")
def machines_warm(machines_once: Machines) -> None:
    """Guests that have already read the programs which the launcher and the survey start."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: machines_once.guest(name, WARM, LIMIT_S), machines_once.names))


@pytest.fixture
def shared(machines: Machines, machines_warm: None, tmp_path: Path) -> Path:
    """A directory at the same path on all guests, from which pytest can be started."""
    directory = machines.directory / tmp_path.name
    directory.mkdir()
    return directory


def certified(
    machines: Machines, directory: Path, page: dict[str, Any], *tests: str, more: Sequence[str] = ()
) -> Certified:
    """Run files and tests of acceptance/ on both guests. more: options of pytest."""
    report = directory / "report"
    run = run_pytest(
        machines,
        directory,
        "--mnode-nodes=2",
        machines.hostfile(directory),
        STALLING,
        f"--mnode-spec={pages.write(page, directory)}",
        f"--mnode-report={report}",
        *("-p", "no:cacheprovider", *more),
        *(str(ACCEPTANCE / test) for test in tests),
        limit_s=LIMIT_S,
    )
    return certificate_of(run, report)
