"""The first spec of a cluster, from nodes reached over a real sshd or allocated by Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.protocol.launcher_requests import SetLinkRate
from pytest_mnode.spec import load_spec
from tests.engines.inside import run_pytest
from tests.engines.slurm import SlurmOnRack
from tests.engines.ssh import SshOnRack


def test_a_spec_is_drafted_from_nodes_of_a_hostfile(ssh: SshOnRack, tmp_path: Path) -> None:
    slow = ssh.node(ssh.names[1])
    ssh.rack.ask(SetLinkRate(slow.name, "fab0", 50))
    try:
        run = run_pytest(ssh, tmp_path, ssh.hostfile(tmp_path), "--mnode-discover=page.yaml")
    finally:
        ssh.rack.ask(SetLinkRate(slow.name, "fab0", 200))
    assert run.returncode == pytest.ExitCode.OK, run.output
    assert "mnode: launcher ssh (hostfile " in run.output
    spec = load_spec(tmp_path / "page.yaml")
    assert spec.nodes == len(ssh.names)
    assert spec.fabric.interfaces == ("fab0",)
    assert spec.fabric.line_rate_mbits_s == 200
    assert spec.management is not None
    assert spec.management.interfaces == ("mgmt0",)
    assert spec.scheduler is None
    assert spec.emulated == ()  # as far as this run can know, they are machines
    assert not spec.confirmed
    line = f"fabric line rate (most: 200 Mbit/s): {slow.name}: 50 Mbit/s"
    assert f"mnode: nodes differ: {line}" in run.output
    assert f"# - {line}" in (tmp_path / "page.yaml").read_text()


def test_a_spec_drafted_in_an_allocation_names_slurm(slurm: SlurmOnRack, tmp_path: Path) -> None:
    run = run_pytest(
        slurm,
        tmp_path,
        "--mnode-discover=page.yaml",
        before=["salloc", f"--nodes={len(slurm.names)}", "--quiet"],
    )
    assert run.returncode == pytest.ExitCode.OK, run.output
    spec = load_spec(tmp_path / "page.yaml")
    assert spec.nodes == len(slurm.names)
    assert spec.fabric.interfaces == ("fab0",)
    assert spec.scheduler is not None
    assert spec.scheduler.kind == "slurm"
    assert "partition" in spec.scheduler.names
