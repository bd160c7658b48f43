"""Real torchrun jobs on the nodes of a controller-side test: started, watched, killed, requeued.

What to run is `Job`, a value; how torchrun is called for it and what a scheduler would do when it
ends are functions from values to values (`torchrun`, `requeue`); `processes` finds and ends what
runs on nodes; `RunningJob` is the one that starts, waits and keeps count. Runs in the controller.
"""

from __future__ import annotations

from pytest_mnode.job.described import Job, JobEvent, JobResult
from pytest_mnode.job.running import RunningJob

__all__ = ["Job", "JobEvent", "JobResult", "RunningJob"]
