"""Nodes that a Slurm job may get, and whether they are free now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.slurm_options import Requirements, Target
from pytest_mnode.launchers.slurm import NodeState, Slurm
from pytest_mnode.launchers.slurm.records import reserved_nodes


def is_free(node: NodeState) -> bool:
    """Whether no job uses the node, or keeps it from others: a job with exclusive topology blocks
    its neighbours."""
    used = node.flags & {"COMPLETING", "BLOCKED"} or node.cpus_allocated
    return node.state == "IDLE" and not used


class SlurmRoom:
    """The nodes of a job's partitions or reservation that meet its options.

    options: of sbatch or salloc. Raises UsageError for options that are not supported.
    """

    def __init__(self, slurm: Slurm, options: Sequence[str]) -> None:
        self.target, self._requirements = Target.read(options), Requirements.read(options)
        self._slurm = slurm

    def usable(self) -> tuple[NodeState, ...]:
        """Nodes that a job may get, now or when others end. Raises ClusterError, UsageError."""
        target = replace(self.target, partitions=self.target.partitions or (self._default(),))
        there = self._slurm.nodes()
        out = set(target.out([node.name for node in there]))
        found = filter(self._requirements.met_by, target.nodes(there, self._reserved()))
        return tuple(node for node in found if node.name not in out)

    def _reserved(self) -> tuple[str, ...]:
        """Nodes of the jobs' reservation; () without one."""
        if (name := self.target.reservation) is None:
            return ()
        return reserved_nodes(
            self._slurm.run("scontrol", "--oneliner", "show", "reservation"), name
        )

    def _default(self) -> str:
        """Name of the default partition. Raises ClusterError without one."""
        named = self._slurm.run("sinfo", "--noheader", "--format=%P").split()
        default = [name.rstrip("*") for name in named if name.endswith("*")]
        if not default:
            raise ClusterError(
                f"Slurm has no default partition; name one of {', '.join(named)} by "
                "--mnode-slurm-args=--partition=NAME or, for gangs, in the spec, "
                "scheduler: {names: {partition: …}}"
            )
        return default[0]
