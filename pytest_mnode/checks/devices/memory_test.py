"""All of each accelerator's memory, written with patterns and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.devices import MOST_NAMED
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.measurement import Measurement, all_of, listed
from pytest_mnode.spec.devices import MemoryTestPromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measuring.memory_test import RankMemory
    from pytest_mnode.rank.world import World


@check("devices.memory_test")
class AllMemoryReadsAsItWasWritten(WorldCheck):
    """Does every word of each accelerator's memory read as it was written?"""

    promise: MemoryTestPromise
    """All of the device's memory, written with patterns and read."""
    fault = "stuck_bit:{node}"

    @property
    def limit_s(self) -> float:
        return self.promise.within_s

    def measure(self, world: World, device: torch.device) -> Iterator[tuple[RankMemory, ...]]:
        from pytest_mnode.measuring.memory_test import check_memory

        yield check_memory(self.promise, world, device)

    def rule(self, found: tuple[RankMemory, ...]) -> list[Measurement]:
        return judge_memory(found, self.promise)


def judge_memory(ranks: Sequence[RankMemory], promise: MemoryTestPromise) -> list[Measurement]:
    """Whether all memory read as it was written, and where not."""
    bad, least = [], min(rank.tested_bytes for rank in ranks)
    for rank in ranks:
        if rank.wrong:
            where = f", {rank.device}" if rank.device else ""
            tested = f"({rank.wrong} wrong in {rank.tested_bytes / 2**30:.4g} GiB)"
            words = f"{rank.name}{where}: {listed(map(str, rank.first))} {tested}"
            devices = [Culprit.device("", node, rank.device) for node in rank.name.nodes]
            bad.append(Culprit.merged(words, [rank.name, *(devices if rank.device else [])]))
    every = all_of(bad, MOST_NAMED)
    unsure = [f"{rank.name}: {rank.why}" for rank in ranks if rank.why]
    how = f"{promise.passes} × {', '.join(promise.patterns)}"
    seconds = max(rank.seconds for rank in ranks)
    return [
        Measurement.none_allowed(
            "memory, words read wrong",
            [every] if every else [],
            "each word reads as it was written",
            count=sum(rank.wrong for rank in ranks),
            unsure=listed(unsure),
            unread=(rank.name for rank in ranks if rank.why),
        ),
        Measurement(
            "memory tested, least of ranks",
            least / 2**30,
            "GiB",
            note=f"{how}, {seconds:.3g} s",
        ),
    ]
