"""Random numbers: different ones on each rank, the same in a second run.

The judges are pure; `seeds_of_two_runs` is called by the controller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.checks.data.facts import At, Draws
from pytest_mnode.checks.judged import none_wrong, texts_by_who
from pytest_mnode.measurement import Measurement, listed

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.rank.world import World


SEED = 20


def kind_of(source: str) -> str:
    """The generator that a source draws from: "numpy" of "worker 1: numpy"."""
    return source.rpartition(": ")[2]


def judge_distinct(label: str, draws: Sequence[Draws]) -> Measurement:
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
    name = f"{label}: generators that draw what another draws"
    source = "each rank and each worker has a seed of its own"
    if len(draws) < 2:
        return Measurement.unknown(name, "one rank has nobody to share with", source=source)
    every = _kinds(draws)
    missing = [
        (one.at, _undrawn(absent))
        for one in draws
        if (absent := [source for source in every if source not in one.digests])
    ]
    return none_wrong(
        name,
        [_shared(who, kinds, len(draws)) for who, kinds in equal.items()],
        source,
        count=sum(len(who) * len(kinds) for who, kinds in equal.items()),
        unsure=_unsure(missing, len(draws), every),
        note=", ".join(every),
    )


def _shared(who: Sequence[tuple[At, str]], kinds: Sequence[str], ranks: int) -> str:
    """Who draws the same, such as "all 8 ranks, worker 0: the same from torch, dropout"."""
    workers = {worker for _, worker in who}
    what = f"the same from {', '.join(kinds)}"
    if len(workers) == 1:
        worker = f"{min(workers)}, " if any(workers) else ""
        [text] = texts_by_who([(at, f"{worker}{what}") for at, _ in who], ranks)
        return text
    places = [f"{at}, {worker}" if worker else str(at) for at, worker in who]
    return f"{listed(places)}: {what}"


def judge_reproduced(label: str, first: Sequence[Draws], again: Sequence[Draws]) -> Measurement:
    """Does every rank draw the same numbers in a second run with the same seed?"""
    return _between(
        f"{label}: generators that draw otherwise in a second run",
        "numbers follow from the seed and the rank",
        (first, again),
        "others from",
        lambda one, other: one != other,
    )


def judge_depends(label: str, one: Sequence[Draws], other: Sequence[Draws]) -> Measurement:
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
) -> Measurement:
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
    return none_wrong(
        name,
        texts_by_who(texts, ranks),
        source,
        count=count,
        unsure=_unsure(missing, ranks, kinds),
        note=", ".join(kinds),
    )


def _unsure(missing: Iterable[tuple[At, str]], ranks: int, kinds: Sequence[str]) -> str:
    """What some ranks did not draw; "" where all drew the same kinds."""
    return listed(texts_by_who(missing, ranks)) if kinds else "no rank drew anything"


def _undrawn(kinds: Sequence[str]) -> str:
    return f"drew nothing from {', '.join(_shown(kinds))}"


def _shown(kinds: Sequence[str], most: int = 4) -> list[str]:
    return [*kinds[:most], *([f"{len(kinds) - most} more"] if len(kinds) > most else [])]


def _kinds(draws: Iterable[Draws]) -> list[str]:
    """All that any rank drew from."""
    return list(dict.fromkeys(source for one in draws for source in one.digests))


def seeds_of_two_runs(cluster: Cluster, *, workers: int, on_accelerator: bool) -> list[Measurement]:
    """Does a second run, in new ranks, draw the same on each rank, and no two ranks alike?"""
    with cluster.world(fresh=True) as ranks:
        first = ranks.run(_drawn, SEED, workers, on_accelerator)
    with cluster.world(fresh=True) as ranks:
        again = ranks.run(_drawn, SEED, workers, on_accelerator)
        other = ranks.run(_drawn, SEED + 1, workers, on_accelerator)
    label = f"{len(first)} ranks with seed {SEED}"
    return [
        judge_distinct(label, first),
        judge_reproduced(label, first, again),
        judge_depends(label, first, other),
    ]


def _drawn(seed: int, workers: int, on_accelerator: bool, *, world: World) -> Draws:
    """Seed this rank as a job does, and draw."""
    import torch

    from pytest_mnode.checks.data.in_ranks import draw
    from pytest_mnode.reference_job import randomness

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if on_accelerator and accelerator is not None and torch.accelerator.is_available():
        count = torch.accelerator.device_count()
        device = torch.device(accelerator.type, world.local_rank % count)
    randomness.seed_all(seed, world.rank)
    return draw(world, device, workers=workers)
