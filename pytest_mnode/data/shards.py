"""Judging shards: disjoint, complete, shuffled, and the same again. Pure, without torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_mnode.data.facts import At, Reading
from pytest_mnode.wrong import Wrong, alike, found, listed

FEWEST = 4
"""Samples of a rank below which an order says nothing."""


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
) -> list[Wrong]:
    """Did every sample of 0 … samples-1 reach one rank, once, in this epoch?

    readings: of all ranks. padding: how many may come twice; left_out: how many may reach nobody.
    expected: which samples each rank should have had, where that is known: it serves to name ranks.
    """
    counts = Counter(itertools.chain.from_iterable(one.indices for one in readings))
    missing = [index for index in range(samples) if not counts[index]]
    extra = sum(count - 1 for count in counts.values())
    foreign = [f"{one.at} read {index}" for one in readings for index in _foreign(one, samples)]
    lengths = Counter(len(one.indices) for one in readings)
    usual = lengths.most_common(1)[0][0] if lengths else 0
    uneven = [
        f"{one.at} read {len(one.indices)}, most ranks {usual}"
        for one in readings
        if len(one.indices) != usual
    ]
    causes = list(itertools.chain(_causes(readings), uneven, _strayed(readings, expected)))
    absent = max(0, len(missing) - left_out)
    twice = max(0, extra - padding)
    which = f"{_some(missing)} reached nobody" if absent else ""
    return [
        Wrong(
            f"{label}: samples that reached no rank",
            absent if readings else None,
            f"{samples} samples, of which {left_out} may be left out",
            listed([*causes, which]) if absent else None,
            f"{len(missing)} left out, to have equal shards" if missing and not absent else "",
        ),
        Wrong(
            f"{label}: samples read more than once",
            twice if readings else None,
            f"{padding} may come twice, to have equal shards",
            listed([*causes, *_overlaps(readings)]) if twice else None,
            f"{extra} came twice, to have equal shards" if extra and not twice else "",
        ),
        found(f"{label}: ranks with more or fewer samples", "shards are equal", uneven),
        found(f"{label}: samples that there are not", f"indices 0 to {samples - 1}", foreign),
    ]


def _foreign(reading: Reading, samples: int) -> list[int]:
    return [index for index in reading.indices if not 0 <= index < samples]


def _causes(readings: Sequence[Reading]) -> Iterator[str]:
    """What a rank's sampler says of itself that cannot be."""
    ranks = len(readings)
    seeds = Counter(one.sampler.seed for one in readings)
    epochs = Counter(one.sampler.epoch for one in readings)
    for one in readings:
        own = one.sampler
        if own.rank is not None and own.rank != one.at.rank:
            yield f"{one.at} has the sampler of rank {own.rank}"
        if own.replicas is not None and own.replicas != ranks:
            yield f"{one.at} shards for {own.replicas} ranks, and there are {ranks}"
        for what, value, all_of in (("seed", own.seed, seeds), ("epoch", own.epoch, epochs)):
            usual = all_of.most_common(1)[0][0]
            if value != usual:
                yield f"{one.at} shuffles by {what} {value}, most ranks by {usual}"


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


def judge_orders(label: str, epochs: Sequence[Sequence[Reading]]) -> list[Wrong]:
    """Is every epoch shuffled, and otherwise than those before? epochs: readings of all ranks."""
    by_rank: dict[At, list[Reading]] = {}
    for one in itertools.chain.from_iterable(epochs):
        by_rank.setdefault(one.at, []).append(one)
    repeats: list[tuple[At, list[str]]] = []
    ascending: list[tuple[At, str]] = []
    for at, read in by_rank.items():
        stale = []
        for index, later in enumerate(read):
            same = next((e for e in read[:index] if e.indices == later.indices), None)
            if same is not None:
                stale.append(f"epoch {later.epoch} in the order of epoch {same.epoch}")
            if list(later.indices) == sorted(later.indices):
                ascending.append((at, f"epoch {later.epoch} in the order of the data set"))
        if stale:
            repeats.append((at, stale))
    too_few = any(len(one.indices) < FEWEST for read in by_rank.values() for one in read)
    unsure = not by_rank or len(epochs) < 2 or too_few
    note = f"give each rank {FEWEST} samples and two epochs to judge by" if unsure else ""
    why = "set_epoch was not called, or does nothing"
    said = alike([(at, f"{', '.join(stale)}: {why}") for at, stale in repeats], len(by_rank))
    return [
        Wrong(
            f"{label}: times that a rank read in the order of an earlier epoch",
            None if unsure else sum(len(stale) for _, stale in repeats),
            "each epoch is shuffled anew: set_epoch",
            listed(said) or None,
            note,
        ),
        Wrong(
            f"{label}: times that a rank read unshuffled",
            None if unsure else len(ascending),
            "each epoch is shuffled",
            listed(alike(ascending, len(by_rank))) or None,
            note,
        ),
    ]


def judge_again(label: str, first: Sequence[Reading], again: Sequence[Reading]) -> Wrong:
    """Did every rank read the same samples in the same order both times?"""
    other = {one.at.rank: one.indices for one in again}
    differing = []
    for one in first:
        then = other.get(one.at.rank)
        if then is None:
            differing.append(f"{one.at} did not read again")
        elif then != one.indices:
            differing.append(f"{one.at} read {_difference(one.indices, then)}")
    count = len(differing) if first else None
    name = f"{label}: ranks that read otherwise"
    return Wrong(name, count, "order follows from seed and epoch", listed(differing) or None)


def _difference(one: Sequence[int], other: Sequence[int]) -> str:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"sample {b} at place {place}, and {a} before"
    return f"{len(other)} samples, and {len(one)} before"


def judge_resumed(
    label: str,
    whole: Sequence[Reading],
    before: Sequence[Reading],
    after: Sequence[Reading],
) -> Wrong:
    """Is what was read before a cut and after it the epoch, no sample lost and none twice?

    whole: the epoch without a cut. after: by as many ranks or by others.
    """
    want = Counter(itertools.chain.from_iterable(one.indices for one in whole))
    got = Counter(itertools.chain.from_iterable(one.indices for one in (*before, *after)))
    lost, twice = list((want - got).elements()), list((got - want).elements())
    texts = [f"{_some(lost)} lost"] if lost else []
    if twice:
        texts.append(f"{_some(twice)} read again by {listed(_readers(after, set(twice)))}")
    return Wrong(
        f"{label}: samples lost or read again",
        len(lost) + len(twice) if whole and after else None,
        "each sample of the epoch once, across the cut",
        listed(texts) or None,
        f"{len(before)} ranks before, {len(after)} after",
    )


def _readers(readings: Sequence[Reading], samples: set[int]) -> list[str]:
    return [str(one.at) for one in readings if samples & set(one.indices)] or ["nobody after it"]
