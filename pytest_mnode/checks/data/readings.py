"""Judges the samples that ranks read: shards, orders of epochs, cut epochs. Without torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lgamma, log

from pytest_mnode.checks.judged import At, numbered, texts_by_who, unlike_most
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import HeadlineMark, Measurement, listed

NEGLIGIBLE = 1e-9
"""An order that correct shuffles give with a lower probability is not a shuffle."""
ENOUGH = 16
"""Samples of one rank that suffice to judge: a correct shuffle ascends once in 16!, 2e13."""


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """A sampler's attributes; None if it has no such attribute."""

    rank: int | None = None
    num_replicas: int | None = None
    seed: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Samples that one rank read in one epoch: indices of the data set, in the order read."""

    at: At
    epoch: int
    indices: tuple[int, ...]
    sampler: SamplerFacts = SamplerFacts()


def padding_of(samples: int, ranks: int) -> int:
    """Number of samples that DistributedSampler repeats so that every rank has equally many."""
    return -samples % ranks


def tail_of(samples: int, ranks: int) -> int:
    """Number of samples that drop_last leaves out so that every rank has equally many."""
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
    """Judge whether every sample of 0 … samples-1 reached one rank, once, in this epoch.

    readings: of all ranks. padding: how many samples may come twice. left_out: how many may reach
    no rank. Without either, shards may differ by one sample if samples do not divide by ranks.
    expected: the samples that each rank should have read, to name ranks; None if unknown.
    Inconclusive if there is no sample, or no rank read any.
    """
    counts = _samples(readings)
    missing = [index for index in range(samples) if not counts[index]]
    extra = counts.total() - len(counts)
    uneven = [
        at.culprit(f" read {length}{others}", sure=bool(others))
        for at, length, others in unlike_most((one.at, len(one.indices)) for one in readings)
    ]
    sizes = {len(one.indices) for one in readings}
    once = not (missing or extra or padding or left_out)
    if once and sizes and samples % len(readings) and max(sizes) - min(sizes) == 1:
        uneven = []
    causes = [*_causes(readings), *uneven, *_strayed(readings, expected or [])]
    absent = max(0, len(missing) - left_out) if readings else 0
    twice = max(0, extra - padding)
    foreign = [
        r.at.culprit(f" read {i}") for r in readings for i in r.indices if not 0 <= i < samples
    ]
    inside = f"indices 0 to {samples - 1}"
    nothing = "" if counts else "no rank read anything"
    equal = "to have equal shards"
    return [
        Measurement.none_allowed(
            f"{label}: samples that reached no rank",
            [*causes, Culprit(f"{numbered('sample', missing)} reached no rank")] if absent else [],
            f"{samples} samples, of which {left_out} may be left out",
            count=absent,
            unsure=nothing or ("" if samples else "there is no sample that could be missing"),
            note=f"{len(missing)} left out, {equal}" if missing and not absent else "",
            headline=HeadlineMark(
                after="samples read once",
                of=samples - left_out,
                right=max(0, samples - left_out - absent - twice),
            ),
        ),
        Measurement.none_allowed(
            f"{label}: samples read more than once",
            [*causes, *_overlaps(readings)] if twice else [],
            f"{padding} may come twice, {equal}",
            count=twice,
            unsure=nothing,
            note=f"{extra} came twice, {equal}" if extra and not twice else "",
        ),
        Measurement.none_allowed(
            f"{label}: ranks with more or fewer samples", uneven, "shards are equal", unsure=nothing
        ),
        Measurement.none_allowed(
            f"{label}: indices outside the data set", foreign, inside, unsure=nothing
        ),
    ]


def _samples(readings: Iterable[Reading]) -> Counter[int]:
    return Counter(index for one in readings for index in one.indices)


def _causes(readings: Sequence[Reading]) -> Iterator[Culprit]:
    """Samplers with a wrong rank, number of ranks, seed or epoch."""
    for one in readings:
        if one.sampler.rank not in (None, one.at.rank):
            yield one.at.culprit(f" has the sampler of rank {one.sampler.rank}")
        ranks = one.sampler.num_replicas
        if ranks not in (None, len(readings)):
            yield one.at.culprit(f" shards for {ranks} ranks, and there are {len(readings)}")
    for what in ("seed", "epoch"):
        values = [(one.at, getattr(one.sampler, what)) for one in readings]
        for at, value, others in unlike_most(values, ", most ranks by {}"):
            yield at.culprit(f" shuffles by {what} {value}{others}", sure=bool(others))


def _strayed(readings: Sequence[Reading], expected: Sequence[Sequence[int]]) -> Iterator[Culprit]:
    """Ranks that read other samples than they should have."""
    for one in readings if expected else ():
        own = Counter(expected[one.at.rank] if one.at.rank < len(expected) else ())
        got = Counter(one.indices)
        if lacks := list((own - got).elements()):
            which = numbered("sample", lacks)
            yield one.at.culprit(f" lacks {len(lacks)} of its {own.total()} samples, {which}")
        elif more := list((got - own).elements()):
            which = numbered("sample", more)
            yield one.at.culprit(f" read {len(more)} that are not its own, {which}")


def _overlaps(readings: Sequence[Reading]) -> list[Culprit]:
    """Pairs of ranks that read the same samples, largest overlaps first.

    Of more than two readers of a sample, each is paired with the next.
    """
    readers: defaultdict[int, dict[At, None]] = defaultdict(dict)
    for one in readings:
        for index in one.indices:
            readers[index].setdefault(one.at)
    both: defaultdict[tuple[At, At], list[int]] = defaultdict(list)
    for index in sorted(readers):
        for pair in pairwise(readers[index]):
            both[pair].append(index)
    overlaps = [
        (
            len(shared),
            Culprit(
                f"{one} and {other} both read {numbered('sample', shared)}",
                either=[{one.node, other.node}],
            ),
        )
        for (one, other), shared in both.items()
    ]
    overlaps += [
        (twice, one.at.culprit(" read samples more than once"))
        for one in readings
        if (twice := len(one.indices) - len(set(one.indices)))
    ]
    overlaps.sort(key=lambda overlap: -overlap[0])
    # Padding is shared by pairs of correct ranks too, so small overlaps blame nobody.
    return [text for size, text in overlaps if 2 * size >= overlaps[0][0]]


@dataclass(frozen=True, slots=True)
class _Odd:
    """An order that one rank should not have read in, and its probability in a correct shuffle."""

    at: At
    number: int
    text: str
    log_chance: float


def judge_sockets(label: str, errors: Sequence[tuple[At, str]]) -> Measurement:
    """Whether loader workers can pass tensors on; otherwise their ranks wait for ever.

    errors: of `in_ranks.worker_socket_error`, by rank.
    """
    texts = [(at, error) for at, error in errors if error]
    return Measurement.none_allowed(
        f"{label}: ranks whose loader workers cannot open a socket below TMPDIR",
        texts_by_who(texts, len(errors)),
        "multiprocessing.resource_sharer",
        count=len(texts),
    )


def judge_orders(label: str, epochs: Sequence[Sequence[Reading]]) -> list[Measurement]:
    """Judge whether every epoch is shuffled, and differently from earlier ones.

    epochs: readings of all ranks. Inconclusive if correct shuffles of so few samples may give the
    same orders.
    """
    by_rank: defaultdict[At, list[Reading]] = defaultdict(list)
    for reading in (reading for epoch in epochs for reading in epoch):
        by_rank[reading.at].append(reading)
    repeats, ascending = [], []
    for at, read in by_rank.items():
        for number, later in enumerate(read):
            # Of n different samples, one order in n! is that of the data set, or of another epoch.
            chance = -lgamma(len(set(later.indices)) + 1)
            same = next((e for e in read[:number] if e.indices == later.indices), None)
            text = f"epoch {later.epoch} in the order of"
            if same is not None:
                repeats.append(_Odd(at, number, f"{text} epoch {same.epoch}", chance + log(number)))
            if list(later.indices) == sorted(later.indices):
                ascending.append(_Odd(at, number, f"{text} the data set", chance))
    missing = [
        f"{at} read {len(read)} of {len(epochs)} epochs"
        for at, read in by_rank.items()
        if len(read) != len(epochs)
    ] or ([] if by_rank else ["no rank read anything"])

    def judged(
        name: str, source: str, odd: Sequence[_Odd], lacking: Sequence[str], cause: str = ""
    ) -> Measurement:
        sure = _not_by_chance(odd, len(by_rank), len(epochs))
        who: defaultdict[At, list[str]] = defaultdict(list)
        for one in sure or odd:
            who[one.at].append(one.text)
        every = ((at, f"{', '.join(of_rank)}{cause}") for at, of_rank in who.items())
        texts = texts_by_who(every, len(by_rank))
        if sure:
            return Measurement.none_allowed(f"{label}: {name}", texts, source, count=len(sure))
        few = f"correct shuffles of so few samples may look like this; give each rank {ENOUGH}"
        unsure = filter(None, [listed(lacking), *([listed(texts), few] if odd else [])])
        return Measurement.none_allowed(f"{label}: {name}", [], source, unsure="; ".join(unsure))

    return [
        judged(
            "epochs read in the order of an earlier epoch",
            "each epoch has an order of its own: set_epoch",
            repeats,
            missing + (["one epoch has none before it"] if len(epochs) == 1 else []),
            ": set_epoch was not called, or does nothing",
        ),
        judged("unshuffled epochs", "each epoch is shuffled", ascending, missing),
    ]


def _not_by_chance(odd: Sequence[_Odd], ranks: int, epochs: int) -> Sequence[_Odd]:
    """Odd orders that are not by chance: those of one rank or one epoch, else all together."""

    def unlikely(some: Sequence[_Odd], places: int, times: int) -> bool:
        # The union bound: times × C(places, odd) × the probability of these.
        ways = lgamma(places + 1) - lgamma(len(some) + 1) - lgamma(places - len(some) + 1)
        return log(times) + ways + sum(one.log_chance for one in some) < log(NEGLIGIBLE)

    of_rank: defaultdict[At, list[_Odd]] = defaultdict(list)
    of_epoch: defaultdict[int, list[_Odd]] = defaultdict(list)
    for one in odd:
        of_rank[one.at].append(one)
        of_epoch[one.number].append(one)
    ats = {at for at, some in of_rank.items() if unlikely(some, epochs, ranks)}
    numbers = {number for number, some in of_epoch.items() if unlikely(some, ranks, epochs)}
    found = [one for one in odd if one.at in ats or one.number in numbers]
    return found or (odd if odd and unlikely(odd, ranks * epochs, 1) else [])


def judge_again(label: str, first: Sequence[Reading], again: Sequence[Reading]) -> Measurement:
    """Judge whether every rank read the same samples in the same order both times."""
    ats = {one.at.rank: one.at for one in (*first, *again)}
    runs = [{one.at.rank: one.indices for one in run} for run in (first, again)]
    differing, nothing = [], []
    for rank, at in ats.items():
        before, then = (run.get(rank) for run in runs)
        if before is None:
            differing.append(at.culprit(" read the second time only"))
        elif then is None:
            differing.append(at.culprit(" did not read again"))
        elif then != before:
            pairs = enumerate(zip(before, then, strict=False))
            text = f"{len(then)} samples, and {len(before)} before"
            texts = (f"sample {b} at place {i}, and {a} before" for i, (a, b) in pairs if a != b)
            differing.append(at.culprit(f" read {next(texts, text)}"))
        elif not then:
            nothing.append(f"{at} read nothing")
    return Measurement.none_allowed(
        f"{label}: ranks that read differently",
        differing,
        "order follows from seed and epoch",
        unsure=listed(nothing) if first else "no rank read the first time",
    )


def judge_resumed(
    label: str, whole: Sequence[Reading], before: Sequence[Reading], after: Sequence[Reading]
) -> Measurement:
    """Judge whether the samples before and after a cut are the epoch, none lost and none twice.

    whole: the epoch without a cut. after: by the same number of ranks or another. Inconclusive if
    nothing was read on one side of the cut, and nothing is wrong.
    """
    want, got = _samples(whole), _samples((*before, *after))
    lost, twice = list((want - got).elements()), list((got - want).elements())
    texts = [Culprit(f"{numbered('sample', lost)} lost")] if lost else []
    if twice:
        readers = [one.at for one in after if not set(twice).isdisjoint(one.indices)]
        who = listed(map(str, readers)) or "nobody after it"
        words = f"{numbered('sample', twice)} read again by {who}"
        nodes = {at.node for at in readers}
        # Of several readers, those are right whose samples another one had read in their place.
        texts.append(Culprit(words, nodes) if len(nodes) == 1 else Culprit(words, either=[nodes]))
    sides = (("without a cut", whole), ("before the cut", before), ("after the cut", after))
    judged = want and after  # else lost and repeated samples are unknown
    return Measurement.none_allowed(
        f"{label}: samples lost or read again",
        texts if judged else [],
        "each sample of the epoch once, across the cut",
        count=len(lost) + len(twice) if judged else 0,
        unsure="; ".join(f"nothing was read {side}" for side, read in sides if not _samples(read)),
        note=f"{len(before)} ranks before, {len(after)} after",
    )
