"""The environment of programs on nodes: this process's, without variables specific to it."""

from __future__ import annotations

import os
from collections.abc import Mapping

OF_A_TASK = (
    *("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Prefixes of variables that describe a process's own task of a job. A job script is task 0 on the
first node; ranks on other nodes must not inherit these."""
OF_THE_MACHINE = ("HOSTNAME",)
"""Slurm exports the first node's HOSTNAME to a batch script."""
OF_THE_JOB = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID")


def node_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for programs on nodes, from `environ`; from os.environ if None."""
    whole = os.environ if environ is None else environ
    return {
        name: value
        for name, value in whole.items()
        if name in OF_THE_JOB or not (name in OF_THE_MACHINE or name.startswith(OF_A_TASK))
    }
