"""Faults of files and file systems that one node sees."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.faults.acting import inside, undone_once
from pytest_mnode.faults.registry import Undo, fault, path, size, word
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

FULL_BYTES = 1 << 20
SMALL_SHM_BYTES = 64 << 20


@fault(size("SIZE", "64 MiB, as containers often have"))
def small_shm(rack: Rack, node: Node, size_bytes: int | None) -> Undo:
    """A node's /dev/shm is small."""
    inside(rack, node, "resize", "/dev/shm", str(size_bytes or SMALL_SHM_BYTES))
    full_bytes = str(rack.plan.shm_bytes)
    return _undo_by(rack, node, ["resize", "/dev/shm", full_bytes])


@fault(path("PATH"))
def read_only_path(rack: Rack, node: Node, where: str) -> Undo:
    """A node cannot write to a directory or file that the others can write to."""
    _need(where)
    inside(rack, node, "read_only", where)
    return _undo_by(rack, node, ["unmount", where])


@fault(path("PATH"))
def full_disk(rack: Rack, node: Node, where: str) -> Undo:
    """A node finds a full file system at a directory; what is there otherwise is hidden."""
    if not Path(where).is_dir():
        raise UsageError(f"no directory {where}")
    inside(rack, node, "full", where, str(FULL_BYTES))
    return _undo_by(rack, node, ["unmount", where])


@fault(
    word("NAME", None, "the name of an installed distribution"),
    word("VERSION", "the real one, with +other", "a version"),
)
def other_package(rack: Rack, node: Node, name: str, version: str | None) -> Undo:
    """A node has another version of a Python package, as its metadata say."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise UsageError(f"no distribution {name!r} is installed") from None
    metadata = next((f for f in found.files or () if f.name in ("METADATA", "PKG-INFO")), None)
    if metadata is None:
        raise UsageError(f"{name} has no metadata in a file of its own")
    target = Path(str(found.locate_file(metadata))).resolve()
    text = target.read_text(encoding="utf-8")
    other = version or f"{found.version.partition('+')[0]}+other"
    changed = text.replace(f"\nVersion: {found.version}\n", f"\nVersion: {other}\n", 1)
    if changed == text:
        raise UsageError(f"{target}: no line 'Version: {found.version}', or nothing to change")
    return _replaced(rack, node, target, changed.encode())


@fault(word("PATH", None, "the path of a file"))
def other_code(rack: Rack, node: Node, where: str) -> Undo:
    """A node has another version of a file of the code: one comment line more at its end."""
    target = Path(where).absolute()
    if not target.is_file():
        raise UsageError(f"no file {where}")
    return _replaced(rack, node, target, target.read_bytes() + b"\n# Another version.\n")


def _replaced(rack: Rack, node: Node, target: Path, data: bytes) -> Undo:
    inside(rack, node, "replace", str(target), data=data)
    return _undo_by(rack, node, ["unmount", str(target)])


def _undo_by(rack: Rack, node: Node, words: Sequence[str]) -> Undo:
    def undo() -> None:
        inside(rack, node, *words)

    return undone_once(rack, undo, node)


def _need(where: str) -> None:
    if not Path(where).exists():
        raise UsageError(f"no such path: {where}")
