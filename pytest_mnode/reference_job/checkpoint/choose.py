"""Which checkpoint ranks that see different things use, who checks what, and what may go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.outcome.describe import places
from pytest_mnode.reference_job.checkpoint.names import REPLACED, order, read_name, step_name

STALE = "a file system that is stale, or not the one that all nodes share"


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint as one rank sees it: `fingerprint` where it is complete, else `reason`."""

    fingerprint: str | None
    reason: str | None


View = Mapping[str, Seen]
"""What a rank sees in the store, by name of directory, newest first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of directories, newest first.

    candidates: whole as all ranks see it. refused: why not. disputed: those of `refused` that some
    rank sees whole.
    """

    candidates: tuple[str, ...]
    refused: Mapping[str, str]
    disputed: frozenset[str]

    @property
    def settled(self) -> bool:
        """To look again cannot bring a newer one."""
        newest = max(map(order, self.candidates), default=None)
        return all(newest is not None and order(n) < newest for n in self.disputed)


def choose(views: Sequence[View], nodes: Sequence[str]) -> Choice:
    """What ranks agree on. views and nodes: by rank. The same on all ranks for the same input."""
    names = {name for view in views for name in view}
    candidates: list[str] = []
    refused: dict[str, str] = {}
    disputed: set[str] = set()
    for name in sorted(names, key=order, reverse=True):
        seen = [view.get(name) for view in views]
        reason = _refusal(seen, nodes)
        if reason is None:
            candidates.append(name)
        else:
            refused[name] = reason
            if any(one is not None and one.fingerprint for one in seen):
                disputed.add(name)
    return Choice(tuple(candidates), refused, frozenset(disputed))


def _refusal(seen: Sequence[Seen | None], nodes: Sequence[str]) -> str | None:
    """Why ranks do not agree that this checkpoint is whole; None where they do."""
    bad = {rank: one.reason for rank, one in enumerate(seen) if one and one.reason is not None}
    good = {rank: one.fingerprint for rank, one in enumerate(seen) if one and not one.reason}
    absent = [rank for rank, one in enumerate(seen) if one is None]
    if bad:
        reasons = set(bad.values())
        if len(reasons) == 1 and not good:
            return reasons.pop()
        return by_rank(bad, nodes)
    if absent:
        do = "does" if len(absent) == 1 else "do"
        return f"{where(absent, nodes)} {do} not see it: {STALE}"
    first = good[0]
    others = [rank for rank, print_ in good.items() if print_ != first]
    if others:
        sees = "sees" if len(others) == 1 else "see"
        return f"{where(others, nodes)} {sees} another one than rank 0 on {nodes[0]}: {STALE}"
    return None


def by_rank(reasons: Mapping[int, str | None], nodes: Sequence[str]) -> str:
    """ "rank 2 of 4 on node2: WHY", equal reasons together, joined by "; "."""
    together: dict[str, list[int]] = {}
    for rank, reason in sorted(reasons.items()):
        if reason is not None:
            together.setdefault(reason, []).append(rank)
    return "; ".join(f"{where(ranks, nodes)}: {reason}" for reason, ranks in together.items())


def where(ranks: Collection[int], nodes: Sequence[str]) -> str:
    """ "ranks 2-3 of 4 on node1"."""
    return places(ranks, dict(enumerate(nodes)), len(nodes))


def shares(sizes: Mapping[str, int], size: int) -> list[list[str]]:
    """Files by rank, so that all `size` ranks read about as many bytes; each file once."""
    found: list[list[str]] = [[] for _ in range(size)]
    load = [(0, rank) for rank in range(size)]
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        least, rank = min(load)
        found[rank].append(name)
        load[rank] = (least + sizes[name] + 1, rank)
    return found


def outdated(
    complete: Collection[str], damaged: Collection[str], saved: str, keep: int
) -> list[str]:
    """Which checkpoints go once `saved` is complete, oldest first; `saved` never does.

    Kept are the newest `keep` that are complete and not known to be damaged, `saved` among them,
    and all of later steps, which are another job's to judge. What is damaged goes when it is older
    than as many whole ones, and what was replaced when that by which it was is complete.
    """
    whole = {name for name in complete if name not in damaged} | {saved}
    names = sorted({*whole, *damaged}, key=order)
    replaced = [name for name in names if _replaced_by(name) in whole]
    older = [name for name in names if order(name) < order(saved) and name not in replaced]
    good = [name for name in older if name in whole]
    kept = [*good[max(0, len(good) - (keep - 1)) :], saved]
    if len(kept) < keep:
        return replaced
    return replaced + [name for name in older if name not in kept and order(name) < order(kept[0])]


def _replaced_by(text: str) -> str | None:
    """The name of the checkpoint that took the place of this one."""
    name = read_name(text)
    return step_name(name.step) if name is not None and name.kind == REPLACED else None
