"""Reads /proc/PID/numa_maps: on which NUMA nodes the pages of a process are. Pure and total."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# "prefer (many)" and "weighted interleave" are policies with a blank in their names.
_LINE = re.compile(
    r"([0-9a-f]{1,16}) "
    r"((?:prefer \(many\)|weighted interleave|[a-z]+)(?:=[\w|]+)?(?::[\d,-]*)?)"
    r"(?: (.*))?",
    re.ASCII,
)
_NODE = re.compile(r"N(\d{1,5})=(\d{1,15})", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_PAGE_BYTES = 4096
_PRIVATE_FILES = ("/anon_hugepage",)
_SHARED_FILES = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV")


class Kind(StrEnum):
    """What an area of memory is. A file's area whose every page was copied on write is `ANON`."""

    HEAP = "heap"
    STACK = "stack"
    ANON = "anon"
    SHARED = "shared"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One area of memory.

    policy: as the kernel prints it, such as "bind:1". bytes_by_node: what is in memory, by node;
    an area never touched has none. page_bytes: of one of its pages.
    """

    start: int
    policy: str
    kind: Kind
    file: str | None
    page_bytes: int
    bytes_by_node: Mapping[int, int]


PRIVATE = frozenset((Kind.HEAP, Kind.STACK, Kind.ANON))
"""Memory that the process itself allocated and nobody shares."""


def parse_numa_maps(told: str, page_bytes: int = _PAGE_BYTES) -> tuple[Area, ...]:
    """Areas in order; lines that are none are passed over.

    page_bytes: taken where a line does not tell it, as kernels before 3.11 do not.

    Source: Linux, Documentation/filesystems/proc.rst; fs/proc/task_mmu.c, show_numa_map.
    """
    return tuple(
        area for line in told.splitlines() if (area := _area(line.strip(), page_bytes)) is not None
    )


def bytes_by_node(areas: Iterable[Area], kinds: Iterable[Kind] = PRIVATE) -> dict[int, int]:
    """Bytes in memory on each node, over the areas of these kinds."""
    wanted, total = frozenset(kinds), dict[int, int]()
    for area in areas:
        if area.kind in wanted:
            for node, size in area.bytes_by_node.items():
                total[node] = total.get(node, 0) + size
    return dict(sorted(total.items()))


def _area(line: str, page_bytes: int) -> Area | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    words = (match[3] or "").split()
    values = dict(word.partition("=")[::2] for word in words if "=" in word)
    kilobytes = _number(values.get("kernelpagesize_kB"))
    page = kilobytes << 10 if kilobytes else page_bytes
    pages = {int(node[1]): int(node[2]) for word in words if (node := _NODE.fullmatch(word))}
    file = _unescaped(values["file"]) if "file" in values else None
    return Area(
        start=int(match[1], 16),
        policy=match[2],
        kind=_kind(words, file, _number(values.get("anon")), sum(pages.values())),
        file=file,
        page_bytes=page,
        bytes_by_node={node: count * page for node, count in pages.items()},
    )


def _kind(words: list[str], file: str | None, anon: int | None, pages: int) -> Kind:
    if file is None:
        named = {"heap": Kind.HEAP, "stack": Kind.STACK}
        return next((named[w] for w in words if w in named), Kind.ANON)
    if file.startswith(_PRIVATE_FILES):
        return Kind.ANON
    if file.startswith(_SHARED_FILES):
        return Kind.SHARED
    # Pages of a file that others map too cannot be told from the copies within one area.
    return Kind.ANON if pages and anon == pages else Kind.FILE


def _number(told: str | None) -> int | None:
    return int(told) if told and told.isascii() and told.isdigit() and len(told) < 16 else None


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8) & 0xFF), path)
