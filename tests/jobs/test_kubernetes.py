"""Jobs in separate pods: the created Job, the states of its pods, and their main process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.kubernetes import in_pod
from pytest_mnode.jobs.kubernetes.job_pods import LOST, JobPod
from pytest_mnode.jobs.kubernetes.manifest import JOB_LABEL, job_manifest, of_engine

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "mnode-run", "uid": "u"}
POD: dict[str, Any] = {"containers": [{"name": "main", "image": "i", "args": ["x"]}]}
QUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def test_a_job_keeps_pod_fields_and_queue_labels() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    rule = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
    pod = {**POD, "hostNetwork": True, "affinity": affinity, "restartPolicy": "OnFailure"}
    spec: dict[str, Any] = {"backoffLimit": 3, "suspend": True, "completions": 9}
    spec["template"] = {"spec": pod}
    metadata = {"name": "mine", "labels": QUEUE}
    given = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    made, container = job_manifest(given, "j-0", OWNER, ["n1", "n2"], ["run"])
    assert container == "main"
    labels = {**QUEUE, JOB_LABEL: "j-0"}
    assert made["metadata"] == {"name": "j-0", "labels": labels, "ownerReferences": [OWNER]}
    assert "backoffLimit" not in made["spec"]
    asked = {key: made["spec"][key] for key in ("suspend", "completions", "parallelism")}
    assert asked == {"suspend": True, "completions": 2, "parallelism": 2}
    found = made["spec"]["template"]["spec"]
    assert (found["hostNetwork"], found["restartPolicy"]) == (True, "Never")
    assert found["containers"] == [{"name": "main", "image": "i", "command": ["run"]}]
    required = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = required["nodeSelectorTerms"]
    placed = [(term["matchExpressions"], term["matchFields"][0]["values"]) for term in terms]
    assert placed == [([zone], ["n1"]), ([zone], ["n2"])]
    assert pod["restartPolicy"] == "OnFailure"


BATCH = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"labels": QUEUE},
    "spec": {
        "suspend": True,
        "failurePolicy": {"maxRestarts": 3},
        "replicatedJobs": [
            {"name": "node", "replicas": 4, "template": {"spec": {"template": {"spec": POD}}}},
            {"name": "driver", "template": {"spec": {"template": {"spec": POD}}}},
        ],
    },
}
VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "spec": {"queue": "q", "minAvailable": 9, "tasks": [{"name": "t", "template": {"spec": POD}}]},
}
PYTORCH = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "spec": {"pytorchReplicaSpecs": {"Master": {"template": {"spec": POD}}}},
}


def test_a_jobset_has_one_job_that_is_started_once() -> None:
    made, container = job_manifest(JOBSET, "j-0", OWNER, ["n1", "n2"], ["run"])
    assert (made["kind"], container) == ("JobSet", "main")
    assert made["metadata"]["labels"] == {**QUEUE, JOB_LABEL: "j-0"}
    spec = made["spec"]
    assert spec["suspend"]
    assert "failurePolicy" not in spec
    [one] = spec["replicatedJobs"]
    inner = one["template"]["spec"]
    assert (one["name"], one["replicas"], inner["completions"]) == ("node", 1, 2)
    assert inner["template"]["metadata"]["labels"] == {JOB_LABEL: "j-0"}
    assert inner["template"]["spec"]["containers"][0]["command"] == ["run"]


def test_a_volcano_job_needs_all_pods_at_once() -> None:
    made, _ = job_manifest(VOLCANO, "j-0", OWNER, ["n1", "n2"], ["run"])
    spec = made["spec"]
    assert (made["apiVersion"], spec["queue"]) == ("batch.volcano.sh/v1alpha1", "q")
    assert (spec["minAvailable"], spec["tasks"][0]["replicas"]) == (2, 2)


@pytest.mark.parametrize(("nodes", "workers"), [(["n1"], None), (["n1", "n2", "n3"], 2)])
def test_a_pytorchjob_has_a_master_and_workers(nodes: list[str], workers: int | None) -> None:
    made, _ = job_manifest(PYTORCH, "j-0", OWNER, nodes, ["run"])
    each = made["spec"]["pytorchReplicaSpecs"]
    assert each["Master"]["replicas"] == 1
    assert each.get("Worker", {}).get("replicas") == workers
    assert {one["restartPolicy"] for one in each.values()} == {"Never"}
    assert made["spec"]["runPolicy"]["cleanPodPolicy"] == "None"


def test_a_pytorchjobs_container_keeps_the_annotation_that_names_it() -> None:
    name = "kubectl.kubernetes.io/default-container"
    two = {"containers": [{"name": "proxy"}, {"name": "train"}]}
    given = {"kind": "Pod", "metadata": {"annotations": {name: "train"}}, "spec": two}
    template = of_engine(given, "pytorchjob", None)
    made, container = job_manifest(template, "j", OWNER, ["n1"], ["run"])
    containers = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container == "pytorch"
    assert containers == [{"name": "proxy"}, {"name": "pytorch", "command": ["run"]}]


def test_pods_of_a_trainjob_get_labels_and_nodes_beside_their_runtime() -> None:
    zone: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    given = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {
            "runtimeRef": {"name": "torch"},
            "trainer": {"image": "i", "args": ["x"], "numNodes": 9},
            "podTemplateOverrides": [
                {"targetJobs": [{"name": "node"}], "spec": {"affinity": zone}}
            ],
        },
    }
    made, container = job_manifest(given, "j-0", OWNER, ["n1", "n2"], ["run"])
    assert container == "node"
    assert made["spec"]["trainer"] == {"image": "i", "numNodes": 2, "command": ["run"]}
    _, ours = made["spec"]["podTemplateOverrides"]
    assert ours["metadata"]["labels"] == {JOB_LABEL: "j-0"}
    found = ours["spec"]["affinity"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in found["nodeAffinity"]
    required = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert len(required["nodeSelectorTerms"]) == 2


@pytest.mark.parametrize(
    ("given", "engine", "kind"),
    [
        ({"kind": "Pod", "metadata": {"name": "p"}, "spec": POD}, "jobset", "JobSet"),
        (BATCH, "pytorchjob", "PyTorchJob"),
        (BATCH, "volcano", "Job"),
        (BATCH, "kueue", "Job"),
        (BATCH, None, "Job"),
        (PYTORCH, "jobset", "PyTorchJob"),
    ],
)
def test_a_plain_template_becomes_the_kind_that_the_spec_names(
    given: dict[str, Any], engine: str | None, kind: str
) -> None:
    made, _ = job_manifest(of_engine(given, engine, "q"), "j-0", OWNER, ["n1", "n2"], ["run"])
    assert made["kind"] == kind
    queue = {
        "jobset": made["metadata"]["labels"].get("kueue.x-k8s.io/queue-name"),
        "volcano": made["spec"].get("queue"),
        "pytorchjob": made["spec"].get("runPolicy", {}).get("schedulingPolicy", {}).get("queue"),
    }
    assert queue.get(engine or "") == ("q" if engine in queue and given is not PYTORCH else None)


def test_a_trainjob_needs_a_template_that_names_its_runtime() -> None:
    with pytest.raises(UsageError, match="give --mnode-k8s-template of kind TrainJob"):
        of_engine(BATCH, "trainjob", None)


def test_a_manifest_without_pods_is_refused() -> None:
    with pytest.raises(UsageError, match="has no pod template"):
        job_manifest({"kind": "JobSet", "spec": {}}, "j-0", OWNER, ["n1"], ["run"])


def pod(state: dict[str, Any], phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    statuses = [{"name": "side", "state": {"running": {}}}, {"name": "main", "state": state}]
    return {
        "metadata": {"name": "p", "uid": "u", **metadata},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


ENDED = {"terminated": {"exitCode": 75}}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "disk is full"}


@pytest.mark.parametrize(
    ("found", "gone", "expected"),
    [
        (pod({"running": {}}), False, (True, None, False, "")),
        (pod({"waiting": {}}), False, (False, None, False, "")),
        (pod(ENDED), False, (False, 75, True, "")),
        (pod(ENDED, "Failed"), False, (False, 75, True, "")),
        (pod({"running": {}}, deletionTimestamp="t"), False, (True, None, False, "deleted")),
        (pod(ENDED, deletionTimestamp="t"), True, (False, 75, True, "deleted")),
        (pod({"running": {}}), True, (False, LOST, True, "deleted")),
        ({**pod({}), "status": EVICTED}, False, (False, LOST, True, "Evicted: disk is full")),
    ],
)
def test_state_of_a_pod(
    found: dict[str, Any], gone: bool, expected: tuple[bool, int | None, bool, str]
) -> None:
    read = JobPod.read(found, "main", gone=gone)
    assert (read.runs, read.code, read.ended) == expected[:3]
    assert expected[3] in read.disturbed
    assert bool(expected[3]) == bool(read.disturbed)


SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ["CODE"])))
print(os.getcwd(), os.environ["OF_IMAGE"], os.environ["PYTHONPATH"], sys.stdin.read(), flush=True)
time.sleep(60)
"""


def start(path: Path, limit_s: float, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", in_pod.__file__, "wait", str(path), str(limit_s)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )


def order(path: Path, **order: Any) -> None:
    data = json.dumps(order).encode()
    argv = [sys.executable, "-I", "-S", in_pod.__file__, "order", str(path)]
    subprocess.run(argv, input=b"%d\n%s" % (len(data), data), check=True)


def test_the_main_process_runs_its_command_and_passes_sigterm_on(tmp_path: Path) -> None:
    path = tmp_path / "order"
    waiting = start(path, 60, OF_IMAGE="image's", PYTHONPATH="/image")
    argv, text = [sys.executable, "-c", SCRIPT], "a plan"
    sent = {"PYTHONPATH": "/tests", "CODE": "75"}
    passed = {"OF_IMAGE": "pytest's"}
    order(path, argv=argv, env=sent, passed=passed, cwd=str(tmp_path), text=text)
    assert path.stat().st_mode & 0o077 == 0
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == f"{tmp_path} image's /tests a plan\n"
    waiting.send_signal(signal.SIGTERM)
    waiting.communicate(timeout=30)
    assert waiting.returncode == 75


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "sleep 0.01 & exit 3"], 3),
        (["no-such"], 127),
    ],
)
def test_the_main_process_ends_with_the_status_of_its_command(
    tmp_path: Path, argv: list[str], status: int
) -> None:
    path = tmp_path / "order"
    order(path, argv=argv, env={}, passed={}, cwd="/no/such/directory", text="")
    waiting = start(path, 60)
    output, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == status, output


def test_without_a_command_it_ends_with_an_error(tmp_path: Path) -> None:
    waiting = start(tmp_path / "order", 0)
    output, _ = waiting.communicate(timeout=30)
    assert (waiting.returncode, output) == (in_pod.LATE, "no order within 0 s: the run is gone\n")
