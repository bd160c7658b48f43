"""A tenant of one namespace: runs inside the cluster, and missing rights or quota."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.spec import load_spec
from tests.engines.inside import run_pytest
from tests.engines.kubernetes import node_files
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.inner import write_files

READY = Path(__file__).parents[3] / "fixtures/ci/kubernetes.yaml"
NAMESPACE = "team"
MEET = """
    def test_every_rank_meets(world, process_group):
        assert world.size == 2

    def test_a_node_is_named_as_its_node(cluster):
        assert set(cluster.nodes) < {"node0", "node1", "node2", "node3"}
"""


@pytest.fixture(scope="module")
def namespace(bed: KubernetesOnRack) -> Iterator[str]:
    bed.kubectl("create", "namespace", NAMESPACE)
    bed.await_that(
        lambda: bool(bed.get("-n", NAMESPACE, "serviceaccounts")["items"]), 30, "service account"
    )
    yield NAMESPACE
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def ready(namespace: str) -> dict[str, Any]:
    """Objects of the shipped manifest, by kind."""
    objects = [found for found in yaml.safe_load_all(READY.read_text()) if found]
    for found in objects:
        found["metadata"]["namespace"] = namespace
    return {found["kind"]: found for found in objects}


def test_the_shipped_manifest_is_valid(
    bed: KubernetesOnRack, namespace: str, tmp_path: Path
) -> None:
    """The API server accepts it, and we can read its spec and template."""
    valid = ("-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f")
    bed.kubectl(*valid, str(READY))
    [data] = [d["data"] for d in yaml.safe_load_all(READY.read_text()) if "data" in d]
    (tmp_path / "spec.yaml").write_text(data["spec.yaml"])
    assert load_spec(tmp_path / "spec.yaml").nodes == 4
    template = yaml.safe_load(data["pods.yaml"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **template["template"]}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    bed.kubectl(*valid, str(tmp_path / "pod.yaml"))


def test_a_job_of_the_shipped_manifest_runs_tests_in_pods(
    bed: KubernetesOnRack, ready: dict[str, Any], namespace: str, tmp_path: Path
) -> None:
    write_files(tmp_path, test_meet=MEET)
    bed.launch(tmp_path)
    ready["ConfigMap"]["data"] = {"pods.yaml": (tmp_path / "pods.json").read_text()}
    job = ready["CronJob"]["spec"]["jobTemplate"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    here = yaml.safe_load((tmp_path / "pods.json").read_text())["spec"]
    container |= {"image": node_files.HOST_IMAGE, "imagePullPolicy": "Never"}
    container["command"] = [sys.executable, "-m", "pytest", "-v", str(tmp_path)]
    container["args"] = [
        "--mnode-nodes=2" if arg == "--mnode-nodes=4" else arg
        for arg in container["args"]
        if "spec" not in arg
    ]
    container["volumeMounts"] += here["containers"][0]["volumeMounts"]
    job["template"]["spec"]["volumes"] += here["volumes"]
    bed.apply(*ready.values())
    bed.kubectl("-n", namespace, "create", "job", "--from=cronjob/mnode", "mnode-now")

    def over() -> bool:
        status = bed.get("-n", namespace, "job", "mnode-now")["status"]
        return bool(status.get("succeeded") or status.get("failed"))

    bed.await_that(over, 120, "the job is over")
    log = bed.kubectl("-n", namespace, "logs", "job/mnode-now")
    assert "2 passed" in log, log
    assert "mnode: launcher kubernetes" in log
    [left] = bed.get("-n", namespace, "jobs")["items"]
    assert left["metadata"]["name"] == "mnode-now"
    bed.kubectl("-n", namespace, "delete", "job", "mnode-now", "--wait=false")


def role(bed: KubernetesOnRack, ready: dict[str, Any], without: str, directory: Path) -> str:
    """A kubeconfig of a service account that lacks one right."""
    name = f"no-{without.replace('/', '-')}"
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        ready[kind]["metadata"]["name"] = name
    rules = ready["Role"]["rules"]
    ready["Role"]["rules"] = [rule for rule in rules if rule["resources"] != [without]]
    ready["RoleBinding"]["roleRef"]["name"] = name
    ready["RoleBinding"]["subjects"][0]["name"] = name
    bed.apply(*(ready[kind] for kind in ("ServiceAccount", "Role", "RoleBinding")))
    token = bed.kubectl("-n", NAMESPACE, "create", "token", name).strip()
    path = directory / "kubeconfig"
    authority = bed.directory / "pki" / "apiserver.crt"
    path.write_text(node_files.kubeconfig(bed.server, authority, token, NAMESPACE))
    return str(path)


@pytest.mark.parametrize("without", ["pods", "pods/exec", "jobs"])
def test_a_missing_right_is_named(
    bed: KubernetesOnRack, ready: dict[str, Any], tmp_path: Path, without: str
) -> None:
    kubeconfig = role(bed, ready, without, tmp_path)
    verb = {"pods": "list", "pods/exec": "get", "jobs": "create"}[without]
    output = refused(bed, tmp_path, kubeconfig=kubeconfig)
    user = f"system:serviceaccount:{NAMESPACE}:no-{without.replace('/', '-')}"
    assert f'User "{user}" cannot {verb} resource "{without}"' in output, output


def test_a_quota_is_named(bed: KubernetesOnRack, namespace: str, tmp_path: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {"pods": "1"}},
    }
    bed.apply(quota)
    try:
        output = refused(bed, tmp_path, f"--mnode-k8s-namespace={namespace}")
    finally:
        bed.kubectl("-n", namespace, "delete", "resourcequota", "few")
    assert "1 pod was not created: " in output, output
    assert "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1" in output


def test_a_refusal_at_admission_is_named(
    bed: KubernetesOnRack, namespace: str, tmp_path: Path
) -> None:
    label = "pod-security.kubernetes.io/enforce"
    bed.kubectl("label", "namespace", namespace, f"{label}=restricted")
    try:
        output = refused(bed, tmp_path, f"--mnode-k8s-namespace={namespace}")
    finally:
        bed.kubectl("label", "namespace", namespace, f"{label}-")
    assert "2 pods were not created: " in output, output
    assert 'violates PodSecurity "restricted:latest"' in output


def refused(
    bed: KubernetesOnRack, directory: Path, *options: str, kubeconfig: str | None = None
) -> str:
    """Output of a run that gets no nodes and leaves nothing."""
    write_files(directory, test_meet=MEET)
    options = (*bed.launch(directory), "--mnode-k8s-wait=6", *options)
    before = bed.env["KUBECONFIG"]
    bed.env["KUBECONFIG"] = kubeconfig or before
    try:
        run = run_pytest(bed, directory, "--mnode-nodes=2", *options)
    finally:
        bed.env["KUBECONFIG"] = before
    assert run.returncode != 0
    assert "Traceback" not in run.output, run.output
    bed.await_that(
        lambda: not bed.get("-n", NAMESPACE, "jobs,pods", "-l", "pytest-mnode/run")["items"],
        30,
        "nothing is left",
    )
    return run.output
