"""Nodes that a rank can get, and pods of others on them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.gang.kubernetes.served import admitted, requests_of, views
from pytest_mnode.launchers.kubernetes.api import ApiError

GPU = "nvidia.com/gpu"


def node(name: str = "n0", **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "rack": "3"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    for key, value in changes.items():
        found[key] |= value
    return found


def pod(node: str = "n0", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    asked = {"resources": {"requests": {"cpu": "500m"}, "limits": {GPU: "8"}}}
    return {
        "metadata": {"name": "p", "namespace": namespace, "labels": spec.pop("labels", {})},
        "spec": {"nodeName": node, "containers": [asked], **spec},
        "status": {"phase": "Running"},
    }


RANK = {"containers": [{"resources": {"limits": {GPU: "8", "cpu": "64"}}}]}
OURS = {"pytest-mnode/run": "r1"}


def taint(key: str, effect: str = "NoSchedule") -> dict[str, Any]:
    return {"spec": {"taints": [{"key": key, "effect": effect}]}}


@pytest.mark.parametrize("may_try", [True, False])
def test_tolerations_that_the_server_adds_count(may_try: bool) -> None:
    """As GKE does for GPUs (the admission plugin ExtendedResourceToleration)."""
    asked: list[Any] = []

    class Server:
        def path(self, kind: str) -> str:
            return kind

        def request(self, *words: Any) -> dict[str, Any]:
            asked.append(words)
            if not may_try:
                raise ApiError(403, "pods is forbidden")
            added = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
            return {"spec": {**words[2]["spec"], "tolerations": [added]}}

    pod = admitted(Server(), {"spec": RANK})  # type: ignore[arg-type]
    [one] = views([node(**taint(GPU))], [], OURS)
    assert (one.suits(pod), one.taken(pod)) == (may_try, "" if may_try else f"taint {GPU}")
    [(method, path, _, query)] = asked
    assert (method, path, query) == ("POST", "pods", {"dryRun": "All"})


def test_resources_requested_by_a_pod() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", GPU: "1"}}},
            {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}},
            {},
        ],
        "initContainers": [{"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}],
        "overhead": {"memory": "1Mi"},
    }
    assert requests_of(spec) == {"cpu": 2, GPU: 1, "memory": 2**31 + 2**20, "pods": 1}


def test_sidecars_run_beside_containers_started_after_them() -> None:
    def of(cpu: str, memory: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}

    spec = {
        "containers": [of("3", "1Gi")],
        "initContainers": [of("1", "7Gi"), of("2", "1Gi", restartPolicy="Always"), of("6", "1Gi")],
    }
    assert requests_of(spec) == {"cpu": 8, "memory": 7 * 2**30, "pods": 1}
    spec["initContainers"].pop()
    assert requests_of(spec) == {"cpu": 5, "memory": 7 * 2**30, "pods": 1}


def test_pod_level_resource_requests() -> None:
    spec = {**RANK, "resources": {"requests": {"cpu": "80"}}, "overhead": {"cpu": "1"}}
    assert requests_of(spec) == {"cpu": 81, GPU: 8, "pods": 1}


@pytest.mark.parametrize(
    ("there", "pods", "why"),
    [
        (node(), [], ""),
        (node(), [pod(containers=[{"resources": {"requests": {"cpu": "8"}}}])], ""),
        (node(), [pod()], f"{GPU} used by pod team/p"),
        (node(), [pod(labels=OURS)], ""),
        (node(), [pod() | {"status": {"phase": "Succeeded"}}], ""),
        (node(), [pod("n1")], ""),
        (node(spec={"unschedulable": True}), [], "cordoned"),
        (
            node(status={"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Gone"}]}),
            [],
            "not ready: Gone",
        ),
        (node(**taint("node.kubernetes.io/unreachable")), [], "taint node.kubernetes.io/unreach"),
        (node(**taint("soft", "PreferNoSchedule")), [], ""),
    ],
)
def test_reasons_why_a_node_is_taken(
    there: dict[str, Any], pods: list[dict[str, Any]], why: str
) -> None:
    [view] = views([there], pods, OURS)
    assert view.taken(RANK).startswith(why)
    assert bool(view.taken(RANK)) == bool(why)
    assert view.suits(RANK)
    assert bool(view.ours) == (bool(pods) and pods[0]["metadata"]["labels"] == OURS)


def required(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]} for one in expressions]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": affinity}}


EMPTY_TERM = required()
EMPTY_TERM["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = {
    "nodeSelectorTerms": [{}]
}


@pytest.mark.parametrize(
    ("spec", "suits"),
    [
        ({"nodeSelector": {"rack": "3"}}, True),
        ({"nodeSelector": {"rack": "4"}}, False),
        (required({"key": "rack", "operator": "In", "values": ["3", "4"]}), True),
        (required({"key": "rack", "operator": "NotIn", "values": ["3"]}), False),
        (required({"key": "gpu", "operator": "Exists"}), False),
        (required({"key": "gpu", "operator": "DoesNotExist"}), True),
        (required({"key": "rack", "operator": "Gt", "values": ["2"]}), True),
        (required({"key": "rack", "operator": "Lt", "values": ["3"]}), False),
        (required({"key": "gpu", "operator": "Gt", "values": ["2"]}), False),
        (required({"key": "kubernetes.io/hostname", "operator": "Gt", "values": ["2"]}), False),
        (EMPTY_TERM, False),
        (
            required(
                {"key": "rack", "operator": "In", "values": ["9"]},
                {"key": "rack", "operator": "In", "values": ["3"]},
            ),
            True,
        ),
        ({"containers": [{"resources": {"limits": {GPU: "16"}}}]}, False),
    ],
)
def test_nodes_that_fit_a_pod(spec: dict[str, Any], suits: bool) -> None:
    [view] = views([node()], [pod()], OURS)
    assert view.suits({**RANK, **spec}) == suits


@pytest.mark.parametrize(
    ("tolerations", "suits"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "gpu", "value": "yes"}], True),
        ([{"key": "gpu", "value": "no"}], False),
    ],
)
def test_taints_that_a_template_tolerates(tolerations: list[dict[str, Any]], suits: bool) -> None:
    there = node(spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    [view] = views([there], [], OURS)
    assert view.suits({**RANK, "tolerations": tolerations}) == suits
