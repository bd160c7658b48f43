"""Decides whether this run starts a job, or the scheduler that gave it the nodes."""

from __future__ import annotations

import os

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.launched import LaunchedJob
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.launchers.kubernetes.run_in_pods import RunInPods
from pytest_mnode.launchers.nodes import Nodes

NO_SHARED_DIR = "its nodes see no directory in common (--mnode-shared-dir)"


def launch(cluster: Nodes, job: Job) -> LaunchedJob:
    """Submit the job to the scheduler that gave the nodes if it would start now; else run it.

    Raises UsageError for nodes that this test does not have, ClusterError.
    """
    if cluster.pods is not None:
        return _in_pods(cluster, job, cluster.pods)
    allocation = cluster.allocation
    if allocation is None:
        return RunningJob.start(cluster, job, why_not_submitted(cluster))
    nodes = job.placed_on(cluster.nodes)
    why = NO_SHARED_DIR
    if cluster.share_files:
        from pytest_mnode.jobs.slurm import sbatch
        from pytest_mnode.jobs.slurm.nodes import names_of
        from pytest_mnode.jobs.slurm.submitted import SubmittedJob
        from pytest_mnode.launchers.slurm import Slurm
        from pytest_mnode.launchers.slurm.commands import NodesHidden
        from pytest_mnode.launchers.slurm.nodes import gpus_to_request

        slurm = Slurm()
        try:
            there = slurm.nodes()
        except NodesHidden as error:  # a job of their names cannot be requested
            return RunningJob.start(cluster, job, f"as steps of allocation {allocation}: {error}")
        wanted = dict.fromkeys((*nodes, *job.spares))
        names = names_of(there, wanted, cluster.slurm_names)
        site = sbatch.site_of(slurm.run("scontrol", "--oneliner", "show", "job", str(allocation)))
        gpus = gpus_to_request(cluster.accelerators_per_node, there)
        here = os.getcwd()  # noqa: PTH109  as text
        request = sbatch.request_of(job, nodes, names, site, gpus=gpus, directory=here)
        why = sbatch.why_not_submitted(request, allocation)
        if not why:
            return SubmittedJob.start(cluster, job, request, names, slurm)
    return RunningJob.start(cluster, job, f"as steps of allocation {allocation}: {why}")


def why_not_submitted(cluster: Nodes) -> str:
    """Why the run submits no jobs to the scheduler that gave the nodes; "" if it does, or if there
    is none."""
    name = cluster.takes_no_jobs
    return name and f"pytest-mnode submits no jobs to {name}, which gave the nodes"


def _in_pods(cluster: Nodes, job: Job, pods: RunInPods) -> LaunchedJob:
    """Run the job in its own pods if they would start beside the run's pods, else in those."""
    why = NO_SHARED_DIR
    if cluster.share_files:
        from pytest_mnode.jobs.kubernetes.pod_job import PodJob
        from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced

        try:
            return PodJob.launch(cluster, job, pods)
        except NotPlaced as error:
            why = str(error)
    return RunningJob.start(cluster, job, f"in the run's own pods: {why}")
