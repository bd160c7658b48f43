"""Fields that a run fills into the user's manifest, and fields that it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.manifest import (
    RUN_LABEL,
    default_template,
    keep_on,
    pods_of_run,
)

WAIT = ["python3", "-c", "wait"]


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "torch:2", "command": ["sleep"], "args": ["1"]}
    return {"containers": [container], **spec}


def job(template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template, **spec}}


def test_a_pod_becomes_an_indexed_job_that_keeps_its_fields() -> None:
    given = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "labels": {"kueue.x-k8s.io/queue-name": "gold"}},
        "spec": pod(hostNetwork=True, tolerations=[{"key": "gpu"}]),
    }
    made = pods_of_run(given, "r1", 3, WAIT)
    assert (made.kind, made.name, made.selector) == ("Job", "mnode-r1", f"{RUN_LABEL}=r1")
    assert made.manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gold"
    spec = made.manifest["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert (spec["backoffLimit"], spec["backoffLimitPerIndex"]) == (1000, 1000)
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["ttlSecondsAfterFinished"] > 0
    template = spec["template"]
    assert template["metadata"]["labels"][RUN_LABEL] == "r1"
    assert template["spec"]["hostNetwork"] is True
    assert template["spec"]["tolerations"] == [{"key": "gpu"}]
    [container] = template["spec"]["containers"]
    assert container == {"name": "train", "image": "torch:2", "command": WAIT}


def test_the_users_manifest_is_not_changed() -> None:
    given = job({"spec": pod()})
    pods_of_run(given, "r1", 3, WAIT)
    assert given == job({"spec": pod()})


def test_pods_run_on_separate_nodes_in_addition_to_the_users_anti_affinity() -> None:
    term = {"topologyKey": "zone", "labelSelector": {}}
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    apart = {"affinity": {"podAntiAffinity": {name: [term]}}}
    made = pods_of_run(job({"spec": pod(**apart)}), "r1", 2, WAIT)
    found = made.manifest["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][name]
    assert found[0] == term
    assert found[1]["topologyKey"] == "kubernetes.io/hostname"


def test_commands_run_in_the_annotated_container() -> None:
    spec = pod()
    spec["containers"].append({"name": "side", "image": "proxy"})
    annotations = {"kubectl.kubernetes.io/default-container": "side"}
    made = pods_of_run(job({"metadata": {"annotations": annotations}, "spec": spec}), "r", 2, WAIT)
    first, side = made.manifest["spec"]["template"]["spec"]["containers"]
    assert made.container == "side"
    assert side["command"] == WAIT
    assert first["command"] == ["sleep"]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {}}}]},
            },
            lambda spec: spec["replicatedJobs"][0]["template"]["spec"]["completions"],
        ),
        (
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {}}},
            },
            lambda spec: 1 + spec["pytorchReplicaSpecs"]["Worker"]["replicas"],
        ),
        (
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "spec": {"tasks": [{"name": "w", "replicas": 1}]},
            },
            lambda spec: (spec["tasks"][0]["replicas"] + spec["minAvailable"]) / 2,
        ),
    ],
    ids=["JobSet", "PyTorchJob", "Volcano"],
)
def test_counts_of_other_kinds(given: dict[str, Any], count: Any) -> None:
    spec = given["spec"]
    holders = [*spec.get("replicatedJobs", ()), *spec.get("tasks", ())]
    holders += spec.get("pytorchReplicaSpecs", {}).values()
    for holder in holders:
        inner = holder["template"]["spec"] if "template" in holder else holder
        inner["template"] = {"spec": pod()}
    made = pods_of_run(given, "r1", 4, WAIT)
    assert count(made.manifest["spec"]) == 4


def test_a_train_job_gets_nodes_and_command() -> None:
    given = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 1}},
    }
    made = pods_of_run(given, "r1", 4, WAIT)
    assert made.manifest["spec"]["trainer"] == {"numNodes": 4, "command": WAIT}
    assert made.selector == "jobset.sigs.k8s.io/jobset-name=mnode-r1"


def test_the_default_template_requests_what_the_spec_promises() -> None:
    made = pods_of_run(default_template("torch:2", {"nvidia.com/gpu": "8"}), "r1", 2, WAIT)
    [container] = made.manifest["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "Service", "spec": {}}, "kind Service has no pod template; accepted: Pod"),
        (
            {"kind": "Deployment", "spec": {"template": {"spec": pod()}}},
            "kind Deployment is not sup",
        ),
    ],
)
def test_other_objects_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pods_of_run(given, "r1", 2, WAIT)


@pytest.mark.parametrize("terms", [[], [{"matchExpressions": ["a"]}, {"matchFields": ["b"]}]])
def test_pods_on_named_nodes_keep_their_own_affinity(terms: list[dict[str, Any]]) -> None:
    """Terms are alternatives: each term is repeated for every name."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}
    made = keep_on(job({"spec": pod(**(own if terms else {}))}), ["n1", "n2"])
    spec = made["spec"]["template"]["spec"]

    def named(name: str) -> dict[str, Any]:
        return {"key": "metadata.name", "operator": "In", "values": [name]}

    expected: list[dict[str, Any]] = [
        {"matchFields": [named("n1")]},
        {"matchFields": [named("n2")]},
    ]
    if terms:
        expected = [{"matchExpressions": ["a"], **one} for one in expected]
        expected += [{"matchFields": ["b", named(name)]} for name in ("n1", "n2")]
    assert spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"] == expected
    with pytest.raises(UsageError, match="has no pod template, which would limit"):
        keep_on({"kind": "TrainJob", "spec": {}}, ["n1"])
