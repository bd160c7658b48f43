"""How the ranks that share a checkpoint agree; one rank alone needs no process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from pytest_mnode.errors import UsageError
from pytest_mnode.outcome.describe import places

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

T = TypeVar("T")


def one_line(error: BaseException) -> str:
    """The message of an error, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class StageError(Exception):
    """A stage failed on some ranks; `reasons` by rank, the same on all ranks."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class Ranks:
    """The ranks of a process group. rank and size are the group's; nodes by rank.

    All ranks call every method alike. The process group limits how long they wait.
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
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def run(
        self, stage: Callable[[], T], error_text: Callable[[Exception], str] = one_line
    ) -> list[T]:
        """The stage's results by rank. Raises StageError on all ranks where it fails on any."""
        value: T | None = None
        reason: str | None = None
        try:
            value = stage()
        except Exception as error:  # other ranks wait: they have to hear of any error
            reason = error_text(error)
        answers = self.gather((value, reason))
        reasons = {rank: why for rank, (_, why) in enumerate(answers) if why is not None}
        if reasons:
            raise StageError(reasons)
        return [answer for answer, _ in answers]  # type: ignore[misc]

    def run_on_first(
        self, stage: Callable[[], T], error_text: Callable[[Exception], str] = one_line
    ) -> T:
        """The result of rank 0, which alone runs the stage, on all ranks."""
        results = self.run(lambda: stage() if self.rank == 0 else None, error_text)
        return results[0]  # type: ignore[return-value]

    def by_rank(self, reasons: Mapping[int, str]) -> str:
        """ "ranks 2-3 of 4 on node1: WHY", equal reasons together, joined by "; "."""
        together: dict[str, list[int]] = {}
        for rank, reason in sorted(reasons.items()):
            together.setdefault(reason, []).append(rank)
        nodes = dict(enumerate(self.nodes))
        return "; ".join(
            f"{places(ranks, nodes, self.size)}: {why}" for why, ranks in together.items()
        )
