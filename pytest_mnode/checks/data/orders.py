"""Judging orders: each epoch is shuffled differently, and the same way when read again. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma, log

from pytest_mnode.checks.data.shards import Reading
from pytest_mnode.checks.judged import At, none_wrong, texts_by_who
from pytest_mnode.measurement import Measurement, listed

NEGLIGIBLE = 1e-9
"""An order that correct shuffles give with less than this probability is no shuffle."""
ENOUGH = 16
"""So many samples of one rank are enough to judge: a correct shuffle ascends once in 16!, 2e13."""


@dataclass(frozen=True, slots=True)
class _Odd:
    """An order that one rank should not have read in, and its probability in a correct shuffle."""

    at: At
    epoch: int
    text: str
    log_chance: float


def judge_orders(label: str, epochs: Sequence[Sequence[Reading]]) -> list[Measurement]:
    """Is every epoch shuffled, and differently from those before? epochs: readings of all ranks.

    Inconclusive where correct shuffles of so few samples may give the same orders.
    """
    by_rank: dict[At, list[Reading]] = {}
    for one in itertools.chain.from_iterable(epochs):
        by_rank.setdefault(one.at, []).append(one)
    repeats: list[_Odd] = []
    ascending: list[_Odd] = []
    for at, read in by_rank.items():
        for number, later in enumerate(read):
            # Of n different samples, one order in n! is that of the data set, or of another epoch.
            chance = -lgamma(len(set(later.indices)) + 1)
            same = next((e for e in read[:number] if e.indices == later.indices), None)
            if same is not None:
                text = f"epoch {later.epoch} in the order of epoch {same.epoch}"
                repeats.append(_Odd(at, number, text, chance + log(number)))
            if list(later.indices) == sorted(later.indices):
                text = f"epoch {later.epoch} in the order of the data set"
                ascending.append(_Odd(at, number, text, chance))
    size = (len(by_rank), len(epochs))
    missing = [
        f"{at} read {len(read)} of {len(epochs)} epochs"
        for at, read in by_rank.items()
        if len(read) != len(epochs)
    ]
    if not by_rank:
        missing.append("no rank read anything")
    alone = ["one epoch has none before it"] if len(epochs) == 1 else []
    return [
        _judged(
            f"{label}: times that a rank read in the order of an earlier epoch",
            "each epoch is shuffled anew: set_epoch",
            repeats,
            size,
            [*missing, *alone],
            ": set_epoch was not called, or does nothing",
        ),
        _judged(
            f"{label}: times that a rank read unshuffled",
            "each epoch is shuffled",
            ascending,
            size,
            missing,
        ),
    ]


def _judged(  # noqa: PLR0917  what a finding has, and what it is judged by
    name: str,
    source: str,
    odd: Sequence[_Odd],
    size: tuple[int, int],
    missing: Sequence[str],
    cause: str = "",
) -> Measurement:
    """How often ranks read in odd orders; inconclusive where these may be chance."""
    sure = _no_chance(odd, *size)
    by_rank: dict[At, list[str]] = {}
    for one in sure or odd:
        by_rank.setdefault(one.at, []).append(one.text)
    named = [(at, f"{', '.join(texts)}{cause}") for at, texts in by_rank.items()]
    texts = texts_by_who(named, size[0])
    if sure:
        return none_wrong(name, texts, source, count=len(sure))
    unsure = [listed(missing)] if missing else []
    if odd:
        few = f"shuffles of so few samples may be so, give each rank {ENOUGH}"
        unsure += [listed(texts), few]
    return none_wrong(name, [], source, unsure="; ".join(unsure))


def _no_chance(odd: Sequence[_Odd], ranks: int, epochs: int) -> list[_Odd]:
    """Odd orders that are not chance: of one rank or one epoch, else all of them together."""
    found = [
        one
        for one in odd
        if _unlikely([o for o in odd if o.at == one.at], epochs, ranks)
        or _unlikely([o for o in odd if o.epoch == one.epoch], ranks, epochs)
    ]
    return found or (list(odd) if _unlikely(odd, ranks * epochs, 1) else [])


def _unlikely(odd: Sequence[_Odd], places: int, times: int) -> bool:
    """Whether correct shuffles are hardly ever so odd at so many of the places, in any of `times`.

    By the union bound: times × C(places, odd) × the probability of these.
    """
    ways = lgamma(places + 1) - lgamma(len(odd) + 1) - lgamma(places - len(odd) + 1)
    chance = log(times) + ways + sum(one.log_chance for one in odd)
    return bool(odd) and chance < log(NEGLIGIBLE)


def judge_again(label: str, first: Sequence[Reading], again: Sequence[Reading]) -> Measurement:
    """Did every rank read the same samples in the same order both times?"""
    ats = {one.at.rank: one.at for one in (*first, *again)}
    runs = [{one.at.rank: one.indices for one in run} for run in (first, again)]
    differing, nothing = [], []
    for rank, at in ats.items():
        before, then = (run.get(rank) for run in runs)
        if before is None:
            differing.append(f"{at} read the second time only")
        elif then is None:
            differing.append(f"{at} did not read again")
        elif then != before:
            differing.append(f"{at} read {_difference(before, then)}")
        elif not then:
            nothing.append(f"{at} read nothing")
    return none_wrong(
        f"{label}: ranks that read otherwise",
        differing,
        "order follows from seed and epoch",
        unsure=listed(nothing) if first else "no rank read the first time",
    )


def _difference(one: Sequence[int], other: Sequence[int]) -> str:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"sample {b} at place {place}, and {a} before"
    return f"{len(other)} samples, and {len(one)} before"
