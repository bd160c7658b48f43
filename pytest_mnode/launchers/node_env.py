"""What of this process's environment is not for what it runs on nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping

OF_A_TASK = (
    *("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Beginnings of variables that say which task of which job a process is. A job script is task 0 on
the first node; ranks on all nodes that inherited as much would contradict themselves."""
OF_THE_MACHINE = ("HOSTNAME",)
"""Slurm exports it to a batch script, where it is the first node's."""
OF_THE_JOB = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID")


def node_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, or the one given, without what is true of it alone."""
    whole = os.environ if environ is None else environ
    return {
        name: value
        for name, value in whole.items()
        if name in OF_THE_JOB or not (name in OF_THE_MACHINE or name.startswith(OF_A_TASK))
    }
