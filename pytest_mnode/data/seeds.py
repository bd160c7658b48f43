"""Judging random numbers: other ones on each rank, the same in a second run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_mnode.data.facts import At, Draws
from pytest_mnode.wrong import Wrong, alike, listed


def kind_of(source: str) -> str:
    """The generator that a source draws from: "numpy" of "worker 1: numpy"."""
    return source.rpartition(": ")[2]


def judge_distinct(label: str, draws: Sequence[Draws]) -> Wrong:
    """Does every rank, and every worker of its loader, draw numbers of its own?

    Two that draw the same from one kind of generator are wrong.
    """
    drawn: dict[tuple[str, str], list[tuple[At, str]]] = {}
    for one in draws:
        for source, digest in one.digests.items():
            worker = source.rpartition(": ")[0]
            drawn.setdefault((kind_of(source), digest), []).append((one.at, worker))
    equal: dict[tuple[tuple[At, str], ...], list[str]] = {}
    for (kind, _), who in drawn.items():
        if len(who) > 1:
            equal.setdefault(tuple(who), []).append(kind)
    # One rank alone has nobody whose numbers it could have.
    alone = len(draws) < 2
    return Wrong(
        f"{label}: generators that draw what another draws",
        None if alone or not drawn else sum(len(who) * len(kinds) for who, kinds in equal.items()),
        "each rank and each worker has a seed of its own",
        listed(_shared(who, kinds, len(draws)) for who, kinds in equal.items()) or None,
        "one rank has nobody to share with" if alone else _sources(draws),
    )


def _shared(who: Sequence[tuple[At, str]], kinds: Sequence[str], ranks: int) -> str:
    """Who draws the same, such as "all 8 ranks, worker 0: the same from torch, dropout"."""
    workers = {worker for _, worker in who}
    what = f"the same from {', '.join(kinds)}"
    if len(workers) == 1:
        worker = f"{min(workers)}, " if any(workers) else ""
        [text] = alike([(at, f"{worker}{what}") for at, _ in who], ranks)
        return text
    places = [f"{at}, {worker}" if worker else str(at) for at, worker in who]
    return f"{listed(places)}: {what}"


def judge_reproduced(label: str, first: Sequence[Draws], again: Sequence[Draws]) -> Wrong:
    """Does every rank draw the same numbers in a second run with the same seed?"""
    other = {one.at.rank: one.digests for one in again}
    texts = []
    count = 0
    for one in first:
        then = other.get(one.at.rank, {})
        kinds = [source for source, digest in one.digests.items() if then.get(source) != digest]
        count += len(kinds)
        if kinds:
            texts.append((one.at, f"others from {', '.join(_shown(kinds))}"))
    return Wrong(
        f"{label}: generators that draw otherwise in a second run",
        count if first and again else None,
        "numbers follow from the seed and the rank",
        listed(alike(texts, len(first))) or None,
        _sources(first),
    )


def judge_depends(label: str, one: Sequence[Draws], other: Sequence[Draws]) -> Wrong:
    """Does another seed give every rank other numbers?"""
    by_rank = {draws.at.rank: draws.digests for draws in other}
    texts = []
    count = 0
    for draws in one:
        then = by_rank.get(draws.at.rank, {})
        kinds = [source for source, digest in draws.digests.items() if then.get(source) == digest]
        count += len(kinds)
        if kinds:
            texts.append((draws.at, f"the same from {', '.join(_shown(kinds))}"))
    return Wrong(
        f"{label}: generators that the seed does not reach",
        count if one and other else None,
        "another seed gives other numbers",
        listed(alike(texts, len(one))) or None,
    )


def _shown(kinds: Sequence[str], most: int = 4) -> list[str]:
    return [*kinds[:most], *([f"{len(kinds) - most} more"] if len(kinds) > most else [])]


def _sources(draws: Iterable[Draws]) -> str:
    return ", ".join(dict.fromkeys(source for one in draws for source in one.digests))
