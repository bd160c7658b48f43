"""What a scheduler does with a job that ended or lost a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.jobs.described import Job


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is now.

    nodes: it runs on, in order; first_size: how many they were at first. ended: exit status of
    torchrun on those where it ended. there: all nodes that there are now, spares and all.
    lost: those of its nodes that were gone since it was started, there again or not.
    requeue: which start this is, from 0. preempted: it was told to end.
    """

    nodes: tuple[str, ...]
    first_size: int
    ended: Mapping[str, int]
    there: Sequence[str]
    lost: tuple[str, ...]
    requeue: int
    preempted: bool = False

    @property
    def is_over(self) -> bool:
        """Whether torchrun ended everywhere."""
        return len(self.ended) == len(self.nodes)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done: nothing yet, start again on `nodes`, or leave it as it is (`final`).

    nodes: () while it waits for enough of them. why: for the event.
    """

    final: bool = False
    nodes: tuple[str, ...] = ()
    why: str = ""


WAIT = Decision()


def decide(job: Job, seen: Seen) -> Decision:
    """What to do with a job that looks like this."""
    lost = seen.lost
    if not lost and not seen.is_over:
        return WAIT
    if not lost and (not seen.preempted or not any(seen.ended.values())):
        return Decision(final=True)
    why = f"{', '.join(lost)} is gone" if lost else "preempted"
    if seen.requeue >= job.requeues:
        # The others are still at it; they find out by themselves, or their caller's limit does.
        return Decision(final=True, why=why) if seen.is_over else WAIT
    return Decision(nodes=_again_on(job, seen), why=why)


def _again_on(job: Job, seen: Seen) -> tuple[str, ...]:
    """Nodes for the next start: those it has, spares in the places of lost ones, fewer if it may.

    Empty where there are too few.
    """
    free = [name for name in job.spares if name in seen.there and name not in seen.nodes]
    kept: list[str] = []
    for name in seen.nodes:
        if name in seen.there:
            kept.append(name)
        elif free:
            kept.append(free.pop(0))
    enough = seen.first_size if job.fewest_nodes is None else job.fewest_nodes
    return tuple(kept) if len(kept) >= enough else ()
