"""Which submission path a cluster has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.direct import Direct
from pytest_mnode.criteria.launching.paths import SubmissionPath
from pytest_mnode.jobs.launch import NO_SHARED_DIR

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


def path_of(cluster: Nodes) -> SubmissionPath:
    """Slurm's or Kubernetes' where that gave the nodes of the run."""
    if cluster.pods is not None:
        from pytest_mnode.criteria.launching.pods import Pods

        return Pods(cluster, cluster.pods)
    allocation = cluster.allocation
    if allocation is None:
        return Direct(cluster)
    if not cluster.share_files:
        return Direct(cluster, note=f"not submitted: {NO_SHARED_DIR}")
    from pytest_mnode.criteria.launching.sbatch import Sbatch
    from pytest_mnode.launchers.slurm import Slurm

    return Sbatch(cluster, allocation, Slurm())
