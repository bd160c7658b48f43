"""Gangs on a real Kubernetes: passed with a gang scheduler, failed without one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.gang.kubernetes import engine
from pytest_mnode.gang.kubernetes.kinds import KINDS, PodGang
from pytest_mnode.gang.kubernetes.pods import GANG_LABEL
from pytest_mnode.launchers.kubernetes.manifest import RUN_LABEL, pod_template
from tests.acceptance.certified import ACCEPTANCE, Certified, certificate_of
from tests.engines.inside import page_for, run_pytest, running_pytest
from tests.engines.kubernetes import preempted
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.engines.kubernetes.gang_engines import GPU, Kueue, add_priorities, define, give_gpus
from tests.engines.kubernetes.programs import (
    COSCHEDULING,
    JOBSET,
    TRAINER,
    TRAINING_OPERATOR,
    VOLCANO,
)
from tests.engines.test_gang import FATE, FILLED, LOSS, OVERSIZE, PART, RACE

NEEDS = {
    "volcano": [VOLCANO],
    "coscheduling": [COSCHEDULING],
    "jobset": [JOBSET],
    "trainjob": [TRAINER],
    "pytorchjob": [TRAINING_OPERATOR],
}
"""Modules whose CRDs the server needs, by kind."""
TIMES = {
    **{"rounds": 1, "runs": "4 s", "waits": "3 s", "next_within": "15 s", "together": "3 s"},
    "settle": "2 s",
}


SOON: list[dict[str, Any]] = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute",
     "tolerationSeconds": 2}
    for what in ("unreachable", "not-ready")
]  # fmt: skip
"""Pods leave an unreachable node after 2 s; Kubernetes' default is 5 min."""


@pytest.fixture(autouse=True)
def nothing_left(bed: KubernetesOnRack) -> Iterator[None]:
    give_gpus(bed)
    yield
    kinds = "jobs.batch,pods,podgroups.scheduling.k8s.io"
    bed.await_that(lambda: bed.get(kinds)["items"] == [], 30, "no job, no pod, no PodGroup")


def arguments(
    bed: KubernetesOnRack, directory: Path, scheduler: dict[str, Any], **promised: Any
) -> list[str]:
    page = page_for(
        bed,
        "kubernetes on the rack",
        scheduler={"kind": "kubernetes", **scheduler},
        criteria={"gang": {**TIMES, **promised}},
        not_promised=None,
    )
    spec = directory / "spec.yaml"
    spec.write_text(yaml.safe_dump(page))
    options = bed.launch(directory, hostNetwork=True)
    template = directory / "pods.json"
    pod = json.loads(template.read_text())
    if "node_loss" in promised:  # a kubelet that starts again knows of no GPU
        pod["spec"]["tolerations"] = SOON
    else:
        pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    template.write_text(json.dumps(pod))
    report = f"--mnode-report={directory / 'report'}"
    return [str(ACCEPTANCE / "test_gang.py"), f"--mnode-spec={spec}", *options, report, "-rA"]


def certify(
    bed: KubernetesOnRack, directory: Path, scheduler: dict[str, Any], *tests: str, **promised: Any
) -> Certified:
    """Run acceptance/test_gang.py, or some of its tests."""
    chosen = ["-k", " or ".join(tests)] if tests else []
    args = arguments(bed, directory, scheduler, **promised)
    run = run_pytest(bed, directory, *args, *chosen, limit_s=250)
    return certificate_of(run, directory / "report")


@pytest.mark.parametrize(
    ("scheduler", "waiting"),
    [
        ({"engine": "native"}, "minCount (3) cannot be satisfied"),
        ({"engine": "kueue", "queue": "cluster"}, f"insufficient unused quota for {GPU}"),
        ({"engine": "volcano"}, "Pending"),
    ],
    ids=["native", "kueue", "volcano"],
)
def test_gang_schedulers_keep_gangs_whole(
    bed: KubernetesOnRack,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    scheduler: dict[str, str],
    waiting: str,
) -> None:
    if scheduler["engine"] != "native":
        request.getfixturevalue(scheduler["engine"])
    done = certify(bed, tmp_path, scheduler)
    output = done.run.output
    for test in (FILLED, RACE, OVERSIZE):
        assert done.case("gang", test)[0] == "pass", output
    # No node is blamed: a gang is judged where its scheduler puts it.
    assert done.certificate["verdict"] == "partly certified", output
    # Each state with its duration, in the scheduler's own words.
    _, filled = done.case("gang", FILLED)
    waited = filled["filled 1: B: waiting"]
    assert waited["value"] > 0  # it waits for 3 s, less the time until it is first seen
    assert waiting in waited["note"], output
    assert 2 < filled["filled 1: B: 3 of 3 ranks ran"]["value"] < 6, output
    _, oversize = done.case("gang", OVERSIZE)
    large = oversize["gangs larger than the cluster without a refusal or a reason"]
    assert large["note"].startswith("waits: "), large


def test_without_gang_scheduling_half_a_gang_holds_nodes(
    bed: KubernetesOnRack, tmp_path: Path
) -> None:
    done = certify(bed, tmp_path, {"engine": "default"}, RACE)
    verdict, race = done.case("gang", RACE)
    assert verdict == "fail", done.run.output
    part = race[PART]
    assert re.match(r"race 1: [AB] held [12] of 3 nodes \(node\d", part["culprit"]), part
    assert f"Insufficient {GPU}" in part["culprit"], part


def test_a_quota_above_capacity_admits_half_a_gang(
    bed: KubernetesOnRack, kueue: Kueue, tmp_path: Path
) -> None:
    done = certify(bed, tmp_path, {"engine": "kueue", "queue": "larger"}, RACE, nodes=2)
    verdict, race = done.case("gang", RACE)
    assert verdict == "fail", done.run.output
    assert re.match(r"race 1: [AB] held 1 of 2 nodes", race[PART]["culprit"]), race[PART]
    parts = [race[name]["note"] for name in ("race 1: A: a part", "race 1: B: a part")]
    assert any("Admitted: 1 Pending + 1 Running" in part for part in parts), parts


def test_a_gang_with_a_lower_minimum_starts_incomplete(
    bed: KubernetesOnRack, volcano: None, tmp_path: Path
) -> None:
    scheduler = {"engine": "volcano", "min_available": 2}
    done = certify(bed, tmp_path, scheduler, FILLED, waits="15 s")
    verdict, filled = done.case("gang", FILLED)
    assert verdict == "fail", done.run.output
    part = filled["filled 1: B: a part"]["note"]
    assert part.startswith("2 of 3: "), done.run.output
    assert "Running, PodGroup Running: 1 Pending + 2 Running" in part, part


def test_a_gang_that_lost_a_node_is_requeued_whole(
    bed: KubernetesOnRack, volcano: None, tmp_path: Path
) -> None:
    """Its kubelet fails with the node's power; pods are evicted from a node without heartbeats."""
    promised = {"nodes": 2, "node_loss": "requeued", "lost_within": "90 s"}
    done = certify(bed, tmp_path, {"engine": "volcano"}, LOSS, **promised)
    verdict, loss = done.case("gang", LOSS)
    assert verdict == "pass", done.run.output
    assert re.search(r"node\d dead: requeued", loss[FATE]["note"]), loss


@pytest.mark.parametrize(
    "scheduler",
    [{"engine": "native"}, {"engine": "kueue", "queue": "cluster"}],
    ids=["native", "kueue"],
)
def test_a_gang_of_higher_priority_preempts_a_whole_gang(
    bed: KubernetesOnRack, kueue: Kueue, tmp_path: Path, scheduler: dict[str, str]
) -> None:
    """It never preempts a part, and the gang is requeued whole; test_jobs has checkpoints."""
    add_priorities(bed)
    arguments(bed, tmp_path, scheduler)
    template, named = str(tmp_path / "pods.json"), json.dumps(scheduler)
    done = bed.run(sys.executable, preempted.__file__, template, named, limit_s=300)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert "whole" in outcome["high"]["states"], outcome
    low = [state for state in outcome["low"]["states"] if state in ("whole", "waiting", "over")]
    assert low[-1] == "whole", outcome
    assert low.count("whole") == 2, outcome
    assert outcome["low"]["longest_part_s"] < 2, outcome
    assert outcome["high"]["longest_part_s"] < 2, outcome


@pytest.mark.parametrize("name", KINDS)
def test_the_server_accepts_objects_of_each_kind(
    bed: KubernetesOnRack, tmp_path: Path, name: str
) -> None:
    """By server-side validation alone: most of these kinds are not tried under contention."""
    if name in NEEDS:
        define(bed, *NEEDS[name])
    bed.launch(tmp_path)
    given = json.loads((tmp_path / "pods.json").read_text())
    labels = {RUN_LABEL: "r1", GANG_LABEL: "g1"}
    kind = KINDS[name]
    pod = engine.rank_template(
        pod_template(given),
        labels, python="python3", runs_s=1, kind=kind, nodes=["node0"], priority="",
    )  # fmt: skip
    queue = "q1" if name in ("kueue", "jobset") else ""
    gang = PodGang("g1", 3, 3, pod, labels, 60, requeue=True, queue=queue)
    for resource, manifest in kind.manifests(gang).items():
        metadata = {"name": gang.name, **manifest.pop("metadata", {})}
        served = {"kind": resource.kind, "metadata": metadata, **manifest}
        path = tmp_path / f"{resource.kind}.json"
        groups = bed.kubectl("api-resources", f"--api-group={resource.group}", "--no-headers")
        [version] = {
            line.split()[-3] for line in groups.splitlines() if resource.kind in line.split()
        }
        path.write_text(json.dumps({"apiVersion": version, **served}))
        bed.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(path))


def test_a_killed_controller_leaves_nothing(bed: KubernetesOnRack, tmp_path: Path) -> None:
    args = arguments(bed, tmp_path, {"engine": "native"}, waits="60 s")
    with running_pytest(bed, tmp_path, *args):
        bed.await_that(
            lambda: len(bed.get("pods")["items"]) >= 3, 60, "fillers and a gang are queued"
        )
