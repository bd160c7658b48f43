"""Judging shards: disjoint, complete, also across a cut. Pure, without torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_mnode.checks.data.facts import Reading
from pytest_mnode.checks.judged import most_common, none_wrong
from pytest_mnode.measurement import Measurement, listed


def padding_of(samples: int, ranks: int) -> int:
    """Samples that come twice so that every rank has equally many, as DistributedSampler does."""
    return -samples % ranks


def tail_of(samples: int, ranks: int) -> int:
    """Samples that are left out so that every rank has equally many, with drop_last."""
    return samples % ranks


def judge_shards(
    label: str,
    readings: Sequence[Reading],
    samples: int,
    *,
    padding: int = 0,
    left_out: int = 0,
    expected: Sequence[Sequence[int]] | None = None,
) -> list[Measurement]:
    """Did every sample of 0 … samples-1 reach one rank, once, in this epoch?

    readings: of all ranks. padding: how many may come twice; left_out: how many may reach nobody.
    expected: which samples each rank should have had, where that is known: it serves to name ranks.
    Inconclusive where there is no sample, or nobody read any.
    """
    counts = Counter(itertools.chain.from_iterable(one.indices for one in readings))
    missing = [index for index in range(samples) if not counts[index]]
    extra = sum(count - 1 for count in counts.values())
    foreign = [f"{one.at} read {index}" for one in readings for index in _foreign(one, samples)]
    lengths = [len(one.indices) for one in readings]
    uneven = [
        f"{one.at} read {length}{others}"
        for one, length, others in _unlike(readings, lengths, ", most ranks {}")
    ]
    causes = list(itertools.chain(_causes(readings), uneven, _strayed(readings, expected)))
    absent = max(0, len(missing) - left_out)
    twice = max(0, extra - padding)
    nothing = "" if counts else "no rank read anything"
    return [
        none_wrong(
            f"{label}: samples that reached no rank",
            [*causes, f"{_some(missing)} reached nobody"] if absent and readings else [],
            f"{samples} samples, of which {left_out} may be left out",
            count=absent if readings else 0,
            unsure=nothing or ("" if samples else "there is no sample that could be missing"),
            note=f"{len(missing)} left out, to have equal shards" if missing and not absent else "",
        ),
        none_wrong(
            f"{label}: samples read more than once",
            [*causes, *_overlaps(readings)] if twice else [],
            f"{padding} may come twice, to have equal shards",
            count=twice,
            unsure=nothing,
            note=f"{extra} came twice, to have equal shards" if extra and not twice else "",
        ),
        none_wrong(
            f"{label}: ranks with more or fewer samples", uneven, "shards are equal", unsure=nothing
        ),
        none_wrong(
            f"{label}: samples that there are not",
            foreign,
            f"indices 0 to {samples - 1}",
            unsure=nothing,
        ),
    ]


def _foreign(reading: Reading, samples: int) -> list[int]:
    return [index for index in reading.indices if not 0 <= index < samples]


def _causes(readings: Sequence[Reading]) -> Iterator[str]:
    """What a rank's sampler says of itself that cannot be."""
    ranks = len(readings)
    for one in readings:
        own = one.sampler
        if own.rank is not None and own.rank != one.at.rank:
            yield f"{one.at} has the sampler of rank {own.rank}"
        if own.replicas is not None and own.replicas != ranks:
            yield f"{one.at} shards for {own.replicas} ranks, and there are {ranks}"
    seeds = [one.sampler.seed for one in readings]
    epochs = [one.sampler.epoch for one in readings]
    for what, values in (("seed", seeds), ("epoch", epochs)):
        for one, value, others in _unlike(readings, values, ", most ranks by {}"):
            yield f"{one.at} shuffles by {what} {value}{others}"


def _unlike(
    readings: Sequence[Reading], values: Sequence[int | None], others: str
) -> Iterator[tuple[Reading, int | None, str]]:
    """Ranks whose value is not that of most, and what most have; all where none is most's."""
    most = most_common(values)
    others_text = "" if most is None else others.format(most)
    if len(set(values)) > 1:
        yield from ((r, v, others_text) for r, v in zip(readings, values, strict=True) if v != most)


def _strayed(
    readings: Sequence[Reading], expected: Sequence[Sequence[int]] | None
) -> Iterator[str]:
    """Ranks that read other samples than they should have."""
    if expected is None:
        return
    for one in readings:
        own = Counter(expected[one.at.rank]) if one.at.rank < len(expected) else Counter()
        got = Counter(one.indices)
        if lacks := list((own - got).elements()):
            yield f"{one.at} lacks {len(lacks)} of its {own.total()} samples, {_some(lacks)}"
        elif more := list((got - own).elements()):
            yield f"{one.at} read {len(more)} that are not its own, {_some(more)}"


def _overlaps(readings: Sequence[Reading]) -> list[str]:
    """Pairs of ranks that read the same samples, those with most first."""
    pairs = []
    for one, other in itertools.combinations(readings, 2):
        if both := sorted(set(one.indices) & set(other.indices)):
            pairs.append((len(both), f"{one.at} and {other.at} both read {_some(both)}"))
    alone = [
        (len(one.indices) - len(set(one.indices)), f"{one.at} read samples more than once")
        for one in readings
        if len(set(one.indices)) < len(one.indices)
    ]
    every = sorted([*pairs, *alone], reverse=True)
    # What was padded is shared by two each; it says nothing of who is wrong.
    return [text for size, text in every if 2 * size >= every[0][0]]


def _some(indices: Iterable[int], most: int = 5) -> str:
    every = list(indices)
    shown = ", ".join(str(index) for index in every[:most])
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{'sample' if len(every) == 1 else 'samples'} {shown}{more}"


def judge_resumed(
    label: str,
    whole: Sequence[Reading],
    before: Sequence[Reading],
    after: Sequence[Reading],
) -> Measurement:
    """Is what was read before a cut and after it the epoch, no sample lost and none twice?

    whole: the epoch without a cut. after: by as many ranks or by others. Inconclusive where nothing
    was read on one side of the cut, and nothing is wrong.
    """
    want = Counter(itertools.chain.from_iterable(one.indices for one in whole))
    got = Counter(itertools.chain.from_iterable(one.indices for one in (*before, *after)))
    lost, twice = list((want - got).elements()), list((got - want).elements())
    name = f"{label}: samples lost or read again"
    source = "each sample of the epoch once, across the cut"
    texts = [f"{_some(lost)} lost"] if lost else []
    if twice:
        texts.append(f"{_some(twice)} read again by {listed(_readers(after, set(twice)))}")
    sides = (("without a cut", whole), ("before the cut", before), ("after the cut", after))
    nothing = [
        f"nothing was read {side}" for side, read in sides if not any(one.indices for one in read)
    ]
    unsure = "; ".join(nothing)
    note = f"{len(before)} ranks before, {len(after)} after"
    if not want or not after:
        return Measurement.unknown(name, f"{unsure}; {note}", source=source)
    count = len(lost) + len(twice)
    return none_wrong(name, texts, source, count=count, unsure=unsure, note=note)


def _readers(readings: Sequence[Reading], samples: set[int]) -> list[str]:
    return [str(one.at) for one in readings if samples & set(one.indices)] or ["nobody after it"]
