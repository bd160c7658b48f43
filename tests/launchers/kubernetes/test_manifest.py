"""Fields that a run fills into the user's manifest, and fields that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.api import Warnings, warnings_about
from pytest_mnode.launchers.kubernetes.manifest import (
    KEPT_S,
    MOST_RUN_S,
    RUN_LABEL,
    PodsOfRun,
    default_template,
    keep_on,
    pods_of_run,
)
from pytest_mnode.launchers.kubernetes.template import read_manifest
from pytest_mnode.options import Settings

WAIT = ["python3", "-c", "wait"]


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "torch:2", "command": ["sleep"], "args": ["1"]}
    return {"containers": [container], **spec}


def job(template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template, **spec}}


PLAIN = {"spec": pod()}
"""The template of a pod."""


def jobset(template: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "JobSet", "spec": {"replicatedJobs": [{"name": "w", "template": template}]}}


def pytorch_job(**replicas: Any) -> dict[str, Any]:
    return {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}


def made(given: dict[str, Any], nodes: int = 3) -> PodsOfRun:
    return pods_of_run(given, "r1", nodes, WAIT)


def pod_spec(run: PodsOfRun) -> dict[str, Any]:
    spec: dict[str, Any] = run.manifest["spec"]["template"]["spec"]
    return spec


def test_a_pod_becomes_an_indexed_job_that_keeps_its_fields() -> None:
    metadata = {"name": "mine", "labels": {"kueue.x-k8s.io/queue-name": "gold"}}
    spec = pod(hostNetwork=True, tolerations=[{"key": "gpu"}])
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    run = made(given)
    assert (run.kind, run.name, run.selector) == ("Job", "mnode-r1", f"{RUN_LABEL}=r1")
    assert run.manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gold"
    spec = run.manifest["spec"]
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
    run = made({"kind": "Pod", "spec": pod(restartPolicy="Always")})
    assert pod_spec(run)["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, ("Never", 2, False)),
        (
            {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 60},
            ("OnFailure", 60, False),
        ),
        ({"enableServiceLinks": True}, ("Never", 2, True)),
    ],
)
def test_pods_end_soon_unless_their_template_says_otherwise(
    given: dict[str, Any], fields: tuple[str, int, bool]
) -> None:
    spec = pod_spec(made(job({"spec": pod(**given)})))
    names = ("restartPolicy", "terminationGracePeriodSeconds", "enableServiceLinks")
    assert tuple(spec[name] for name in names) == fields


def test_pods_that_restart_in_place_have_no_limit_per_index() -> None:
    spec = made(job({"spec": pod(restartPolicy="OnFailure")})).manifest["spec"]
    assert (spec["backoffLimit"], spec.get("backoffLimitPerIndex")) == (1000, None)


def test_all_pods_of_a_jobset_are_nodes_of_the_run() -> None:
    around = {"parallelism": 1, "template": PLAIN}
    jobs = [{"name": n, "template": {"spec": dict(around)}} for n in ("worker", "leader")]
    given = {"kind": "JobSet", "spec": {"replicatedJobs": jobs}}
    found = made(given, 4).manifest["spec"]["replicatedJobs"]
    assert [one["template"]["spec"]["parallelism"] for one in found] == [3, 1]
    with pytest.raises(UsageError, match=r"^1 nodes: the template has 1 pods besides its first"):
        made(given, 1)


def test_a_task_of_volcano_waits_for_no_more_pods_than_it_has() -> None:
    task = {"name": "node", "replicas": 8, "minAvailable": 8, "template": PLAIN}
    [found] = made({"kind": "Job", "spec": {"tasks": [task]}}, 4).manifest["spec"]["tasks"]
    assert (found["replicas"], "minAvailable" in found) == (4, False)


def test_an_annotation_that_names_no_container_is_ignored() -> None:
    name = "kubectl.kubernetes.io/default-container"
    two = {"containers": [{"name": "proxy"}, {"name": "train"}]}
    for given, container in (("train", "train"), ("gone", "proxy")):
        template = {"metadata": {"annotations": {name: given}}, "spec": two}
        assert made(job(template)).container == container


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
    run = made(job(beside({"limits": {"cpu": 4}}, resources)))
    daemon, other, main = pod_spec(run)["containers"]
    assert run.container == main["name"] == "bench1"
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
def test_without_accelerators_commands_run_in_the_first_container(resources: Any) -> None:
    assert made(job(beside(resources))).container == "tcpxo-daemon"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (beside(GPU, GPU), "containers bench0, bench1 have accelerators, and tests run in one of"),
        (
            beside(GPU, named="tcpxo-daemon"),
            r"tcpxo-daemon, .* has no accelerators, and bench0 has",
        ),
    ],
)
def test_no_container_is_guessed(template: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(job(template))


def test_the_annotation_chooses_between_containers_with_accelerators() -> None:
    assert made(job(beside(GPU, GPU, named="bench1"))).container == "bench1"


def test_all_pods_of_a_run_have_one_name_for_their_container() -> None:
    master, worker = ({"spec": {"containers": [{"name": n}]}} for n in ("pytorch", "worker"))
    given = pytorch_job(Master={"template": master}, Worker={"template": worker})
    with pytest.raises(UsageError, match="have different names, pytorch, worker: give them one"):
        made(given)


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
    spec = pod_spec(made(read_manifest(Settings(k8s_template=path), 0)))
    assert spec["nodeSelector"] == {"gpu": ""}
    assert spec["containers"] == [{"name": "train", "image": "torch", "command": WAIT}]


def test_warnings_about_objects_that_were_made_for_the_run() -> None:
    run = made(job(PLAIN))

    class Answers:
        def path(self, kind: str) -> str:
            return kind

        def request(self, *_: Any, **__: Any) -> dict[str, Any]:
            names = ("mnode-r1", "mnode-r1-node-0", "mnode-r2")
            items = [{"involvedObject": {"name": n}, "message": f"about {n}"} for n in names]
            return {"items": items}

    found = warnings_about(Answers(), run.name)  # type: ignore[arg-type]
    assert found == Warnings(("about mnode-r1", "about mnode-r1-node-0"))


VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "spec": {"tasks": [{"name": "w", "replicas": 1, "template": PLAIN}]},
}


@pytest.mark.parametrize(
    ("given", "replaces"),
    [
        ({"kind": "Pod", "spec": pod()}, True),
        (job(PLAIN), True),
        (job(PLAIN, backoffLimit=0), False),
        (jobset({"spec": {"template": PLAIN}}), True),
        (jobset({"spec": {"template": PLAIN, "backoffLimit": 0}}), False),
        (VOLCANO, False),
    ],
)
def test_whether_pods_that_end_are_replaced(given: dict[str, Any], replaces: bool) -> None:
    assert made(given).replaces is replaces


def test_the_users_manifest_is_not_changed() -> None:
    given = job(PLAIN)
    made(given)
    assert given == job(PLAIN)


def test_pods_run_on_separate_nodes_in_addition_to_the_users_anti_affinity() -> None:
    term = {"topologyKey": "zone", "labelSelector": {}}
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    apart = {"affinity": {"podAntiAffinity": {name: [term]}}}
    run = made(job({"spec": pod(**apart)}))
    found = pod_spec(run)["affinity"]["podAntiAffinity"][name]
    assert found[0] == term
    assert found[1]["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (
            jobset({"spec": {"template": PLAIN}}),
            lambda spec: spec["replicatedJobs"][0]["template"]["spec"]["completions"],
        ),
        (
            pytorch_job(Master={"replicas": 1, "template": PLAIN}, Worker={"template": PLAIN}),
            lambda spec: 1 + spec["pytorchReplicaSpecs"]["Worker"]["replicas"],
        ),
        (VOLCANO, lambda spec: (spec["tasks"][0]["replicas"] + spec["minAvailable"]) / 2),
    ],
    ids=["JobSet", "PyTorchJob", "Volcano"],
)
def test_counts_of_other_kinds(given: dict[str, Any], count: Any) -> None:
    assert count(made(given, 4).manifest["spec"]) == 4


@pytest.mark.parametrize("given", [{}, {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0}])
def test_a_pytorch_job_is_removed_unless_its_policy_says_otherwise(given: dict[str, int]) -> None:
    job = pytorch_job(Master={"replicas": 1, "template": PLAIN})
    job["spec"]["runPolicy"] = given
    policy = made(job, 1).manifest["spec"]["runPolicy"]
    limits = {"activeDeadlineSeconds": MOST_RUN_S, "ttlSecondsAfterFinished": KEPT_S}
    assert policy == limits | given


def test_a_train_job_gets_nodes_and_command() -> None:
    trainer = {"numNodes": 1, "numProcPerNode": 8, "args": ["train.py"]}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    given = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}
    run = made(given, 4)
    assert run.manifest["spec"]["trainer"] == {
        "numNodes": 4,
        "numProcPerNode": 8,
        "command": WAIT,
    }
    assert run.selector == (  # initializers are no nodes
        "jobset.sigs.k8s.io/jobset-name=mnode-r1,"
        "jobset.sigs.k8s.io/replicatedjob-name notin (dataset-initializer,model-initializer)"
    )


def test_the_default_template_requests_what_the_spec_promises() -> None:
    [container] = pod_spec(made(default_template("torch:2", {"nvidia.com/gpu": "8"})))["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "Service", "spec": {}}, "kind Service has no pod template; accepted: Pod"),
        ({"kind": "Deployment", "spec": {"template": PLAIN}}, "kind Deployment is not supported"),
    ],
)
def test_other_objects_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(given)


@pytest.mark.parametrize("terms", [[], [{"matchExpressions": ["a"]}, {"matchFields": ["b"]}]])
def test_pods_on_named_nodes_keep_their_own_affinity(terms: list[dict[str, Any]]) -> None:
    """Terms are alternatives: each term is repeated for every name."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}
    kept = keep_on(job({"spec": pod(**(own if terms else {}))}), ["n1", "n2"])
    spec = kept["spec"]["template"]["spec"]

    def named(name: str) -> dict[str, Any]:
        return {"key": "metadata.name", "operator": "In", "values": [name]}

    expected: list[dict[str, Any]] = [{"matchFields": [named(name)]} for name in ("n1", "n2")]
    if terms:
        expected = [{"matchExpressions": ["a"], **one} for one in expected]
        expected += [{"matchFields": ["b", named(name)]} for name in ("n1", "n2")]
    assert spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"] == expected
    with pytest.raises(UsageError, match="has no pod template, which would limit"):
        keep_on({"kind": "TrainJob", "spec": {}}, ["n1"])
