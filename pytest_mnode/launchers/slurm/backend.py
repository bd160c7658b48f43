"""Nodes of Slurm: of the allocation that the run is inside of, or of one that it requests."""

from __future__ import annotations

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.backends import Backend, Here, NodeRequest
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.slurm.allocation import Granted


class SlurmBackend(Backend):
    name = "slurm"

    def meant(self, here: Here) -> str | None:
        job = here.environ.get("SLURM_JOB_ID")
        return f"inside of job {job}" if job else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        return Granted.read(here.environ).names if here.environ.get("SLURM_JOB_ID") else None

    def count(self, here: Here) -> int | None:
        """Slurm's own number: a heterogeneous job has one too. Raises UsageError if unknown."""
        count = here.environ.get("SLURM_JOB_NUM_NODES", "")
        if count.isascii() and count.isdigit() and int(count):
            return int(count)
        raise UsageError("the number of nodes is unknown; pass --mnode-nodes=N")

    def launcher(self, request: NodeRequest) -> Launcher:
        from pytest_mnode.launchers.slurm.launcher import Slurm

        settings = request.settings
        return Slurm(
            request.nodes,
            request.spec,
            request.remote,
            settings.slurm_args,
            settings.on,
            srun_arguments=settings.srun_args,
        )
