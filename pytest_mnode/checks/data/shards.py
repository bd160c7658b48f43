"""Judging shards: disjoint, complete, also across a cut. Pure, without torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mnode.checks.judged import At, none_wrong, numbered, unlike_most
from pytest_mnode.measurement import Measurement, listed


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """A sampler's attributes; None where it has no such attribute."""

    rank: int | None = None
    replicas: int | None = None
    seed: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Samples that one rank read in one epoch: indices of the data set, as they came."""

    at: At
    epoch: int
    indices: tuple[int, ...]
    sampler: SamplerFacts = SamplerFacts()


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

    readings: of all ranks. padding: how many samples may come twice. left_out: how many may reach
    no rank. expected: the samples that each rank should have had, to name ranks; may be unknown.
    Inconclusive where there is no sample, or no rank read any.
    """
    counts = Counter(itertools.chain.from_iterable(one.indices for one in readings))
    missing = [index for index in range(samples) if not counts[index]]
    extra = counts.total() - len(counts)
    uneven = [
        f"{at} read {length}{others}"
        for at, length, others in unlike_most([(one.at, len(one.indices)) for one in readings])
    ]
    causes = list(itertools.chain(_causes(readings), uneven, _strayed(readings, expected)))
    absent = max(0, len(missing) - left_out) if readings else 0
    twice = max(0, extra - padding)
    nothing = "" if counts else "no rank read anything"
    return [
        none_wrong(
            f"{label}: samples that reached no rank",
            [*causes, f"{numbered('sample', missing)} reached nobody"] if absent else [],
            f"{samples} samples, of which {left_out} may be left out",
            count=absent,
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
            [
                f"{one.at} read {index}"
                for one in readings
                for index in one.indices
                if not 0 <= index < samples
            ],
            f"indices 0 to {samples - 1}",
            unsure=nothing,
        ),
    ]


def _causes(readings: Sequence[Reading]) -> Iterator[str]:
    """Samplers that have another rank, number of ranks, seed or epoch than they should."""
    ranks = len(readings)
    for one in readings:
        own = one.sampler
        if own.rank is not None and own.rank != one.at.rank:
            yield f"{one.at} has the sampler of rank {own.rank}"
        if own.replicas is not None and own.replicas != ranks:
            yield f"{one.at} shards for {own.replicas} ranks, and there are {ranks}"
    for what in ("seed", "epoch"):
        values = [(one.at, getattr(one.sampler, what)) for one in readings]
        for at, value, others in unlike_most(values, ", most ranks by {}"):
            yield f"{at} shuffles by {what} {value}{others}"


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
            which = numbered("sample", lacks)
            yield f"{one.at} lacks {len(lacks)} of its {own.total()} samples, {which}"
        elif more := list((got - own).elements()):
            yield f"{one.at} read {len(more)} that are not its own, {numbered('sample', more)}"


def _overlaps(readings: Sequence[Reading]) -> list[str]:
    """Pairs of ranks that read the same samples, those with most first."""
    sets = [set(one.indices) for one in readings]
    overlaps = [
        (len(both), f"{one.at} and {other.at} both read {numbered('sample', sorted(both))}")
        for (one, mine), (other, its) in itertools.combinations(zip(readings, sets, strict=True), 2)
        if (both := mine & its)
    ]
    overlaps += [
        (len(one.indices) - len(mine), f"{one.at} read samples more than once")
        for one, mine in zip(readings, sets, strict=True)
        if len(one.indices) > len(mine)
    ]
    overlaps.sort(reverse=True)
    # What was padded is shared by two each; it says nothing of who is wrong.
    return [text for size, text in overlaps if 2 * size >= overlaps[0][0]]


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
    texts = [f"{numbered('sample', lost)} lost"] if lost else []
    if twice:
        readers = [str(one.at) for one in after if not set(twice).isdisjoint(one.indices)]
        who = listed(readers) or "nobody after it"
        texts.append(f"{numbered('sample', twice)} read again by {who}")
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
