"""Judging digests: of what ranks drew at random, and of the files they read.

The judges are pure; `read_files` alone looks at a disk.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.checks.judged import At, none_wrong, texts_by_who, unlike_most
from pytest_mnode.criteria.preflight.directories import visit
from pytest_mnode.criteria.preflight.orders import Directory
from pytest_mnode.measurement import Measurement, listed

_ABSENT = "not among the first"


@dataclass(frozen=True, slots=True)
class Draws:
    """What one rank drew, as a digest by source, such as "numpy" or "worker 0: torch"."""

    at: At
    digests: Mapping[str, str]


def judge_distinct(label: str, draws: Sequence[Draws]) -> Measurement:
    """Does every rank, and every worker of its loader, draw numbers of its own?

    Two that draw the same from one kind of generator are wrong. Inconclusive where none are, and a
    rank did not draw what others drew.
    """
    name = f"{label}: generators that draw what another draws"
    source = "each rank and each worker has a seed of its own"
    if len(draws) < 2:
        return Measurement.unknown(name, "one rank has nobody to share with", source=source)
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
    missing = [
        (one.at, _undrawn(absent))
        for one in draws
        if (absent := [generator for generator in every if generator not in one.digests])
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
    """Who draws the same, such as "all 8 ranks: worker 0, the same from torch, dropout"."""
    what = f"the same from {', '.join(kinds)}"
    [worker, *others] = {worker for _, worker in who}
    if others:
        places = [f"{at}, {worker}" if worker else str(at) for at, worker in who]
        return f"{listed(places)}: {what}"
    text = f"{worker}, {what}" if worker else what
    return "".join(texts_by_who([(at, text) for at, _ in who], ranks))


def judge_reproduced(label: str, first: Sequence[Draws], again: Sequence[Draws]) -> Measurement:
    """Does every rank draw the same numbers in a second run with the same seed?"""
    name = f"{label}: generators that draw otherwise in a second run"
    source = "numbers follow from the seed and the rank"
    return _between(name, source, first, again, operator.ne, "others from")


def judge_depends(label: str, one: Sequence[Draws], other: Sequence[Draws]) -> Measurement:
    """Does another seed give every rank other numbers?"""
    name = f"{label}: generators that the seed does not reach"
    source = "another seed gives other numbers"
    return _between(name, source, one, other, operator.eq, "the same from")


def _between(  # noqa: PLR0917  what is judged, and by what
    name: str,
    source: str,
    first: Sequence[Draws],
    again: Sequence[Draws],
    wrong: Callable[[str, str], bool],
    what: str,
) -> Measurement:
    """Generators whose digests of two runs are wrong; inconclusive where some did not draw."""
    every = _generators([*first, *again])
    runs = [{one.at.rank: one.digests for one in run} for run in (first, again)]
    ats = {one.at.rank: one.at for one in (*first, *again)}
    texts, missing = [], []
    count = 0
    for rank, at in ats.items():
        if not all(rank in run for run in runs):
            missing.append((at, "not in both runs"))
            continue
        one, other = (run[rank] for run in runs)
        if absent := [kind for kind in every if kind not in one or kind not in other]:
            missing.append((at, _undrawn(absent)))
        if bad := [kind for kind in one if kind in other and wrong(one[kind], other[kind])]:
            count += len(bad)
            texts.append((at, f"{what} {listed(bad, separator=', ')}"))
    return none_wrong(
        name,
        texts_by_who(texts, len(ats)),
        source,
        count=count,
        unsure=_unsure(missing, len(ats), every),
        note=", ".join(every),
    )


def _unsure(missing: Iterable[tuple[At, str]], ranks: int, generators: Sequence[str]) -> str:
    """What some ranks did not draw; "" where all drew from the same generators."""
    return listed(texts_by_who(missing, ranks)) if generators else "no rank drew anything"


def _undrawn(generators: Sequence[str]) -> str:
    return f"drew nothing from {listed(generators, separator=', ')}"


def _generators(draws: Iterable[Draws]) -> list[str]:
    """All that any rank drew from."""
    return list(dict.fromkeys(generator for one in draws for generator in one.digests))


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Digests of the first files of a directory as one rank read them; or why it could not."""

    at: At
    digests: Mapping[str, str]
    problem: str = ""


def read_files(at: At, path: str, files: int, size_bytes: int) -> FilesRead:
    """Digests of the heads of the first files by name below a directory, as this rank sees them."""
    directory = Directory("datasets", path, sample_files=files, sample_bytes=size_bytes)
    seen = visit(directory, "", at.rank, lambda _: None)
    digests = {one.name: f"{one.digest} of {one.size_bytes} B" for one in seen.samples}
    return FilesRead(at, digests, seen.problem)


def judge_files(label: str, read: Sequence[FilesRead]) -> list[Measurement]:
    """Does every rank read what most read, of every file that any of them found?"""
    unread = [f"{one.at}: {one.problem}" for one in read if one.problem]
    able = [one for one in read if not one.problem]
    names = sorted({name for one in able for name in one.digests})
    texts = [
        f"{at} reads {name} as {digest}"
        for name in names
        for at, digest, _ in unlike_most([(one.at, one.digests.get(name, _ABSENT)) for one in able])
    ]
    unsure = ""
    if not names or len(able) < 2:
        unsure = "one rank has nobody to compare with" if names else "there is no file to compare"
    source = "the same data set on every node"
    return [
        none_wrong(f"{label}: ranks that cannot read it", unread, source),
        none_wrong(
            f"{label}: files that ranks read otherwise than most",
            texts,
            source,
            unsure=unsure,
            note="" if unsure else f"{len(names)} compared",
        ),
    ]
