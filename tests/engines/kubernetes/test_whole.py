"""The unchanged acceptance suite in pods, with the nodes' links and without them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.engines.whole import assert_certified, certify_whole, short_page


def give_shared_memory(template: Path) -> None:
    """Without this volume a pod has 64 MiB, which fails preflight."""
    pod = json.loads(template.read_text())
    pod["spec"]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    [container] = pod["spec"]["containers"]
    container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    template.write_text(json.dumps(pod))


def test_nodes_that_are_pods_are_certified(bed: KubernetesOnRack, tmp_path: Path) -> None:
    page = short_page(bed, "in pods")
    storage = page["criteria"]["storage"]
    storage["paths"] = {str(tmp_path): storage["paths"]["/tmp"]}  # which all pods mount
    page["power"]["within"] = "120 s"  # a Job replaces a failed pod after 10 s, and later each time
    options = bed.launch(tmp_path, hostNetwork=True)
    give_shared_memory(tmp_path / "pods.json")
    done = certify_whole(bed, tmp_path, page, *options)
    assert_certified(done, page, "kubernetes", bed.names)
    bed.await_that(lambda: bed.get("jobs,pods")["items"] == [], 30, "no job, no pod")


def test_pods_without_the_fabric_fail(bed: KubernetesOnRack, tmp_path: Path) -> None:
    """Collectives of pods with their own address use the pod network."""
    page = short_page(bed, "in pods without fab0")
    page["criteria"] = {"fabric": {"transport": page["criteria"]["fabric"]["transport"]}}
    done = certify_whole(bed, tmp_path, page, *bed.launch(tmp_path))
    verdicts = {c["name"]: c["verdict"] for c in done.certificate["criteria"]}
    assert verdicts["fabric"] == "fail", done.run.output
    assert done.certificate["verdict"] == "not certified", done.run.output
    assert any("eth0" in str(name) for name in done.culprits("fabric")), done.run.output
