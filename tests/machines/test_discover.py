"""The first spec drafted from guests, compared with their hardware."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pytest_mnode.spec.quantity import size_bytes
from tests.engines.inside import run_pytest
from tests.machines.accepting import STALLING
from tests.machines.bed import FABRIC, Machines
from tests.machines.hardware import TWO_SIDES

LIMIT_S = 500.0


def test_the_first_spec_matches_the_hardware_of_guests(machines: Machines, tmp_path: Path) -> None:
    """Ranks on CPUs use TCP: the fabric is interfaces. virtio NICs report no speed."""
    directory = machines.directory / tmp_path.name
    directory.mkdir()
    run = run_pytest(
        machines,
        directory,
        "--mnode-nodes=2",
        machines.hostfile(directory),
        STALLING,
        "--mnode-discover=page.yaml",
        *("-p", "no:cacheprovider"),
        limit_s=LIMIT_S,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.output  # a line is missing
    assert "mnode: keys to fill in before the page can be loaded: fabric.line_rate" in run.output
    text = (directory / "page.yaml").read_text()
    page = yaml.safe_load(text)
    criteria = page.pop("criteria")
    assert page.pop("name").startswith("discovered ")
    rails = [nic.name for nic in TWO_SIDES.nics if nic.link == FABRIC.name]
    assert page == {
        "confirmed": False,
        "nodes": len(machines.names),
        "accelerators": {"per_node": 0},
        "fabric": {
            "kind": "ethernet",
            "interfaces": rails,
            "nics_per_node": len(rails),
            "mtu": FABRIC.mtu,
        },
        "certificate": {"valid_for": "7 days"},
    }
    assert "# Left out: mgmt0 carries control traffic, and its rate is unknown." in text
    assert "# Left out: this run has no Slurm allocation, and sinfo answers on no node." in text
    for tag in ("share0", "own"):  # directories of this machine that guests mount
        assert f"(9p {tag})" in " ".join(line.strip("# ") for line in text.splitlines())
    preflight = criteria["preflight"]
    assert preflight["interfaces"] == {}
    assert preflight["pcie"] == "full"
    assert preflight["limits"]["memlock"] == "unlimited"
    memory_bytes = sum(node.memory_mib for node in TWO_SIDES.numa) << 20
    # A tmpfs takes half of it, which is written in whole GiB.
    assert 0.3 < size_bytes(preflight["limits"]["shm"]) / memory_bytes <= 0.5
    assert "rdma" not in preflight
    assert "numa" not in criteria
