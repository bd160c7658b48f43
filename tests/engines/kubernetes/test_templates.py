"""The shipped templates, as a run fills them in, checked by the real API server."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_mnode.jobs.kubernetes.manifest import job_manifest, of_engine
from pytest_mnode.launchers.kubernetes.manifest import pods_of_run
from pytest_mnode.launchers.kubernetes.template import read_manifest
from pytest_mnode.options import Settings
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.engines.kubernetes.gang_engines import define
from tests.engines.kubernetes.programs import JOBSET, TRAINER, TRAINING_OPERATOR, VOLCANO

TEMPLATES = sorted((Path(__file__).parents[3] / "fixtures/kubernetes").glob("*.yaml"))
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "mnode-run", "uid": "1"}
NAMED = Path(__file__).parents[3] / "docs/kubernetes.md"


def test_the_server_accepts_each_template(bed: KubernetesOnRack, tmp_path: Path) -> None:
    """And the job of `cluster.launch` that is made from it."""
    define(bed, JOBSET, TRAINER, TRAINING_OPERATOR, VOLCANO)
    page = NAMED.read_text()
    kinds = set()
    for template in TEMPLATES:
        assert f"`{template.name}`" in page
        given = read_manifest(Settings(k8s_template=template), 0)
        name = template.stem
        run = pods_of_run(given, name, 4, ["python3"])
        (tmp_path / f"{name}.json").write_text(json.dumps(run.manifest))
        kinds.add((run.manifest["apiVersion"].partition("/")[0], run.kind))
        jobs = {name: given}
        if name == "host-network":
            jobs |= {e: of_engine(given, e, "q1") for e in ("jobset", "pytorchjob", "volcano")}
        for of, its in jobs.items():
            job, _ = job_manifest(its, f"job-of-{of}", OWNER, ["node0", "node1"], ["python3"])
            (tmp_path / f"{name}-job-of-{of}.json").write_text(json.dumps(job))
    assert len(kinds) == 5
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(tmp_path))
