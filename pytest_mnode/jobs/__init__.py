"""Real torchrun jobs on the nodes of a controller-side test: started, killed, preempted, requeued.

`Job` is a value. `RunningJob` starts torchrun on nodes itself; `slurm.SubmittedJob` submits the
job, and Slurm starts it; `kubernetes.PodJob` creates pods for it. All are a `LaunchedJob`, the
interface for tests; the backend of a run says which it uses (`backends`). Runs in the controller;
only `node_processes`, `slurm.on_node` and `kubernetes.in_pod` run on nodes.
"""

from __future__ import annotations

from pytest_mnode.jobs.job import Job, JobEvent, JobResult
from pytest_mnode.jobs.launched import LaunchedJob
from pytest_mnode.jobs.running import RunningJob

__all__ = ["Job", "JobEvent", "JobResult", "LaunchedJob", "RunningJob"]
