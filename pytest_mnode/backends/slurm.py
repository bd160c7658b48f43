"""Nodes of Slurm: of the allocation that the run is inside of, or of one that it requests."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.backends.backend import (
    Backend,
    FreeNode,
    FreeNodes,
    Here,
    NodeRequest,
)
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import NO_SHARED_DIR, Nodes
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.allocation import Granted
from pytest_mnode.launchers.slurm.commands import NodesHidden
from pytest_mnode.launchers.slurm.nodes import gpus_to_request
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.criteria.launching.paths import SubmissionPath
    from pytest_mnode.gang.engine import Engine
    from pytest_mnode.jobs.job import Job
    from pytest_mnode.jobs.launched import LaunchedJob


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

    def requests_nodes(self, here: Here) -> bool:
        return "SLURM_JOB_ID" not in here.environ

    def unused(self, settings: Settings, spec: Spec, used: Backend, by: str) -> str | None:
        """--mnode-slurm-args where no allocation is requested, except by gangs."""
        nowhere = settings.launcher == "auto" and used.name in ("rack", "local")
        if not settings.slurm_args or (spec.criteria.gang is not None and not nowhere):
            return None
        option = f"--mnode-slurm-args={' '.join(settings.slurm_args)}"
        if nowhere:
            return (
                f"{option}: this run is outside of an allocation; add --mnode-launcher=slurm to "
                "request one"
            )
        return f"{option}: Slurm is not used with {by}; leave one of them out"

    def free(self, settings: Settings, spec: Spec) -> FreeNodes:  # noqa: ARG002
        """The idle nodes that an allocation with the user's salloc arguments could get."""
        from pytest_mnode.gang.slurm_options import SlurmRoom, for_sbatch, is_free

        if (missing := Slurm.unavailable()) is not None:
            raise UsageError(f"--mnode-launcher=slurm: {missing}")
        usable = SlurmRoom(Slurm(), for_sbatch(settings.slurm_args)).usable()
        # Slurm is about to give a PLANNED node to a pending job.
        free = [node for node in usable if is_free(node) and "PLANNED" not in node.flags]
        used = Counter(node.text for node in usable if node not in free)
        others = "".join(f", {number} {state}" for state, number in used.most_common())
        nodes = [FreeNode(node.name, node.hostname or node.name) for node in free]
        return FreeNodes(nodes, f" of {len(usable)}{others}")

    def scheduler(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """From sbatch(1), output environment variables."""
        names = {
            "cluster": "SLURM_CLUSTER_NAME",
            "partition": "SLURM_JOB_PARTITION",
            "account": "SLURM_JOB_ACCOUNT",
        }
        found = {key: environ[name] for key, name in names.items() if environ.get(name)}
        return {"kind": self.name, **found}

    def launcher(self, request: NodeRequest) -> Launcher:
        from pytest_mnode.launchers.slurm import launcher

        settings = request.settings
        return launcher.Slurm(
            request.nodes,
            request.spec,
            request.remote,
            settings.slurm_args,
            settings.on,
            leftovers=self._leftovers("pytest-mnode"),
            srun_arguments=settings.srun_args,
        )

    def leftovers(self, name: str, *where: str) -> Leftovers:  # noqa: ARG002
        """Jobs of this name, allocations included."""
        return Leftovers(
            name,
            f"jobs named {name}",
            ("squeue", "--noheader", "--all", "--format=%A %T", f"--name={name}"),
            ("scancel", "--full", f"--name={name}"),
            f"scancel --name={name}",
        )

    def _leftovers(self, what: str = "mnode") -> Leftovers:
        """Of a name that nothing else has."""
        return self.leftovers(f"{what}-{uuid.uuid4().hex[:12]}")

    def submit(self, cluster: Nodes, job: Job) -> LaunchedJob:
        from pytest_mnode.jobs.running import RunningJob
        from pytest_mnode.jobs.slurm import sbatch
        from pytest_mnode.jobs.slurm.nodes import names_of
        from pytest_mnode.jobs.slurm.queued import Queued
        from pytest_mnode.jobs.slurm.submitted import SubmittedJob

        allocation, why = cluster.allocation, NO_SHARED_DIR
        assert allocation is not None
        if cluster.share_files:
            slurm, nodes = Slurm(), job.placed_on(cluster.nodes)
            try:
                there = slurm.nodes()
            except NodesHidden as error:  # a job of their names cannot be requested
                return RunningJob.start(
                    cluster, job, f"as steps of allocation {allocation}: {error}"
                )
            wanted = dict.fromkeys((*nodes, *job.spares))
            names = names_of(there, wanted, cluster.job_facts.names)
            held = slurm.run("scontrol", "--oneliner", "show", "job", str(allocation))
            gpus = gpus_to_request(cluster.accelerators_per_node, there)
            here = os.getcwd()  # noqa: PTH109  as text
            request = sbatch.request_of(
                job, nodes, names, sbatch.site_of(held), gpus=gpus, directory=here
            )
            why = sbatch.why_not_submitted(request, allocation)
            if not why:
                queued = Queued(slurm, names, self._leftovers())
                return SubmittedJob.start(cluster, job, request, names, queued)
        return RunningJob.start(cluster, job, f"as steps of allocation {allocation}: {why}")

    def path(self, cluster: Nodes) -> SubmissionPath:
        from pytest_mnode.criteria.launching.paths import NotSubmittedError
        from pytest_mnode.criteria.launching.slurm.submission import Sbatch

        if not cluster.share_files:
            raise NotSubmittedError(NO_SHARED_DIR, "give one with --mnode-shared-dir")
        assert cluster.allocation is not None
        return Sbatch(cluster, cluster.allocation, Slurm(), self._leftovers)

    def gangs(self, spec: Spec, settings: Settings, root: Path) -> Engine:
        from pytest_mnode.gang.slurm import SlurmEngine, default_shared

        assert spec.scheduler is not None
        return SlurmEngine(
            settings.shared_dir or default_shared(root),
            self._leftovers("mnode-gang"),
            python=settings.python,
            args=settings.slurm_args,
            names={str(name): value for name, value in spec.scheduler.names.items()},
        )
