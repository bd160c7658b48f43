"""What the ranks of a group tell each other; one rank alone needs no process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from pytest_mnode.errors import UsageError

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

T = TypeVar("T")


class StageError(Exception):
    """A step of all ranks failed on some; `reasons` by rank, the same on all ranks."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Peers:
    """The ranks that share a checkpoint. rank and size are the group's; nodes by rank.

    Every method is called by all of them. Waits have the limit of the process group.
    """

    def __init__(self, group: Any, world: World) -> None:
        self.alone = not (dist.is_available() and dist.is_initialized())
        self.group = group
        if self.alone and world.size > 1:
            raise UsageError(
                f"a checkpoint of {world.size} ranks needs a process group: init_process_group"
            )
        self.rank = 0 if self.alone else dist.get_rank(group)
        self.size = 1 if self.alone else dist.get_world_size(group)
        if self.rank < 0:
            raise UsageError(f"rank {world.rank} is not in the group that saves or loads")
        self.nodes: list[str] = self.gather(world.node)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def stage(self, work: Callable[[], T], told: Callable[[Exception], str]) -> list[T]:
        """Do a step; its results by rank. Raises StageError on all where it fails on any."""
        value: T | None = None
        reason: str | None = None
        try:
            value = work()
        except Exception as error:  # the others wait: they are told of any
            reason = told(error)
        answers = self.gather((value, reason))
        reasons = {rank: why for rank, (_, why) in enumerate(answers) if why is not None}
        if reasons:
            raise StageError(reasons)
        return [answer for answer, _ in answers]  # type: ignore[misc]
