"""Agreement of the ranks that share a checkpoint; one rank alone needs no process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from pytest_mnode.errors import UsageError
from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.outcome.describe import places

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

T = TypeVar("T")


def one_line(error: BaseException) -> str:
    """The message of an error, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class StageError(Exception):
    """A stage failed on some ranks; the text names them and is the same on all ranks."""


class Ranks:
    """The ranks of a process group. rank, size: of the group; nodes: by rank.

    All ranks make the same calls. The process group limits how long they wait.
    """

    def __init__(self, group: Any, world: World) -> None:
        alone = not (dist.is_available() and dist.is_initialized())
        if alone and world.size > 1:
            raise UsageError(
                f"a checkpoint of {world.size} ranks needs a process group: init_process_group"
            )
        self.group = group
        self.rank = 0 if alone else dist.get_rank(group)
        self.size = 1 if alone else dist.get_world_size(group)
        if self.rank < 0:
            raise UsageError(f"rank {world.rank} is not in the group that saves or loads")
        self.nodes: list[str] = self.gather(world.node)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on every rank."""
        return [value] if self.size == 1 else [*gathered(value, self.group)]

    def run(
        self, stage: Callable[[], T], error_text: Callable[[Exception], str] = one_line
    ) -> list[T]:
        """Run the stage; its results by rank. Raises StageError on all ranks if it fails on any."""
        value: T | None = None
        reason = ""
        try:
            value = stage()
        except Exception as error:  # other ranks wait: they have to hear of any error
            reason = error_text(error)
        answers = self.gather((value, reason))
        self.check([why for _, why in answers])
        return [answer for answer, _ in answers]  # type: ignore[misc]

    def run_on_first(
        self, stage: Callable[[], T], error_text: Callable[[Exception], str] = one_line
    ) -> T:
        """Run the stage on rank 0 only; its result on all ranks."""
        results = self.run(lambda: stage() if self.rank == 0 else None, error_text)
        return results[0]  # type: ignore[return-value]

    def check(self, reasons: Sequence[str]) -> None:
        """Raise StageError if a rank failed. reasons: by rank; "" if the rank did not fail."""
        if any(reasons):
            raise StageError(self.by_rank(reasons))

    def by_rank(self, reasons: Sequence[str]) -> str:
        """ "ranks 2-3 of 4 on node1: WHY", equal reasons together, joined by "; "."""
        nodes = dict(enumerate(self.nodes))
        return "; ".join(
            f"{places([r for r, one in enumerate(reasons) if one == why], nodes, self.size)}: {why}"
            for why in dict.fromkeys(filter(None, reasons))
        )
