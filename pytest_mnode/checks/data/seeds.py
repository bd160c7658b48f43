"""Judging random numbers: other ones on each rank, the same in a second run. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from pytest_mnode.checks.data.facts import At, Draws
from pytest_mnode.wrong import Wrong, alike, listed


def kind_of(source: str) -> str:
    """The generator that a source draws from: "numpy" of "worker 1: numpy"."""
    return source.rpartition(": ")[2]


def judge_distinct(label: str, draws: Sequence[Draws]) -> Wrong:
    """Does every rank, and every worker of its loader, draw numbers of its own?

    Two that draw the same from one kind of generator are wrong. Inconclusive where none are, and a
    rank did not draw what others drew.
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
    every = _kinds(draws)
    missing = [
        (one.at, _undrawn(absent))
        for one in draws
        if (absent := [source for source in every if source not in one.digests])
    ]
    count = sum(len(who) * len(kinds) for who, kinds in equal.items())
    return Wrong(
        f"{label}: generators that draw what another draws",
        None if alone else count or (None if missing or not every else 0),
        "each rank and each worker has a seed of its own",
        listed(_shared(who, kinds, len(draws)) for who, kinds in equal.items()) or None,
        "one rank has nobody to share with" if alone else _note(alike(missing, len(draws)), every),
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
    return _between(
        f"{label}: generators that draw otherwise in a second run",
        "numbers follow from the seed and the rank",
        (first, again),
        "others from",
        lambda one, other: one != other,
    )


def judge_depends(label: str, one: Sequence[Draws], other: Sequence[Draws]) -> Wrong:
    """Does another seed give every rank other numbers?"""
    return _between(
        f"{label}: generators that the seed does not reach",
        "another seed gives other numbers",
        (one, other),
        "the same from",
        lambda one, other: one == other,
    )


def _between(
    name: str,
    source: str,
    runs: tuple[Sequence[Draws], Sequence[Draws]],
    what: str,
    wrong: Callable[[str, str], bool],
) -> Wrong:
    """Generators whose digests of two runs are wrong; inconclusive where some did not draw."""
    first, second = ({draws.at.rank: draws for draws in run} for run in runs)
    kinds = _kinds(itertools.chain(*runs))
    texts, missing = [], []
    count = 0
    for rank, draws in (first | second).items():
        if rank not in first or rank not in second:
            missing.append((draws.at, "not in both runs"))
            continue
        one, other = first[rank].digests, second[rank].digests
        if absent := [kind for kind in kinds if kind not in one or kind not in other]:
            missing.append((draws.at, _undrawn(absent)))
        if bad := [kind for kind in one if kind in other and wrong(one[kind], other[kind])]:
            count += len(bad)
            texts.append((draws.at, f"{what} {', '.join(_shown(bad))}"))
    ranks = len(first | second)
    return Wrong(
        name,
        count or (None if missing or not kinds else 0),
        source,
        listed(alike(texts, ranks)) or None,
        _note(alike(missing, ranks), kinds),
    )


def _note(missing: Iterable[str], kinds: Sequence[str]) -> str:
    """What is missing, and what was drawn from."""
    return "; ".join(filter(None, [listed(missing), ", ".join(kinds) or "no rank drew anything"]))


def _undrawn(kinds: Sequence[str]) -> str:
    return f"drew nothing from {', '.join(_shown(kinds))}"


def _shown(kinds: Sequence[str], most: int = 4) -> list[str]:
    return [*kinds[:most], *([f"{len(kinds) - most} more"] if len(kinds) > most else [])]


def _kinds(draws: Iterable[Draws]) -> list[str]:
    """All that any rank drew from."""
    return list(dict.fromkeys(source for one in draws for source in one.digests))
