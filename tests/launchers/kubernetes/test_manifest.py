"""Fields that a run fills into the user's manifest, and fields that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.api import Warnings, warnings_about
from pytest_mnode.launchers.kubernetes.manifest import (
    RUN_LABEL,
    default_template,
    keep_on,
    pods_of_run,
)
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.kubernetes.template import read_manifest

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


def test_a_pod_that_restarts_for_ever_becomes_one_that_a_job_may_have() -> None:
    given = {"kind": "Pod", "spec": pod(restartPolicy="Always")}
    made = pods_of_run(given, "r1", 3, WAIT)
    assert made.manifest["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_pods_that_restart_in_place_have_no_limit_per_index() -> None:
    spec = pods_of_run(job({"spec": pod(restartPolicy="OnFailure")}), "r1", 3, WAIT).manifest[
        "spec"
    ]
    assert (spec["backoffLimit"], spec.get("backoffLimitPerIndex")) == (1000, None)


def test_all_pods_of_a_jobset_are_nodes_of_the_run() -> None:
    around = {"parallelism": 1, "template": {"spec": pod()}}
    jobs = [{"name": n, "template": {"spec": dict(around)}} for n in ("worker", "leader")]
    given = {"kind": "JobSet", "spec": {"replicatedJobs": jobs}}
    found = pods_of_run(given, "r1", 4, WAIT).manifest["spec"]["replicatedJobs"]
    assert [one["template"]["spec"]["parallelism"] for one in found] == [3, 1]
    with pytest.raises(UsageError, match=r"^1 nodes: the template has 1 pods besides its first"):
        pods_of_run(given, "r1", 1, WAIT)


def test_a_task_of_volcano_waits_for_no_more_pods_than_it_has() -> None:
    task = {"name": "node", "replicas": 8, "minAvailable": 8, "template": {"spec": pod()}}
    given = {"kind": "Job", "spec": {"tasks": [task]}}
    [made] = pods_of_run(given, "r1", 4, WAIT).manifest["spec"]["tasks"]
    assert (made["replicas"], "minAvailable" in made) == (4, False)


def test_an_annotation_that_names_no_container_is_ignored() -> None:
    name = "kubectl.kubernetes.io/default-container"
    two = {"containers": [{"name": "proxy"}, {"name": "train"}]}
    for given, container in (("train", "train"), ("gone", "proxy")):
        template = {"metadata": {"annotations": {name: given}}, "spec": two}
        assert pods_of_run(job(template), "r1", 3, WAIT).container == container


GPU = {"limits": {"nvidia.com/gpu": 8}}
DAEMON = {"name": "tcpxo-daemon", "image": "rxdm", "command": ["daemon"]}


def beside(*resources: dict[str, Any], named: str = "") -> dict[str, Any]:
    """A template of a daemon, and a container with each of these resources."""
    containers: list[dict[str, Any]] = [
        {"name": f"bench{i}", "resources": one} for i, one in enumerate(resources)
    ]
    annotations = {"kubectl.kubernetes.io/default-container": named} if named else {}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [DAEMON, *containers]}}


@pytest.mark.parametrize(
    "resources",
    [
        GPU,
        {"requests": {"nvidia.com/gpu": "8"}},
        {"limits": {"nvidia.com/mig-3g.40gb": 1}},
        {"limits": {"amd.com/gpu": 8, "rdma/hca": 1}},
        {"limits": {"google.com/tpu": 4}},
        {"limits": {"aws.amazon.com/neuron": 16}},
        {"limits": {"habana.ai/gaudi": 8}},
        {"claims": [{"name": "gpus"}]},
    ],
)
def test_commands_run_in_the_container_with_the_accelerators(resources: dict[str, Any]) -> None:
    made = pods_of_run(job(beside({"limits": {"cpu": 4}}, resources)), "r1", 3, WAIT)
    daemon, other, main = made.manifest["spec"]["template"]["spec"]["containers"]
    assert made.container == main["name"] == "bench1"
    assert main["command"] == WAIT
    assert daemon == DAEMON
    assert "command" not in other


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"limits": {"nvidia.com/gpu": "0"}},
        {"limits": {"rdma/hca": 1, "vpc.amazonaws.com/efa": 4, "nvidia.com/hostdev": 8}},
    ],
)
def test_without_accelerators_commands_run_in_the_first_container(
    resources: dict[str, Any],
) -> None:
    assert pods_of_run(job(beside(resources)), "r1", 3, WAIT).container == "tcpxo-daemon"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (beside(GPU, GPU), "containers bench0, bench1 have accelerators, and tests run in one of"),
        (
            beside(GPU, named="tcpxo-daemon"),
            r"container tcpxo-daemon, which kubectl.* names, has no accelerators, and bench0 has",
        ),
    ],
)
def test_no_container_is_guessed(template: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pods_of_run(job(template), "r1", 3, WAIT)


def test_the_annotation_chooses_between_containers_with_accelerators() -> None:
    made = pods_of_run(job(beside(GPU, GPU, named="bench1")), "r1", 3, WAIT)
    assert made.container == "bench1"


def test_all_pods_of_a_run_have_one_name_for_their_container() -> None:
    replicas = {
        "Master": {"template": {"spec": {"containers": [{"name": "pytorch"}]}}},
        "Worker": {"template": {"spec": {"containers": [{"name": "worker"}]}}},
    }
    given = {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}
    with pytest.raises(UsageError, match="have different names, pytorch, worker: give them one"):
        pods_of_run(given, "r1", 3, WAIT)


def test_an_empty_key_is_as_if_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        "apiVersion: batch/v1\n"
        "kind: Job\n"
        "metadata:\n"
        "spec:\n"
        "  template:\n"
        "    metadata: {labels: }\n"
        "    spec:\n"
        "      affinity:\n"
        "      nodeSelector: {gpu: }\n"
        "      containers: [{name: train, image: torch, volumeMounts: }]\n"
    )
    made = pods_of_run(read_manifest(KubernetesOptions(template=path), 0), "r1", 3, WAIT)
    spec = made.manifest["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"gpu": ""}
    assert spec["containers"] == [{"name": "train", "image": "torch", "command": WAIT}]


def test_warnings_about_objects_that_were_made_for_the_run() -> None:
    run = pods_of_run(job({"spec": pod()}), "r1", 3, WAIT)

    class Answers:
        def path(self, kind: str) -> str:
            return kind

        def request(self, *_: Any, **__: Any) -> dict[str, Any]:
            names = ("mnode-r1", "mnode-r1-node-0", "mnode-r2")
            items = [{"involvedObject": {"name": n}, "message": f"about {n}"} for n in names]
            return {"items": items}

    found = warnings_about(Answers(), run.name)  # type: ignore[arg-type]
    assert found == Warnings(("about mnode-r1", "about mnode-r1-node-0"))


def jobset(template: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": [{"name": "w", "template": template}]},
    }


VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "spec": {"tasks": [{"name": "w", "replicas": 1, "template": {"spec": pod()}}]},
}


@pytest.mark.parametrize(
    ("given", "replaces"),
    [
        ({"kind": "Pod", "spec": pod()}, True),
        (job({"spec": pod()}), True),
        (job({"spec": pod()}, backoffLimit=0), False),
        (jobset({"spec": {"template": {"spec": pod()}}}), True),
        (jobset({"spec": {"template": {"spec": pod()}, "backoffLimit": 0}}), False),
        (VOLCANO, False),
    ],
)
def test_whether_pods_that_end_are_replaced(given: dict[str, Any], replaces: bool) -> None:
    assert pods_of_run(given, "r1", 3, WAIT).replaces is replaces


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
    assert made.selector == (  # initializers are no nodes
        "jobset.sigs.k8s.io/jobset-name=mnode-r1,"
        "jobset.sigs.k8s.io/replicatedjob-name notin (dataset-initializer,model-initializer)"
    )


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
