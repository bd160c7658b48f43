"""Copies of one buffer to another: in the host's memory, in the device's, and between the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.checks.world_check import ComparedRates
from pytest_mnode.evidence.check import check
from pytest_mnode.spec.devices import CopyPromise, HostMemoryPromise, InsideNodePromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.evidence.row import Row
    from pytest_mnode.measuring.rank_rates import Comparison
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec.inventory import Inventory


@check("devices.{part}")
class EveryRankCopiesAsFastAsTheOthers(ComparedRates):
    """Does every rank copy as fast as the others?"""

    promise: CopyPromise
    """Copies in the host's memory (memory_copy), in the device's own (device_copy), from pinned
    memory of the host to the device (host_to_device), and back (device_to_host)."""
    each = ("memory_copy", "device_copy", "host_to_device", "device_to_host")

    def measure(self, world: World, device: torch.device) -> Iterator[Comparison]:
        from pytest_mnode.measuring.devices import compare_copy

        yield compare_copy(self.part, self.promise, world, device, comparisons=self.family)


@check("devices.host_memory")
class MemoryOfEveryNumaNodeIsAsFastAsTheOthers(ComparedRates):
    """Is the host memory of every NUMA node as fast as the others', with all its cores at work?"""

    promise: HostMemoryPromise
    """Copies in the host's memory by all cores of each NUMA node, compared over nodes."""

    def measure(self, world: World, device: torch.device) -> Iterator[Comparison]:
        from pytest_mnode.measuring.host_memory import compare_host_memory

        yield compare_host_memory(self.promise, world, device, comparisons=self.family)


@check("devices.inside_node")
class EveryNodeIsAsFastInsideAsTheOthers(ComparedRates):
    """Are exchanges inside every node as fast as the others', and as its links allow?"""

    promise: InsideNodePromise
    """All-reduce over the ranks of each node alone, and exchanges of its pairs: NVLink."""

    @property
    def comparisons(self) -> int:
        return 2

    def measure(self, world: World, device: torch.device) -> Iterator[Comparison]:
        from pytest_mnode.measuring.inside_node import compare_inside_nodes

        yield from compare_inside_nodes(
            self.promise, self.spec, world, device, comparisons=self.family
        )

    def from_rows(self, rows: Sequence[Row]) -> Iterator[Comparison]:
        """Without a floor: the model of a ring asks for more than rows tell."""
        if self.promise.model_at_least_fraction is None:
            yield from super().from_rows(rows)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """A bound by links that nothing names."""
        accelerators = cluster.accelerators
        bounded = self.promise.model_at_least_fraction is not None
        if bounded and accelerators.model is None and accelerators.domain is None:
            yield (
                ".model_at_least_fraction: neither accelerators.model nor accelerators.domain says "
                "what the links carry: it is not judged"
            )
