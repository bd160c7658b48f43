"""Nodes that `mpirun` reaches: those of a hostfile, of the job it is in, or those it finds itself.

Open MPI (and PRRTE) and Hydra (MPICH, Intel MPI) are told apart by --version.
"""

from __future__ import annotations

import os

from pytest_mnode.backends.backend import Here, NodeRequest
from pytest_mnode.backends.dial_in import DialInBackend, Start, printed
from pytest_mnode.backends.registry import listed_nodes
from pytest_mnode.launchers.node import Launcher

_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


# Open MPI's ras and plm components and Hydra's launcher; the nodes take them out again.
_OF_SLURM = (
    *("SLURM_JOBID", "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NNODES"),
    *("SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"),
)


class MpiBackend(DialInBackend):
    name = "mpi"
    reads_hostfile = True
    finds_nodes_by = _OF_SLURM
    # Containers have no other user; who runs pytest as root has decided so.
    env = dict.fromkeys((*_AS_ROOT, *(f"PRTE_{name[5:]}" for name in _AS_ROOT)), "1")

    def names(self, here: Here) -> tuple[str, ...] | None:
        return listed_nodes(here)

    def launcher(self, request: NodeRequest) -> Launcher:
        """Without names, mpirun's own list holds."""
        if listed_nodes(Here(request.settings, os.environ)) is None:
            return self.dialing(request)
        return super().launcher(request)

    def commands(self, start: Start) -> list[list[str]]:
        """One process for each node, bound to no core: all ranks of a node come from it."""
        count = str(start.nodes)
        if _is_hydra():
            on = ["-hosts", ",".join(start.hosts)] if start.hosts else []
            return [["mpirun", *on, "-ppn", "1", "-n", count, *start.argv]]
        on = ["--host", ",".join(start.hosts)] if start.hosts else []
        place = ["--map-by", "ppr:1:node", "--bind-to", "none"]
        return [["mpirun", *on, "-np", count, *place, *start.argv]]


def _is_hydra() -> bool:
    version = printed("mpirun", "--version", package="an MPI, and add it to PATH")
    return any(word in version for word in ("HYDRA", "Intel(R) MPI"))
