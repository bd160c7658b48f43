"""Real torchrun jobs on the nodes of a controller-side test: started, watched, killed, requeued.

What to run is `Job`, a value; how torchrun is called for it and what a scheduler would do when it
ends are functions from values to values (`torchrun`, `requeue`); `processes` finds and ends what
runs on nodes. `RunningJob` starts the parts itself, waits and keeps count; a job that a scheduler
starts is in `slurm`. Runs in the controller.
"""

from __future__ import annotations

from pytest_mnode.jobs.described import Job, JobEvent, JobResult
from pytest_mnode.jobs.launched import LaunchedJob
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.jobs.starting import started

__all__ = ["Job", "JobEvent", "JobResult", "LaunchedJob", "RunningJob", "started"]
