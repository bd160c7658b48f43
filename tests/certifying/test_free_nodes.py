"""`--mnode-nodes=free` and `--mnode-budget`: the free nodes, their order, and what is left out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, build_certificate
from pytest_mnode.certificate.kept import keep
from pytest_mnode.certifying.free_nodes import on_free_nodes
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.kubernetes import api
from pytest_mnode.options import Settings
from pytest_mnode.spec import default_spec_path, profile_spec
from tests.certificate.conftest import FACTS, RIGHT
from tests.certificate.test_coverage import rates
from tests.gang.kubernetes.test_nodes import GPU, node, pod
from tests.inner import run_pytest, write_files
from tests.programs import write_program

ALL = 1000
SCONTROL = """#!/bin/sh
cat <<'END'
NodeName=n0 NodeHostName=host0 State=IDLE CPUAlloc=0 Partitions=gpu
NodeName=n1 NodeHostName=host1 State=ALLOCATED CPUAlloc=8 Partitions=gpu
NodeName=n2 NodeHostName=host2 State=IDLE CPUAlloc=0 Partitions=gpu,all
NodeName=n3 NodeHostName=host3 State=IDLE+PLANNED CPUAlloc=0 Partitions=gpu
NodeName=n4 NodeHostName=host4 State=IDLE+DRAIN Partitions=gpu Reason=fan
NodeName=n5 NodeHostName=host5 State=IDLE CPUAlloc=0 Partitions=all
NodeName=n6 NodeHostName=host6 State=IDLE CPUAlloc=0 Partitions=gpu
END
"""


@pytest.fixture
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands, first in PATH; the default partition is gpu."""
    programs = dict.fromkeys(("srun", "salloc", "sbatch"), "#!/bin/sh\n")
    programs |= {"scontrol": SCONTROL, "sinfo": "#!/bin/sh\necho 'gpu*'; echo all\n"}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        write_program(tmp_path / "bin" / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def keep_runs(kept: Path, *nights: Sequence[str], paths: bool = False) -> None:
    """Keep a passed run for each night, oldest first."""
    spec = replace(FACTS.spec, digest=profile_spec("rack").digest())
    for day, names in enumerate(nights):
        end = FACTS.end + timedelta(days=day)
        measured = (rates(*names),) if paths else ()
        test = "acceptance/test_mesh.py::test_it"
        case = CaseResult(test, "?", "passed", measurements=(RIGHT,), paths=measured)
        facts = replace(FACTS, nodes=tuple(names), cluster_nodes=9, end=end, spec=spec)
        keep(kept, build_certificate(run=facts, cases=[case], promised=["mesh"], not_promised={}))


def chosen(directory: Path, most: int = ALL, **settings: Any) -> tuple[str, ...]:
    found = on_free_nodes(Settings(free_at_most=most, history_dir=directory / "kept", **settings))
    assert found.nodes == len(found.on)
    return found.on


@pytest.mark.usefixtures("_slurm")
def test_idle_nodes_of_slurm_those_tested_longest_ago_first(tmp_path: Path) -> None:
    """Nodes planned for a job, drained, used, or of another partition are not free."""
    assert chosen(tmp_path, launcher="slurm") == ("n0", "n2", "n6")
    keep_runs(tmp_path / "kept", ["host0", "host1"], ["host6", "host0"], ["host2"])
    assert chosen(tmp_path, launcher="slurm") == ("n0", "n6", "n2")
    assert chosen(tmp_path, 2, launcher="slurm") == ("n0", "n6")
    args = ("--partition=all", "--exclude=n9")
    with pytest.raises(UsageError, match="n9: no such node"):
        chosen(tmp_path, launcher="slurm", slurm_args=args)
    assert chosen(tmp_path, launcher="slurm", slurm_args=args[:1]) == ("n5", "n2")


@pytest.mark.usefixtures("_slurm")
def test_too_few_free_nodes_are_named_with_the_states_of_the_others(tmp_path: Path) -> None:
    text = r"^--mnode-nodes=free: 1 node free: n2 of 4, 2 ALLOCATED, 1 IDLE\+PLANNED; 2 are needed"
    scontrol = tmp_path / "bin/scontrol"
    busy = SCONTROL.replace("host0 State=IDLE", "host0 State=ALLOCATED")
    scontrol.write_text(busy.replace("NodeName=n6", "NodeName=n7").replace("gpu\nEND", "b\nEND"))
    with pytest.raises(UsageError, match=text):
        chosen(tmp_path, launcher="slurm")


def test_inside_an_allocation_all_of_its_nodes_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    keep_runs(tmp_path / "kept", ["n1"])
    assert chosen(tmp_path) == ("n2", "n3", "n1")


def test_all_hosts_of_a_hostfile_are_free(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("me@n[1-3]\nn4\n")
    keep_runs(tmp_path / "kept", ["n3", "n4"], ["n1", "n3"])
    assert chosen(tmp_path, 3, hostfile=tmp_path / "hosts", launcher="ssh") == ("n2", "n4", "n1")


def test_one_node_of_the_previous_run_is_included(tmp_path: Path) -> None:
    """Otherwise two halves tested in turns would never measure a path between them."""
    (tmp_path / "hosts").write_text("n[1-4]")
    keep_runs(tmp_path / "kept", ["n1", "n2"], paths=True)
    assert chosen(tmp_path, 2, hostfile=tmp_path / "hosts", launcher="ssh") == ("n3", "n1")
    keep_runs(tmp_path / "kept", ["n1", "n2"], ["n3", "n1"], paths=True)
    assert chosen(tmp_path, 2, hostfile=tmp_path / "hosts", launcher="ssh") == ("n4", "n2")


class FakeApi:
    """Three tainted nodes, one of them used by a pod. Pods are admitted with a toleration."""

    refusal: api.ApiError | None = None

    def __init__(self, *_: str) -> None:
        pass

    def path(self, plural: str) -> str:
        return f"/api/v1/namespaces/default/{plural}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        if self.refusal is not None:
            raise self.refusal
        if method == "POST":
            return {"spec": {**body["spec"], "tolerations": [{"key": GPU, "operator": "Exists"}]}}
        if "pods" in path:
            return {"items": [pod("b")]}
        return {"items": [tainted(name) for name in "abc"]}


def tainted(name: str) -> dict[str, Any]:
    found: dict[str, Any] = node(name)
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    return {**found, "spec": {**found.get("spec", {}), "taints": [taint]}}


def test_nodes_of_a_kubernetes_with_room_for_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = {"name": "node", "image": "torch:2", "resources": {"limits": {GPU: 8}}}
    template = {"kind": "PodTemplate", "template": {"spec": {"containers": [container]}}}
    (tmp_path / "pods.yaml").write_text(json.dumps(template))
    monkeypatch.setattr(api, "Api", FakeApi)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    keep_runs(tmp_path / "kept", ["a", "b"])
    assert chosen(tmp_path, k8s_template=tmp_path / "pods.yaml") == ("c", "a")
    monkeypatch.setattr(FakeApi, "refusal", api.ApiError(403, "nodes is forbidden"))
    with pytest.raises(ClusterError, match="of all namespaces: nodes is forbidden; give a number"):
        chosen(tmp_path, k8s_template=tmp_path / "pods.yaml")


def test_the_rack_has_the_spec_s_nodes_and_a_budget_ends_the_run(tmp_path: Path) -> None:
    """All nodes of the rack are free. No test starts after the budget; the rest is named."""
    page = default_spec_path().read_text().replace("name: rack", "name: rack\nnodes: 3")
    (tmp_path / "spec.yaml").write_text(page)
    mesh = """
        import pytest
        pytestmark = pytest.mark.criterion
        def test_ranks(world): assert world.size == 3
        @pytest.mark.parametrize("node", range(3))
        def test_more(node): raise AssertionError
    """
    write_files(tmp_path, test_mesh=mesh, test_own="def test_it(): raise AssertionError")
    args = ("--mnode-spec=spec.yaml", "--mnode-nodes=free", "--mnode-budget=1ms")
    run = run_pytest(tmp_path, *args, "--mnode-report=report")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.output
    assert run.outcomes() == {"test_ranks": "passed"}, run.output
    certificate = json.loads((tmp_path / "report/certificate.json").read_text())
    why = "cut short by the budget of 1 ms: 4 of 5 tests were not run (mesh, own)"
    assert (certificate["verdict"], why in certificate["reasons"]) == ("incomplete", True)
    assert {node["state"] for node in certificate["coverage"]["nodes"]} == {"not tested"}
