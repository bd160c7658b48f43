"""A plugin: jobs of `cluster.launch` request GPUs, and the run's own pods request none.

If a test preempts such a job, a gang of a higher priority takes all nodes. The variable EVICTED
has, as JSON: the spec's scheduler, and the path of a pod template with the GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.gang.engine import GangRequest
from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
from pytest_mnode.jobs import Job
from pytest_mnode.jobs.kubernetes.pod_job import PodJob
from pytest_mnode.launchers.kubernetes.manifest import RunInPods
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.options import Settings
from pytest_mnode.spec import Scheduler

RUNS_S, LIMIT_S = 3.0, 90.0


def pytest_configure(config: pytest.Config) -> None:
    given = json.loads(os.environ["EVICTED"])
    template = json.loads(Path(given["template"]).read_text())
    low = json.loads(json.dumps(template))
    low["spec"]["priorityClassName"] = "low"
    low["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": given["scheduler"]["queue"]}
    start = PodJob.start

    def start_low(cluster: Nodes, job: Job, pods: RunInPods) -> PodJob:
        pods = dataclasses.replace(pods, manifest=low)
        return start(cluster, dataclasses.replace(job, back_within_s=LIMIT_S), pods)

    def preempt(job: PodJob, grace_s: float) -> list[str]:
        page = {"kind": "kubernetes", **given["scheduler"], "priority": "high"}
        scheduler = Scheduler.model_validate(page)
        engine = KubernetesEngine(
            scheduler, Settings(), template, leftovers=KubernetesBackend().leftovers
        )
        config.add_cleanup(engine.close)
        for node in job.nodes:
            job._note("signalled", node, detail="a gang of a higher priority comes")
        nodes = engine.capacity().nodes
        engine.submit(GangRequest("high", len(nodes), RUNS_S, 300, nodes))
        end = time.monotonic() + LIMIT_S
        while job._still_running():
            assert time.monotonic() < end, "the job was not evicted"
            time.sleep(0.05)
        return []

    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(PodJob, "start", start_low)
    patch.setattr(PodJob, "preempt", preempt)
