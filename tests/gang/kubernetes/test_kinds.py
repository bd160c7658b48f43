"""The state of a gang from its objects, and the objects that make a gang."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_mnode.gang.kubernetes import engine
from pytest_mnode.gang.kubernetes.kinds import KINDS, PodGang
from pytest_mnode.gang.kubernetes.pods import GANG_LABEL, RootState
from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL

LABELS = {RUN_LABEL: "r1", GANG_LABEL: "g1"}
TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rail0"}},
    "spec": {
        "hostNetwork": True,
        "nodeSelector": {"pool": "a"},
        "containers": [
            {"name": "train", "image": "torch", "args": ["x"], "env": [{"name": "A", "value": "b"}]}
        ],
    },
}


def condition(name: str, status: str = "True", **more: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": name, "status": status, **more}]}}


def no_quota(reason: str, message: str) -> dict[str, Any]:
    return condition("QuotaReserved", "False", reason=reason, message=message)


TOO_LARGE = condition("Unschedulable", message="3/3 tasks in gang unschedulable")
TOO_LARGE["status"]["phase"] = "Inqueue"
PENDING = {"status": {"state": {"phase": "Pending"}}}
SCHEDULED = "PodGroupInitiallyScheduled"
NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota"


@pytest.mark.parametrize(
    ("name", "root", "quoted", "state"),
    [
        ("default", {"status": {"active": 2}}, None, RootState()),
        ("default", condition("Complete"), None, RootState("Complete", over=True)),
        (
            *("default", condition("Failed", reason="DeadlineExceeded"), None),
            RootState("Failed (DeadlineExceeded)", over=True, failed=True),
        ),
        ("native", {}, condition(SCHEDULED, "False"), RootState()),
        ("native", {}, condition(SCHEDULED), RootState(SCHEDULED)),
        ("kueue", {}, condition("Admitted"), RootState("Admitted")),
        ("kueue", {}, no_quota("Pending", NO_QUOTA), RootState(f"not QuotaReserved ({NO_QUOTA})")),
        (
            *("kueue", {}, no_quota("Inadmissible", "no such queue")),
            RootState("not QuotaReserved (no such queue)", blocked=True),
        ),
        ("kueue", {}, condition("Evicted", reason="Preempted"), RootState("Evicted (Preempted)")),
        (
            *("volcano", {"status": {"state": {"phase": "Running"}, "retryCount": 1}}),
            *({"status": {"phase": "Running"}}, RootState("Running, PodGroup Running", restarts=1)),
        ),
        # A state is no reason.
        (
            "volcano",
            PENDING,
            {"status": {"phase": "Pending"}},
            RootState("Pending, PodGroup Pending"),
        ),
        (
            *("volcano", PENDING, TOO_LARGE),
            RootState("Pending, PodGroup Inqueue (3/3 tasks in gang unschedulable)"),
        ),
        ("volcano", {"status": {"state": {"phase": "Aborted"}}}, None, RootState("Aborted", True)),
        (
            *("jobset", {"status": {"restarts": 2}}, condition("Admitted")),
            RootState("Admitted", restarts=2),
        ),
        ("trainjob", condition("Complete"), None, RootState("Complete", over=True)),
        ("pytorchjob", condition("Failed"), None, RootState("Failed", over=True, failed=True)),
    ],
)
def test_state_of_a_gang_from_its_objects(
    name: str, root: dict[str, Any], quoted: dict[str, Any] | None, state: RootState
) -> None:
    assert KINDS[name].state(root, quoted) == state


def made(name: str, **changes: Any) -> dict[str, Any]:
    """Objects of a gang of three, by kind."""
    kind = KINDS[name]
    pod = engine.rank_template(
        TEMPLATE, LABELS, python="py", runs_s=4, kind=kind, nodes=["n0", "n1"], priority=""
    )
    gang = PodGang("g1", 3, changes.pop("least", 3), pod, LABELS, 64, queue="q", **changes)
    return {one.kind: found["spec"] for one, found in kind.manifests(gang).items()}


def test_a_ranks_pod_keeps_the_fields_of_the_template() -> None:
    before = copy.deepcopy(TEMPLATE)
    pod = made("default")["Job"]["template"]
    assert before == TEMPLATE
    assert pod["metadata"] == {**TEMPLATE["metadata"], "labels": LABELS}
    spec = pod["spec"]
    assert (spec["hostNetwork"], spec["nodeSelector"]) == (True, {"pool": "a"})
    [main] = spec["containers"]
    assert main["image"] == "torch"
    assert "args" not in main
    assert main["command"][0] == "py"
    assert main["command"][-6:-3] == ["-", "4.000", "MNODE_GANG"]
    env = [one["name"] for one in main["env"]]
    assert env == ["A", "MNODE_GANG", "MNODE_RESTARTS", "MNODE_NODE"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = required["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n0"], ["n1"]]
    [apart] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"] == {"matchLabels": {RUN_LABEL: "r1"}}


def test_no_container_outlives_the_rank() -> None:
    spec = {"containers": [*TEMPLATE["spec"]["containers"], {"name": "tcpx-daemon"}]}
    pod = engine.rank_template(
        {"spec": spec}, LABELS, python="py", runs_s=4, kind=KINDS["default"], nodes=[], priority=""
    )
    assert [one["name"] for one in pod["spec"]["containers"]] == ["train"]


@pytest.mark.parametrize("least", [3, 2])
def test_the_number_of_pods_of_a_gang(least: int) -> None:
    native = made("native", least=least)
    assert native["PodGroup"]["schedulingPolicy"] == {"gang": {"minCount": least}}
    assert native["Job"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "g1"}
    assert made("volcano", least=least)["Job"]["minAvailable"] == least
    assert made("coscheduling", least=least)["PodGroup"]["minMember"] == least
    run = made("pytorchjob", least=least)["PyTorchJob"]["runPolicy"]
    assert run["schedulingPolicy"] == {"minAvailable": least, "queue": "q"}


def test_a_gang_that_is_requeued_is_restarted_whole() -> None:
    assert made("jobset", requeue=True)["JobSet"]["failurePolicy"]["maxRestarts"] > 0
    assert made("jobset")["JobSet"]["failurePolicy"]["maxRestarts"] == 0
    for requeue, action in ((True, "RestartJob"), (False, "TerminateJob")):
        [policy] = made("volcano", requeue=requeue)["Job"]["policies"]
        assert policy["action"] == action
    assert made("default", requeue=True)["Job"]["backoffLimit"] == 0
    for requeue, again in ((True, "OnFailure"), (False, "Never")):
        each = made("pytorchjob", requeue=requeue)["PyTorchJob"]["pytorchReplicaSpecs"]
        assert [one["restartPolicy"] for one in each.values()] == [again] * 2
