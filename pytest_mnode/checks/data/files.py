"""Judging what ranks read of the same files. Pure; `read_files` alone looks at a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.checks.judged import At, none_wrong, unlike_most
from pytest_mnode.criteria.preflight.directories import visit
from pytest_mnode.criteria.preflight.orders import Directory
from pytest_mnode.measurement import Measurement

_ABSENT = "not among the first"


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
