"""Judges digests of ranks' random numbers, and of the files that they read. Without torch.

The judges are pure; only `read_files` reads a disk.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.checks.judged import At, texts_by_who, unlike_most
from pytest_mnode.criteria.preflight.answers import Directory
from pytest_mnode.criteria.preflight.directories import visit
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, listed

if TYPE_CHECKING:
    pass


SEED = 20
_ABSENT = "not among the first"


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of one rank's random numbers by generator ("worker 0: torch"), or of files by name.

    problem: why nothing could be read.
    """

    at: At
    digests: Mapping[str, str]
    problem: str = ""


def judge_distinct(label: str, draws: Sequence[Digests]) -> Measurement:
    """Judge whether every rank, and every worker of its loader, draws numbers of its own.

    Two that draw the same from one kind of generator are wrong. Inconclusive if none are wrong, and
    a rank did not draw from a generator that others drew from.
    """
    name = f"{label}: generators that draw the same numbers as another"
    source = "each rank and each worker has a seed of its own"
    if len(draws) < 2:
        return Measurement.unknown(name, "a single rank has no other to share with", source=source)
    drawn: defaultdict[tuple[str, str], list[tuple[At, str]]] = defaultdict(list)
    for one in draws:
        for generator, digest in one.digests.items():
            worker, _, kind = generator.rpartition(": ")
            drawn[kind, digest].append((one.at, worker))
    equal: defaultdict[tuple[tuple[At, str], ...], list[str]] = defaultdict(list)
    for (kind, _), who in drawn.items():
        if len(who) > 1:
            equal[tuple(who)].append(kind)
    every = _generators(draws)
    lacking = [(one.at, _undrawn(every, one.digests)) for one in draws]
    return _drawn_wrong(
        name,
        [_shared(who, kinds, len(draws)) for who, kinds in equal.items()],
        source,
        sum(len(who) * len(kinds) for who, kinds in equal.items()),
        (lacking, len(draws), every),
    )


def _shared(who: Sequence[tuple[At, str]], kinds: Sequence[str], ranks: int) -> Culprit:
    """Who draws the same: "all 8 ranks: worker 0, the same from torch, dropout"."""
    what = f"the same from {', '.join(kinds)}"
    [worker, *others] = {worker for _, worker in who}
    if others:
        places = [f"{at}, {worker}" if worker else str(at) for at, worker in who]
        return Culprit(f"{listed(places)}: {what}", either=[{at.node for at, _ in who}])
    text = f"{worker}, {what}" if worker else what
    [same] = texts_by_who([(at, text) for at, _ in who], ranks)
    return same


def judge_reproduced(label: str, first: Sequence[Digests], again: Sequence[Digests]) -> Measurement:
    """Judge whether every rank draws the same numbers in a second run with the same seed."""
    name = f"{label}: generators that draw different numbers in a second run"
    source = "numbers follow from the seed and the rank"
    return _between(name, source, (first, again), operator.ne, "others from")


def judge_depends(label: str, one: Sequence[Digests], other: Sequence[Digests]) -> Measurement:
    """Judge whether another seed gives every rank other numbers."""
    name = f"{label}: generators that do not depend on the seed"
    source = "another seed gives other numbers"
    return _between(name, source, (one, other), operator.eq, "the same from")


def _between(
    name: str,
    source: str,
    runs: tuple[Sequence[Digests], Sequence[Digests]],
    wrong: Callable[[str, str], bool],
    what: str,
) -> Measurement:
    """Generators whose digests of two runs are wrong; inconclusive if some did not draw."""
    first, again = ({one.at.rank: one.digests for one in run} for run in runs)
    both = [one for run in runs for one in run]
    every = _generators(both)
    ats = {one.at.rank: one.at for one in both}
    texts, lacking = [], []
    count = 0
    for rank, at in ats.items():
        if rank not in first or rank not in again:
            lacking.append((at, "not in both runs"))
            continue
        one, other = first[rank], again[rank]
        lacking.append((at, _undrawn(every, one.keys() & other.keys())))
        if bad := [kind for kind in one if kind in other and wrong(one[kind], other[kind])]:
            count += len(bad)
            texts.append((at, f"{what} {listed(bad, separator=', ')}"))
    return _drawn_wrong(
        name, texts_by_who(texts, len(ats)), source, count, (lacking, len(ats), every)
    )


def _drawn_wrong(
    name: str,
    culprits: Sequence[Culprit],
    source: str,
    count: int,
    drawn: tuple[Sequence[tuple[At, str]], int, Sequence[str]],
) -> Measurement:
    """drawn: what each rank did not draw ("" for nothing), the number of ranks, all generators."""
    lacking, ranks, every = drawn
    missing = listed(texts_by_who(((at, text) for at, text in lacking if text), ranks))
    unsure = missing if every else "no rank drew anything"
    note = ", ".join(every)
    return Measurement.none_allowed(name, culprits, source, count=count, unsure=unsure, note=note)


def _undrawn(every: Sequence[str], drawn: Iterable[str]) -> str:
    absent = [generator for generator in every if generator not in drawn]
    return f"drew nothing from {listed(absent, separator=', ')}" if absent else ""


def _generators(draws: Iterable[Digests]) -> list[str]:
    """All generators that any rank drew from."""
    return list(dict.fromkeys(generator for one in draws for generator in one.digests))


def read_files(at: At, path: str, files: int, size_bytes: int) -> Digests:
    """Digests of the heads of the first files by name below a directory, as this rank sees them."""
    directory = Directory("datasets", path, sample_files=files, sample_bytes=size_bytes)
    seen = visit(directory, "", at.rank, lambda _: None)
    digests = {one.name: f"{one.digest} of {one.size_bytes} B" for one in seen.samples}
    return Digests(at, digests, seen.problem)


def judge_files(label: str, read: Sequence[Digests]) -> list[Measurement]:
    """Judge whether every rank reads the same as most, for every file that any rank found."""
    source = "the same data set on every node"
    name = f"{label}: files that a rank reads differently from most"
    return [
        Measurement.none_allowed(
            f"{label}: ranks that cannot read it",
            [one.at.culprit(f": {one.problem}") for one in read if one.problem],
            source,
        ),
        judge_alike(name, read, source, "reads", "there is no file to compare"),
    ]


def judge_alike(
    name: str,
    given: Sequence[Digests],
    source: str,
    verb: str,
    nothing: str = "there is nothing to compare",
) -> Measurement:
    """Judge whether every rank has the same digest as most, of everything that any rank has.

    verb: what a rank did, such as "reads". nothing: why it is inconclusive if no rank has any.
    """
    able = [one for one in given if not one.problem]
    names = sorted({name for one in able for name in one.digests})
    texts = [
        at.culprit(f" {verb} {of} as {digest}", sure=bool(others))
        for of in names
        for at, digest, others in unlike_most(
            (one.at, one.digests.get(of, _ABSENT)) for one in able
        )
    ]
    unsure = ""
    if not names or len(able) < 2:
        unsure = "a single rank has no other to compare with" if names else nothing
    note = "" if unsure else f"{len(names)} compared"
    return Measurement.none_allowed(name, texts, source, unsure=unsure, note=note)
