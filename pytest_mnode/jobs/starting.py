"""Who starts the parts of a job: the run itself, on nodes, or the scheduler that has the nodes."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.launched import LaunchedJob
from pytest_mnode.jobs.running import RunningJob

if TYPE_CHECKING:
    from pytest_mnode.jobs.slurm.request import Request
    from pytest_mnode.launchers.nodes import Nodes

NO_SHARED_DIR = "its nodes see no directory in common (--mnode-shared-dir)"


def started(cluster: Nodes, job: Job) -> LaunchedJob:
    """The job, submitted where a scheduler gave the nodes and would start it; else run on them.

    Raises UsageError for nodes that this test does not have, ClusterError.
    """
    allocation = cluster.allocation
    if allocation is None:
        return RunningJob.start(cluster, job)
    nodes = job.placed_on(cluster.nodes)
    why = NO_SHARED_DIR
    if cluster.share_files:
        from pytest_mnode.jobs.slurm import SubmittedJob
        from pytest_mnode.jobs.slurm.names import names_of
        from pytest_mnode.jobs.slurm.request import request_of, site_of
        from pytest_mnode.launchers.slurm import Slurm

        slurm = Slurm()
        wanted = dict.fromkeys((*nodes, *job.spares))
        names = names_of(slurm.nodes(), wanted, cluster.slurm_names)
        site = site_of(slurm.run("scontrol", "--oneliner", "show", "job", str(allocation)))
        gpus = cluster.accelerators_per_node
        here = os.getcwd()  # noqa: PTH109  as text
        request = request_of(job, nodes, names, site, gpus=gpus, directory=here)
        why = why_not_submitted(request, allocation)
        if not why:
            return SubmittedJob.start(cluster, job, request, names, slurm)
    return RunningJob.start(cluster, job, f"as steps of allocation {allocation}: {why}")


def why_not_submitted(request: Request, allocation: int) -> str:
    """Why Slurm would not start this beside an allocation of ours; "" where it would, now.

    Raises SlurmError where Slurm does not answer.
    """
    from pytest_mnode.jobs.slurm import queue
    from pytest_mnode.jobs.slurm.request import submitting
    from pytest_mnode.jobs.slurm.room import no_room

    found = queue.ask(submitting(os.environ), request.options())
    return no_room(found, datetime.now(), str(allocation))
