"""Operators' scripts on a real Slurm: the nightly certificate, and the health check."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from pytest_mnode.protocol.launcher_requests import SetLinkRate
from tests.ci.running import READY, ROOT
from tests.engines.inside import page_for
from tests.engines.slurm import SlurmOnRack
from tests.inner import clean_env

NIGHT_LIMIT_S = 300.0


def page(slurm: SlurmOnRack, directory: Path, criteria: dict[str, Any]) -> str:
    """The path of a spec that promises `promise` and nothing else."""
    path = directory / "the page.yaml"
    kept = page_for(slurm, "night", not_promised=None) | {"criteria": criteria}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))
    return str(path)


def settings(spec: str, **more: str) -> dict[str, str]:
    ours = {"MNODE_ROOT": str(ROOT), "MNODE_PYTHON": sys.executable, "MNODE_SPEC": spec}
    return {**clean_env(), **ours, **more}


def test_the_night_job_certifies_and_submits_the_next_one(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    promised: dict[str, Any] = {"preflight": {"interfaces": {}, "speed": {}}, "mesh": {}}
    submitted = slurm.run(
        *("sbatch", "--parsable", "--time=10", f"--output={tmp_path}/night.log"),
        str(READY / "nightly.sbatch"),
        cwd=tmp_path,
        env=settings(
            page(slurm, tmp_path, promised),
            MNODE_REPORTS=str(tmp_path / "reports"),
            MNODE_AGAIN="yes",
        ),
    )
    job = int(submitted.stdout)
    slurm.await_that(lambda: slurm.job(job).over, NIGHT_LIMIT_S, f"job {job} is over")
    log = (tmp_path / "night.log").read_text()
    assert slurm.job(job).state == "COMPLETED", log
    [report] = (tmp_path / "reports").iterdir()
    assert report.name.endswith(f"-{job}")
    certificate = json.loads((report / "certificate.json").read_text())
    assert certificate["verdict"] == "certified", log
    assert certificate["run"]["launcher"] == "slurm"
    assert tuple(certificate["run"]["nodes"]) == slurm.names
    assert {c["name"] for c in certificate["criteria"] if c["verdict"] == "pass"} == set(promised)
    [following] = slurm.queue()  # and no other job of ours
    assert (following.state, following.nodes) == ("PENDING", ())
    began = slurm.run("squeue", "--noheader", "--format=%r %S").stdout
    assert began.startswith("BeginTime ")
    assert began.strip().endswith("T01:00:00")
    # A night job that Slurm restarts learns from this that it has submitted the next one.
    marks = slurm.run("squeue", "--me", "--noheader", "--format=%k").stdout.splitlines()
    assert marks == [f"mnode: the night after {job}"]


def test_the_health_check_drains_a_node_that_breaks_the_promise(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    spec = page(slurm, tmp_path, {"preflight": {"interfaces": {}, "speed": {}, "mtu": {}}})
    check = str(READY / "healthcheck.sh")
    sick, well = slurm.names[0], slurm.names[1]
    slurm.rack.ask(SetLinkRate(slurm.node(sick).name, "fab0", 50))
    try:
        for name, status in ((well, 0), (sick, 1)):
            done = slurm.run(
                *("bash", check), on=name, check=False, env=settings(spec, SLURMD_NODENAME=name)
            )
            assert done.returncode == status, done.stdout + done.stderr
    finally:
        slurm.rack.ask(SetLinkRate(slurm.node(sick).name, "fab0", 200))
    states = slurm.nodes()
    assert not states[sick].usable
    assert states[well].usable
    reason = slurm.run("scontrol", "--oneliner", "show", "node", sick).stdout
    assert "Reason=mnode: fabric speed of the slowest interface: 50 Mbit/s" in reason
