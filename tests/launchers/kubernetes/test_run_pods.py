"""The pods of a run, its lost pods, and their replacements."""

from __future__ import annotations

from typing import Any

from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.run_pods import RunPods


def pod(name: str, node: str, **changes: Any) -> PodState:
    fields: dict[str, Any] = {
        "name": name, "uid": f"uid-{name}", "index": None, "node": node, "address": f"at-{node}",
        "ready": True, "problem": "", "hopeless": False, "over": "",
    }  # fmt: skip
    return PodState(**{**fields, **changes})


def back(host: str, node: str, name: str) -> dict[str, str]:
    return {"back": host, "node": node, "address": f"at-{node}", "pod": name}


def up(*pods: PodState) -> RunPods:
    found = RunPods(len(pods))
    events = found.listed(pods)
    assert [list(event) for event in events] == [["pods"]]
    return found


def test_nodes_are_numbered_by_their_names_once_all_pods_run() -> None:
    pods = RunPods(2)
    assert pods.heard(pod("a", "node10")) == []
    assert pods.heard(pod("b", "node2", ready=False)) == []
    [event] = pods.heard(pod("b", "node2"))
    assert {host: at["node"] for host, at in event["pods"].items()} == {"0": "node2", "1": "node10"}


def test_a_pod_that_disappeared_between_watches_is_lost() -> None:
    pods = up(pod("a", "n1"), pod("b", "n2"))
    assert pods.listed([pod("a", "n1")]) == [{"lost": "1", "why": "its pod was deleted"}]
    assert pods.listed([pod("a", "n1")]) == []


def test_a_new_pod_replaces_the_pod_of_its_node_then_of_its_index() -> None:
    pods = up(pod("a", "n1", index=0), pod("b", "n2", index=1))
    over = pod("a", "n1", index=0, ready=False, over="evicted")
    assert pods.heard(over) == [{"lost": "0", "why": "evicted"}]
    deleted = {"lost": "1", "why": "its pod was deleted"}
    assert pods.heard(pod("b", "n2", index=1), deleted=True) == [deleted]
    assert pods.heard(pod("c", "n2", index=0)) == [back("1", "n2", "c")]
    assert pods.heard(pod("d", "n3", index=0)) == [back("0", "n3", "d")]
    assert pods.heard(pod("d", "n3", index=0)) == []


def test_a_new_pod_without_an_index_replaces_the_only_missing_one() -> None:
    pods = up(pod("a", "n1"), pod("b", "n2"), pod("c", "n3"))
    pods.heard(pod("a", "n1"), deleted=True)
    assert pods.heard(pod("d", "n4")) == [back("0", "n4", "d")]
    pods.heard(pod("b", "n2"), deleted=True)
    pods.heard(pod("c", "n3"), deleted=True)
    assert pods.heard(pod("e", "n5")) == []
    assert [event["back"] for event in pods.heard(pod("f", "n3"))] == ["2"]


def test_a_restarted_container_is_lost_and_available_again() -> None:
    pods = up(pod("a", "n1"))
    again = pod("a", "n1", uid="uid-a.1", before="its container was killed for memory")
    lost = {"lost": "0", "why": "its container was killed for memory"}
    assert pods.heard(again) == [lost, back("0", "n1", "a")]
    assert pods.is_there("0", "uid-a.1")
    assert not pods.is_there("0", "uid-a")


def test_reasons_why_pods_do_not_run() -> None:
    pods = RunPods(3)
    pods.heard(pod("a", "", ready=False, problem="no GPU"))
    assert pods.why_not_up("Job j", ["exceeded quota"], {}, 9.0) == {
        "a": "no GPU", "Job j": "2 pods were not created: exceeded quota",
    }  # fmt: skip
    pods.heard(pod("b", "n1", ready=False, problem="no image", hopeless=True))
    assert pods.why_not_up("Job j", [], {}, 9.0) == {"b": "no image"}


def test_what_a_pod_without_a_problem_waits_for_and_the_option() -> None:
    pods = RunPods(4)
    pods.heard(pod("a", "n1", ready=False))
    pods.heard(pod("b", "n2", ready=False))
    pods.heard(pod("c", "", ready=False))
    late = "after 300 s; raise --mnode-k8s-wait"
    assert pods.why_not_up("Job j", [], {"a": 'Pulling image "big"'}, 300.4) == {
        "a": f'its container is being created (Pulling image "big") {late}',
        "b": f"its container is being created (image pull?) {late}",
        "c": f"it has no node yet {late}",
        "Job j": f"1 pod was not created: Kubernetes gives no reason {late}",
    }


def test_a_job_that_gave_up_is_the_reason_while_its_pods_are_still_there() -> None:
    pods = RunPods(1)
    pods.heard(pod("a", "n1", ready=False))
    assert pods.why_not_up("Job j", ["past its deadline"], {}, 9.0, final=True) == {
        "Job j": "past its deadline"
    }


def ended(name: str, index: int | None, node: str = "n1") -> PodState:
    return pod(name, node, index=index, ready=False, over="its container ended with status 1")


def test_a_pod_that_its_job_replaces_does_not_end_the_start() -> None:
    pods = RunPods(3)
    for name in ("a", "b"):
        pods.heard(pod(name, f"n{name}", index="ab".index(name)))
    pods.heard(ended("c", 2))
    assert pods.hopeless() == []
    assert pods.missing == 1
    [event] = pods.heard(pod("d", "n4", index=2))
    assert sorted(at["pod"] for at in event["pods"].values()) == ["a", "b", "d"]


def test_a_node_whose_pods_end_again_and_again_is_hopeless_though_their_objects_are_gone() -> None:
    pods = RunPods(9)
    for number in range(3):
        assert pods.hopeless() == []
        pods.heard(ended(f"c{number}", 2))
        pods.heard(ended(f"c{number}", 2), deleted=True)
    whys = pods.why_not_up("Job j", [], {}, 40.0)
    assert whys == dict.fromkeys(("c0", "c1", "c2"), "its container ended with status 1")


def test_as_many_ended_pods_as_nodes_are_hopeless() -> None:
    pods = RunPods(3)
    for number in range(3):
        assert pods.hopeless() == []
        pods.heard(ended(f"c{number}", number))
    assert len(pods.hopeless()) == 3


def test_an_ended_pod_that_nothing_replaces_is_hopeless() -> None:
    pods = RunPods(3, replaced=False)
    pods.heard(ended("a", None))
    assert [one.name for one in pods.hopeless()] == ["a"]
