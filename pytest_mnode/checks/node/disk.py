"""Free space of file systems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import Directory, DirectoryFacts, NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import AbsolutePath, Bytes, Section
from pytest_mnode.spec.quantity import SIZE

SHM = "/dev/shm"
_FEWEST_FILES = 100
"""A file system in which fewer files still fit has no room, whatever its free bytes. [choice]"""


class FreeDisk(Section):
    """Free space on a file system."""

    path: AbsolutePath
    """A path on the file system."""
    free_bytes: Bytes = Field(alias="free")
    """How much is free for a user without privileges, such as 10 GB."""


Disks = Annotated[tuple[FreeDisk, ...], Field(min_length=1)]


@check("preflight.disk")
class DisksHaveRoom(SurveyCheck):
    """Do this node's disks have as much free space as promised?"""

    promise: Disks
    """Free space on each node."""
    alone = True

    def directories(self) -> Iterator[Directory]:
        return (Directory(f"disk {one.path}", one.path) for one in self.promise)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        for one in self.promise:
            yield from room(node, f"disk {one.path}", one.path)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        for one in self.promise:
            source = f"{self.key} {one.path} {SIZE.text(one.free_bytes)}"
            yield enough(rows, one.path, "free", one.free_bytes, source)


def room(node: NodeSurvey, key: str, path: str) -> Iterator[Row]:
    """Size and free space of a directory that a node inspected, and its file system."""
    found = node.directory(key) or DirectoryFacts(key=key, path=path, problem="not inspected")
    why = found.problem or "its size cannot be read"
    yield row(f"{path} size", found.size_bytes, "B", device=path, why=why)
    is_out_of_files = found.free_files is not None and found.free_files < _FEWEST_FILES
    free_bytes = 0 if is_out_of_files else found.free_bytes
    yield row(f"{path} free", free_bytes, "B", device=path, why=why)
    left = f"a file system with {found.free_files} free inodes (df -i)" if is_out_of_files else ""
    if left or found.file_system:
        yield row(f"{path} on", left or found.file_system)


def enough(  # noqa: PLR0917  of a path
    rows: Rows, path: str, what: str, least_bytes: int, source: str, part: str = ""
) -> Measurement:
    """Judge the size or the free space of a directory, by the rows of `room`."""
    note = ", ".join(f"on {one.value}" for one in rows.of(f"{path} on"))
    name = f"{path} {what}"
    return rows.at_least(name, least_bytes, "B", part=part, source=source, note=note)
