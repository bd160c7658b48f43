"""Placement of a process: CPUs of its threads, memory by node, and limits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.waiting import parse_stat

_FIELD = re.compile(r"^([A-Za-z_]+):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
# "prefer (many)" and "weighted interleave" are policies with a blank in their names.
_AREA = re.compile(
    r"([0-9a-f]{1,16}) "
    r"(?:prefer \(many\)|weighted interleave|[a-z]+)(?:=[\w|]+)?(?::[\d,-]*)?"
    r"(?: (.*))?",
    re.ASCII,
)
_NODE = re.compile(r"N(\d{1,5})=(\d{1,15})", re.ASCII)
_PAGE_BYTES = 4096
"""Of areas whose line does not tell the size of their pages."""
_PRIVATE_FILES = ("/anon_hugepage",)
_SHARED_FILES = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV")
_LIMIT = re.compile(r"^(Max [a-z ]+?) {2,}(\d+|unlimited)\s", re.MULTILINE | re.ASCII)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE | re.ASCII)
_IPC_LOCK, _SYS_ADMIN = 14, 21
_ALL_USERS = ["0", "0", str((1 << 32) - 1)]


class AreaKind(StrEnum):
    """Kind of a memory area. A file's area whose every page was copied on write is `ANON`."""

    HEAP = "heap"
    STACK = "stack"
    ANON = "anon"
    SHARED = "shared"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One area of memory.

    bytes_by_node: resident bytes by NUMA node; empty for an area that was never touched.
    """

    start: int
    kind: AreaKind
    bytes_by_node: Mapping[int, int]


PRIVATE = frozenset((AreaKind.HEAP, AreaKind.STACK, AreaKind.ANON))
"""Memory that the process itself allocated and shares with no other process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Fields of a status file: name, and the CPUs and NUMA nodes that the process may use."""

    name: str | None = None
    cpus: frozenset[int] | None = None
    mems: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. last_cpu: the CPU on which it last ran."""

    tid: int
    name: str | None
    cpus_allowed: frozenset[int] | None
    last_cpu: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Placement of a process.

    threads: all of them, the main thread included; None if they cannot be listed. memory: its
    areas; None if numa_maps cannot be read, which needs the right to trace the process, and a
    kernel with NUMA.
    """

    cpus_allowed: frozenset[int] | None
    mems_allowed: frozenset[int] | None
    threads: tuple[Thread, ...] | None
    memory: tuple[Area, ...] | None


def parse_status(text: str) -> Allowed:
    """The fields of /proc/PID/status that concern placement. Pure; never raises.

    Source: Linux, Documentation/filesystems/proc.rst.
    """
    fields = dict(_FIELD.findall(text))
    return Allowed(
        name=fields.get("Name"),
        cpus=parse_cpulist(fields.get("Cpus_allowed_list")) or None,
        mems=parse_cpulist(fields.get("Mems_allowed_list")) or None,
    )


def read_process(pid: int | None = None, root: Path = Path("/")) -> Process | None:
    """Placement of process `pid` (None: of the reader itself); None if there is no such process."""
    folder = root / "proc" / ("self" if pid is None else str(pid))
    text = sysfs.text(folder / "status")
    if text is None:
        return None
    status = parse_status(text)
    maps = sysfs.text(folder / "numa_maps")
    return Process(
        cpus_allowed=status.cpus,
        mems_allowed=status.mems,
        threads=_threads(folder / "task"),
        memory=parse_numa_maps(maps) if maps else None,
    )


def _threads(folder: Path) -> tuple[Thread, ...] | None:
    found = []
    for path in sysfs.entries(folder):
        text = sysfs.text(path / "status") if path.name.isdigit() else None
        if text is None:
            continue  # the thread ended after it was listed
        status, stat = parse_status(text), parse_stat(sysfs.text(path / "stat") or "", 1.0)
        last_cpu = stat.last_cpu if stat else None
        found.append(Thread(int(path.name), status.name, status.cpus, last_cpu))
    return tuple(found) or None


def descriptors(process: Path) -> dict[int, str]:
    """The file or socket of each open descriptor of a process, given by its folder in /proc."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for path in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found[int(path.name)] = str(path.readlink())
    return found


def parse_numa_maps(text: str) -> tuple[Area, ...]:
    """Areas in order; other lines are skipped.

    Source: Linux, Documentation/filesystems/proc.rst; fs/proc/task_mmu.c, show_numa_map.
    """
    return tuple(area for line in text.splitlines() if (area := _area(line.strip())) is not None)


def bytes_by_node(areas: Iterable[Area], kinds: Iterable[AreaKind] = PRIVATE) -> dict[int, int]:
    """Resident bytes on each NUMA node, over the areas of these kinds."""
    wanted, total = frozenset(kinds), dict[int, int]()
    for area in areas:
        if area.kind in wanted:
            for node, size in area.bytes_by_node.items():
                total[node] = total.get(node, 0) + size
    return dict(sorted(total.items()))


def _area(line: str) -> Area | None:
    match = _AREA.fullmatch(line)
    if match is None:
        return None
    words = (match[2] or "").split()
    values = dict(word.partition("=")[::2] for word in words if "=" in word)
    kilobytes = sysfs.number_of(values.get("kernelpagesize_kB"))
    page = kilobytes << 10 if kilobytes else _PAGE_BYTES
    pages = {int(node[1]): int(node[2]) for word in words if (node := _NODE.fullmatch(word))}
    return Area(
        start=int(match[1], 16),
        kind=_kind(
            words, values.get("file"), sysfs.number_of(values.get("anon")), sum(pages.values())
        ),
        bytes_by_node={node: count * page for node, count in pages.items()},
    )


def _kind(words: list[str], file: str | None, anon: int | None, pages: int) -> AreaKind:
    if file is None:
        named = {"heap": AreaKind.HEAP, "stack": AreaKind.STACK}
        return next((named[w] for w in words if w in named), AreaKind.ANON)
    if file.startswith(_PRIVATE_FILES):
        return AreaKind.ANON
    if file.startswith(_SHARED_FILES):
        return AreaKind.SHARED
    # Within one area, file pages that other processes map cannot be separated from copied pages.
    return AreaKind.ANON if pages and anon == pages else AreaKind.FILE


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft limits of a process, which apply unless it raises them. None: no limit.

    cpus: CPUs that it may run on. ipc_lock: whether it has CAP_IPC_LOCK for the machine, which
    overrides the memlock limit. admin: the same for CAP_SYS_ADMIN, which root of a machine has.
    These three are None if unknown.
    """

    memlock_bytes: int | None
    open_files: int | None
    cpus: frozenset[int] | None = None
    ipc_lock: bool | None = None
    admin: bool | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Limits of this process. Raises OSError if they cannot be read.

    Source: Linux, include/uapi/linux/capability.h; user_namespaces(7): only capabilities in the
    initial user namespace apply to the machine.
    """
    found = dict(_LIMIT.findall((root / "proc/self/limits").read_text(errors="replace")))

    def limit(name: str) -> int | None:
        if name not in found:
            raise OSError(f"/proc/self/limits: no {name}")
        return None if found[name] == "unlimited" else int(found[name])

    status = sysfs.text(root / "proc/self/status") or ""
    mask = _CAPABILITIES.search(status)
    users = (sysfs.text(root / "proc/self/uid_map") or "").split()

    def capable(number: int) -> bool | None:
        if mask is None or not users:
            return None
        return users == _ALL_USERS and bool(int(mask[1], 16) >> number & 1)

    return Limits(
        memlock_bytes=limit("Max locked memory"),
        open_files=limit("Max open files"),
        cpus=parse_status(status).cpus,
        ipc_lock=capable(_IPC_LOCK),
        admin=capable(_SYS_ADMIN),
    )
